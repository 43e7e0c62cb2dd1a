"""Encodes a chunk of a tensor as a delta from a prediction, which repeats an optimizer's step.

If the prediction cannot compute the signs of the gradients, the encoded chunk begins with these
signs. The delta from the predicted bytes follows.

Some elements are predicted more exactly than others. A *graded* prediction divides the elements
into grades of precision (``Prediction.fill``), and the deltas of each grade are encoded separately.
So elements that are predicted exactly take almost no space. A graded prediction stores no signs of
gradients that are zero.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from mvc.codecs.compressors import FAST
from mvc.codecs.optim import GRADES, Prediction
from mvc.codecs.streams import Parts, decode_bitmap, encode_stream
from mvc.codecs.varint import Cursor, varint
from mvc.codecs.words import Bytes, Words, by_key, scratch_bytes, words_of
from mvc.pipelines.pipeline import Pipeline

_Places = NDArray[np.int64]


class Predicted(Struct, frozen=True):
    """The prediction for a chunk.

    ``state``: the predicted bytes, in memory that the thread reuses. ``marks``: the signs, in
    stored form. For a graded prediction, ``moving`` has the positions of elements whose gradient is
    not zero, and ``places`` has the same positions sorted by grade. ``cuts``: the slice of each
    grade in ``places``.
    """

    state: memoryview
    moving: _Places | None
    marks: Bytes
    places: _Places | None
    cuts: Sequence[slice]


def encode_predicted(
    pipeline: Pipeline,
    prediction: Prediction,
    new: memoryview,
    *,
    sources: Sequence[memoryview],
    width: int,
) -> tuple[Parts, Predicted]:
    """Encodes the chunk ``new``. ``sources``: the base, then the inputs of the prediction.

    Returns the parts, as ``Pipeline.encode_parts`` does, and the prediction.
    """
    (base, *inputs), count = sources, len(new) // prediction.width
    state = scratch_bytes("prediction", len(new)).data
    grades = scratch_bytes("grades", count) if prediction.graded else None
    signs = prediction.fill(base, inputs, state, new=new, grades=grades)
    moving = _moving(prediction, inputs)
    marks = np.packbits(signs if moving is None else signs.take(moving))
    places, cuts = _by_grade(moving, grades)
    parts: Parts = [*encode_stream(marks, FAST)]
    if places is not None:
        wanted, guess = (words_of(data, prediction.width).take(places) for data in (new, state))
        for cut in cuts:
            encoded = pipeline.encode_chunk(_view(wanted[cut]), _view(guess[cut]), width)
            parts += [varint(len(encoded)), encoded]
        rest = scratch_bytes("rest", len(new)).data
        rest[:] = new
        words_of(rest, prediction.width)[places] = guess
        new = rest
    parts += pipeline.encode_parts(new, state, width)
    return parts, Predicted(state, moving, marks, places=places, cuts=cuts)


def apply_predicted(
    pipeline: Pipeline,
    prediction: Prediction,
    encoded: memoryview,
    sources: Sequence[memoryview],
    *,
    out: memoryview,
    width: int,
    known: Predicted | None = None,
) -> None:
    """Decodes a chunk into ``out``, which may be the base's memory. ``sources``: as when encoded.

    ``known``: the prediction, if it was computed before from the same sources, and ``out`` contains
    ``known.state``. If the signs in ``encoded`` differ from ``known.marks``, the prediction is
    computed again.
    """
    (base, *inputs), cursor, count = sources, Cursor(encoded), len(out) // prediction.width
    moving = _moving(prediction, inputs) if known is None else known.moving
    size = (count if prediction.signed else 0) if moving is None else len(moving)
    marks, _ = decode_bitmap(cursor, size, FAST, "signs")
    if known is not None and np.array_equal(known.marks, marks):
        places, cuts = known.places, known.cuts
    else:
        signs, grades = np.unpackbits(marks, count=size), None
        if moving is not None:
            all_signs, grades = scratch_bytes("signs", count), scratch_bytes("grades", count)
            all_signs.fill(0)
            all_signs[moving] = signs
            signs = all_signs
        prediction.fill(base, inputs, out, signs, grades=grades)
        places, cuts = _by_grade(moving, grades)
    if places is not None:
        words = words_of(out, prediction.width)
        guess = words.take(places)
        for cut in cuts:
            delta = cursor.read(cursor.varint())
            pipeline.apply_chunk(delta, _view(guess[cut]), width, reverse=False)
        words[places] = guess
    pipeline.apply_chunk(cursor.data[cursor.position :], out, width, reverse=False)


def _moving(prediction: Prediction, inputs: Sequence[memoryview]) -> _Places | None:
    """The positions of elements with a nonzero gradient; None if the prediction is not graded."""
    return np.flatnonzero(prediction.moving(inputs)) if prediction.graded else None


def _by_grade(
    moving: _Places | None, grades: Bytes | None
) -> tuple[_Places | None, Sequence[slice]]:
    """The positions in ``moving`` sorted by grade, and the slice of each grade that occurs."""
    if moving is None or grades is None:
        return None, ()
    places, counts = by_key(moving, grades, GRADES)
    ends = np.cumsum(counts).tolist()
    return places, [slice(at, end) for at, end in pairwise((0, *ends)) if at < end]


def _view(words: Words) -> memoryview:
    return words.data.cast("B")
