"""Group scope: the words of all tensors of a record, coded together.

Either as byte planes, VSOL's ``ByByteSegments`` (thesis §3.2.6, form 2): plane i of every
tensor, one tensor after the other, for each i. It equals splitting the concatenation of
all tensors (form 3). Or as positions and values over that concatenation (``sparse``).
Tensors of unequal element width make a class each.

Stored: the widths of the members as runs (log2 of the width in bits 0-1, the
run's length above), then for each width that occurs, narrowest first, its
planes, lowest first, cut in segments of at most 4 MiB, or its positions and values;
last the bytes of all members that fill no word.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import TypeAlias

import numpy as np

from mvc.codecs.pipeline import Pipeline
from mvc.codecs.segments import decode_segments, encode_segments
from mvc.codecs.stages import Compressor, Planes, PlanesOfJoined, Positions, Zigzag
from mvc.codecs.streams import Bytes
from mvc.codecs.varint import Cursor, varint
from mvc.codecs.words import Words, difference, word_type, words_of
from mvc.errors import DamagedData, WrongUsage

__all__ = ["Member", "decode_group", "encode_group", "group_widths"]

Member: TypeAlias = tuple[memoryview, memoryview | None, int]  # new, base, width
_BLOCK = 1 << 18  # words


def encode_group(pipeline: Pipeline, members: Sequence[Member]) -> list[bytes | memoryview]:
    """Parts to be written one after the other.

    A member is its new bytes, its base of equal length (None if and only if the
    pipeline has no operator) and the width of its elements.
    """
    _check_scope(pipeline)
    widths = [width for _, _, width in members]
    parts: list[bytes | memoryview] = [
        b"".join(
            varint(len(list(run)) << 2 | width.bit_length() - 1) for width, run in groupby(widths)
        )
    ]
    compressor = pipeline.find(Compressor)
    for width in sorted(set(widths)):
        same = [m for m in members if m[2] == width]
        if positions := pipeline.find(Positions):
            parts += positions.encode_words(_joined(pipeline, same, width), compressor)
        else:
            for plane in _planes(pipeline, same, width):
                parts += encode_segments(plane, compressor)
    parts.append(b"".join(_tail(pipeline, member) for member in members))
    return parts


def decode_group(pipeline: Pipeline, data: memoryview, sizes: Sequence[int]) -> list[memoryview]:
    """Each member's bytes: raw, or those of its delta, to be applied with ``words.combine``.

    ``sizes`` are the members' raw lengths. Raises DamagedData.
    """
    _check_scope(pipeline)
    cursor = Cursor(data)
    widths = _read_widths(cursor, len(sizes))
    out = [np.empty(size, np.uint8) for size in sizes]
    for width in sorted(set(widths)):
        targets = [words_of(o.data, width) for o, w in zip(out, widths, strict=True) if w == width]
        _read_class(pipeline, cursor, targets, width)
    for member, width in zip(out, widths, strict=True):
        tail = len(member) % width
        if tail:
            member[-tail:] = np.frombuffer(cursor.take(tail), np.uint8)
    cursor.end()
    return [member.data for member in out]


def group_widths(data: memoryview, count: int) -> list[int]:
    """Bytes of an element of each of ``count`` members, as ``words.combine`` needs them."""
    return _read_widths(Cursor(data), count)


def _check_scope(pipeline: Pipeline) -> None:
    if pipeline.scope != "group":
        raise WrongUsage(f"pipeline {pipeline.text} codes tensors one by one, not groups")


def _words(pipeline: Pipeline, member: Member) -> Words:
    new, base, width = member
    words = words_of(new, width)
    if (base is None) != (pipeline.operator == "none") or (
        base is not None and len(base) != len(new)
    ):
        raise WrongUsage(f"pipeline {pipeline.text} and the base of a member do not fit")
    if base is None:
        return words
    delta = np.empty_like(words)
    difference(pipeline.operator, words, words_of(base, width), delta)
    if zigzag := pipeline.find(Zigzag):
        zigzag.encode(delta)
    return delta


def _joined(pipeline: Pipeline, members: Sequence[Member], width: int) -> Words:
    """The words of one width's members, member after member."""
    joined = np.empty(sum(len(m[0]) // width for m in members), word_type(width))
    start = 0
    for member in members:
        words = _words(pipeline, member)
        joined[start : start + len(words)] = words
        start += len(words)
    return joined


def _planes(pipeline: Pipeline, members: Sequence[Member], width: int) -> list[Bytes]:
    """The planes of one width's members, member after member."""
    split = pipeline.find(Planes)
    assert split is not None
    planes = np.empty((width, sum(len(m[0]) // width for m in members)), np.uint8)
    start = 0
    for words in _runs(pipeline, members, width, joined=isinstance(split, PlanesOfJoined)):
        for i, plane in enumerate(split.encode(words)):
            planes[i, start : start + len(words)] = plane
        start += len(words)
    return list(planes)


def _runs(
    pipeline: Pipeline, members: Sequence[Member], width: int, *, joined: bool
) -> Iterator[Words]:
    """The words to be split: a member at a time, or all of them joined, in blocks."""
    if not joined:
        yield from (_words(pipeline, member) for member in members)
        return
    words = _joined(pipeline, members, width)
    for start in range(0, len(words), _BLOCK):
        yield words[start : start + _BLOCK]


def _tail(pipeline: Pipeline, member: Member) -> bytes:
    new, base, width = member
    end = len(new) // width * width
    tail = words_of(new[end:], 1)
    if base is None:
        return tail.tobytes()
    out = np.empty_like(tail)
    difference(pipeline.operator, tail, words_of(base[end:], 1), out)
    return out.tobytes()


def _read_widths(cursor: Cursor, count: int) -> list[int]:
    widths: list[int] = []
    while len(widths) < count:
        run = cursor.varint()
        length = run >> 2
        if not 0 < length <= count - len(widths):
            raise DamagedData("a group names more members than it has")
        widths += [1 << (run & 3)] * length
    return widths


def _read_class(pipeline: Pipeline, cursor: Cursor, targets: list[Words], width: int) -> None:
    total = sum(map(len, targets))
    compressor = pipeline.find(Compressor)
    if positions := pipeline.find(Positions):
        joined = np.empty(total, word_type(width))
        positions.decode_words(cursor, joined, compressor)
    else:
        planes = np.empty((width, total), np.uint8)
        for plane in planes:
            decode_segments(cursor, plane, compressor)
    split, zigzag = pipeline.find(Planes), pipeline.find(Zigzag)
    start = 0
    for target in targets:
        end = start + len(target)
        if split:
            split.decode(list(planes[:, start:end]), target)
        else:
            target[:] = joined[start:end]
        if zigzag:
            zigzag.decode(target)
        start = end
