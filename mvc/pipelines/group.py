"""Encodes all tensors of a record together, for pipelines that have a stage of scope ``group``.

A pipeline is a sequence of stages that encode tensors. A record is a stored group of tensors. A
stage of scope ``group`` encodes all tensors of a record as one payload.

A word is an element of a tensor as an unsigned integer. The words of all tensors are joined, then
encoded as byte planes (plane i has byte i of every word) or as positions and values (``sparse``).
docs/format.md, "Payload of a group", describes the bytes. The byte planes are those of
``ByByteSegments`` in the VSOL thesis (§3.2.6, form 2).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import TypeAlias

import numpy as np

from mvc.codecs.stages import BLOCK
from mvc.codecs.varint import Cursor, varint
from mvc.codecs.words import Words, difference, word_type, words_of
from mvc.errors import DamagedData
from mvc.pipelines.pipeline import Pipeline

Member: TypeAlias = tuple[memoryview, memoryview | None, int]  # new, base, width


def encode_group(pipeline: Pipeline, members: Sequence[Member]) -> list[bytes | memoryview]:
    """Encodes the members into one payload. Returns parts to join.

    A member is one tensor: its bytes, the bytes of the base from which a delta is computed (of the
    same length), and the width of an element in bytes. The base is None if and only if the pipeline
    encodes no deltas.
    """
    widths = [width for _, _, width in members]
    runs = ((len(list(run)), width) for width, run in groupby(widths))
    parts: list[bytes | memoryview] = [
        b"".join(varint(length << 2 | width.bit_length() - 1) for length, width in runs)
    ]
    for width in sorted(set(widths)):
        words = _joined(pipeline, [m for m in members if m[2] == width], width)
        parts += pipeline.layout.encode_joined(words, pipeline.method)
    parts.append(b"".join(_tail(pipeline, m) for m in members if len(m[0]) % m[2]))
    return parts


def decode_group(
    pipeline: Pipeline, data: memoryview, sizes: Sequence[int]
) -> list[tuple[memoryview, int]]:
    """Returns, for each member, the decoded bytes and the width of an element.

    If the pipeline encodes deltas, the bytes are a delta, which ``words.combine`` applies to a
    base. ``sizes``: the number of decoded bytes of each member. Raises DamagedData.
    """
    cursor = Cursor(data)
    widths = _read_widths(cursor, len(sizes))
    counts = dict.fromkeys(sorted(widths), 0)
    for size, width in zip(sizes, widths, strict=True):
        counts[width] += size // width
    words = {w: _read_words(pipeline, cursor, count, w) for w, count in counts.items()}
    out = []
    for size, width in zip(sizes, widths, strict=True):
        count, rest = size // width, words[width]
        member, words[width] = rest[:count].view(np.uint8).data, rest[count:]
        if tail := size % width:
            member = memoryview(bytes(member) + cursor.read(tail))
        out.append((member, width))
    cursor.end()
    return out


def _joined(pipeline: Pipeline, members: Sequence[Member], width: int) -> Words:
    """The words of all members of one width, member after member. With deltas, the words of the
    deltas.
    """
    joined = np.empty(sum(len(new) // width for new, _, _ in members), word_type(width))
    at = 0
    for new, base, _ in members:
        words = words_of(new, width)
        part = joined[at : at + len(words)]
        at += len(words)
        if base is None:
            part[:] = words
        else:
            difference(pipeline.operator, words, words_of(base, width), part)
    for start in range(0, len(joined), BLOCK):
        for stage in pipeline.maps:
            stage.forward(joined[start : start + BLOCK])
    return joined


def _tail(pipeline: Pipeline, member: Member) -> bytes | memoryview:
    new, base, width = member
    end = len(new) // width * width
    return pipeline.delta(new[end:], None if base is None else base[end:], width)[1]


def _read_widths(cursor: Cursor, count: int) -> list[int]:
    widths: list[int] = []
    while len(widths) < count:
        run = cursor.varint()
        length = run >> 2
        if not 0 < length <= count - len(widths):
            raise DamagedData("a group names more members than it has")
        widths += [1 << (run & 3)] * length
    return widths


def _read_words(pipeline: Pipeline, cursor: Cursor, count: int, width: int) -> Words:
    """Decodes the joined words of all members of one width."""
    words = np.zeros(count, word_type(width))
    pipeline.layout.decode_joined(cursor, words, pipeline.method)
    for start in range(0, count, BLOCK):
        for stage in reversed(pipeline.maps):
            stage.back(words[start : start + BLOCK])
    return words
