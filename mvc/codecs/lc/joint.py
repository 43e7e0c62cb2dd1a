"""Several consecutive steps of the same tensors in one payload (a super-step).

Decoding gives every step back, so that the states between them are found by as many additions,
bit for bit.
"""

from __future__ import annotations

from collections.abc import Sequence

from mvc.codecs.lc.payload import decode_steps, encode_steps
from mvc.codecs.lc.step import Step
from mvc.codecs.pipeline import Pipeline
from mvc.codecs.varint import Cursor, varint
from mvc.errors import DamagedData, WrongUsage

__all__ = ["decode_joint", "encode_joint"]


def encode_joint(pipeline: Pipeline, steps: Sequence[Sequence[Step]]) -> list[bytes | memoryview]:
    """One payload of consecutive steps: ``steps[t][i]`` is added to tensor i at time t.

    Parts to be written one after the other. WrongUsage unless all times have the same tensors.
    """
    shapes = [[(step.dtype, step.root, step.nbytes) for step in at] for at in steps]
    if any(shape != shapes[0] for shape in shapes):
        raise WrongUsage("steps that are stored together belong to the same tensors")
    parts: list[bytes | memoryview] = [varint(len(steps))]
    for at in steps:
        payload = b"".join(encode_steps(pipeline, at))
        parts += [varint(len(payload)), payload]
    return parts


def decode_joint(pipeline: Pipeline, data: memoryview, sizes: Sequence[int]) -> list[list[Step]]:
    """The steps of a payload by time; ``sizes`` are the raw bytes of its members, in order.

    Raises DamagedData unless every byte fits.
    """
    cursor = Cursor(data)
    count = cursor.varint()
    if count > cursor.left:
        raise DamagedData("more steps than there is data")
    steps = [decode_steps(pipeline, cursor.take(cursor.varint()), sizes) for _ in range(count)]
    cursor.end()
    return steps
