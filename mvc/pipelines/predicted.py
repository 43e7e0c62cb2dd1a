"""A chunk of a tensor coded by an optimizer's step: the signs that it lacks, then the delta.

Where a step knows the square of a gradient only, it says less of some elements than of others: the
root of a small change of a second moment has few digits. A *graded* step sorts the elements by
what it cannot say (``Prediction.fill``), and the deltas of each grade are coded by themselves, so
that elements which are as predicted pay nothing for the others. Elements whose gradient is zero
have no sign.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from mvc.codecs.compressors import FAST
from mvc.codecs.optim import GRADES, Prediction
from mvc.codecs.streams import decode_bitmap, encode_stream
from mvc.codecs.varint import Cursor, varint
from mvc.codecs.words import Bytes, Words, scratch_bytes, words_of
from mvc.pipelines.pipeline import Pipeline
from mvc.types import Bytes as StoredBytes

_Places = NDArray[np.intp]


def encode_predicted(
    pipeline: Pipeline,
    prediction: Prediction,
    new: memoryview,
    *,
    sources: Sequence[memoryview],
    width: int,
) -> bytes:
    """The chunk that leads from ``sources``, the base and then the inputs, to ``new``."""
    base, *inputs = sources
    state = scratch_bytes("prediction", len(new)).data
    if not prediction.signed:
        prediction.fill(base, inputs, state)
        return pipeline.encode_chunk(new, state, width)
    signs = np.frombuffer(prediction.signs(base, inputs, new), np.uint8)
    if not prediction.graded:
        prediction.fill(base, inputs, state, signs.data)
        parts: list[StoredBytes] = [*encode_stream(signs, FAST)]
        return b"".join((*parts, pipeline.encode_chunk(new, state, width)))
    moving, count = _moving(prediction, inputs), len(new) // prediction.width
    marks = np.packbits(np.unpackbits(signs, count=count).take(moving))
    parts = [*encode_stream(marks, FAST)]
    grades = _fill_graded(prediction, sources, state, moving=moving, marks=marks)
    places, cuts = _by_grade(moving, grades)
    wanted, guess = (words_of(data, prediction.width).take(places) for data in (new, state))
    for cut in cuts:
        encoded = pipeline.encode_chunk(_view(wanted[cut]), _view(guess[cut]), width)
        parts += [varint(len(encoded)), encoded]
    rest = bytearray(new)
    words_of(memoryview(rest), prediction.width)[places] = guess
    return b"".join((*parts, pipeline.encode_chunk(memoryview(rest), state, width)))


def apply_predicted(
    pipeline: Pipeline,
    prediction: Prediction,
    encoded: memoryview,
    sources: Sequence[memoryview],
    *,
    out: memoryview,
    width: int,
) -> None:
    """Fills ``out``, which may be the base's, by a chunk; ``sources`` are as they were encoded."""
    (base, *inputs), cursor = sources, Cursor(encoded)
    if prediction.graded:
        moving = _moving(prediction, inputs)
        marks, _ = decode_bitmap(cursor, len(moving), FAST, "signs")
        grades = _fill_graded(prediction, sources, out, moving=moving, marks=marks)
        places, parts = _by_grade(moving, grades)
        words = words_of(out, prediction.width)
        guess = words.take(places)
        for part in parts:
            delta = cursor.take(cursor.varint())
            pipeline.apply_chunk(delta, _view(guess[part]), width, reverse=False)
        words[places] = guess
    else:
        signs = None
        if prediction.signed:
            found, _ = decode_bitmap(cursor, len(out) // prediction.width, FAST, "signs")
            signs = found.data
        prediction.fill(base, inputs, out, signs)
    pipeline.apply_chunk(cursor.data[cursor.position :], out, width, reverse=False)


def _moving(prediction: Prediction, inputs: Sequence[memoryview]) -> _Places:
    """The elements whose gradient is not zero."""
    return np.flatnonzero(prediction.moving(inputs))


def _fill_graded(
    prediction: Prediction,
    sources: Sequence[memoryview],
    out: memoryview,
    *,
    moving: _Places,
    marks: Bytes,
) -> Bytes:
    """Fills ``out`` with ``marks``, the signs of those that are moving; returns the grades."""
    (base, *inputs), count = sources, len(out) // prediction.width
    signs = np.zeros(count, np.uint8)
    signs[moving] = np.unpackbits(marks, count=len(moving))
    grades = scratch_bytes("grades", count)
    prediction.fill(base, inputs, out, np.packbits(signs).data, grades=grades)
    return grades


def _by_grade(moving: _Places, grades: Bytes) -> tuple[_Places, list[slice]]:
    """The moving elements sorted by grade, and where each grade that has any lies among them."""
    graded = grades.take(moving)
    ends = np.cumsum(np.bincount(graded, minlength=GRADES)).tolist()
    parts = [slice(at, end) for at, end in pairwise((0, *ends)) if at < end]
    return moving[np.argsort(graded, kind="stable")], parts


def _view(words: Words) -> memoryview:
    return words.data.cast("B")
