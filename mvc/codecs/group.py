"""Group scope: byte planes over all tensors of a record, coded together.

VSOL's ``ByByteSegments`` (thesis §3.2, form 2): plane i of every tensor, one
tensor after the other, for each i. It equals splitting the concatenation of all
tensors (form 3). Tensors of unequal element width make a class each.

Stored: the widths of the members as runs (log2 of the width in bits 0-1, the
run's length above), then for each width that occurs, narrowest first, its
planes, lowest first, cut in segments of at most 4 MiB; last the bytes of all
members that fill no word.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import TypeAlias

import numpy as np

from mvc.codecs.pipeline import Pipeline
from mvc.codecs.stages import Planes, Zigzag, Zstd
from mvc.codecs.streams import Bytes
from mvc.codecs.varint import Cursor, varint
from mvc.codecs.words import Words, difference, words_of
from mvc.errors import DamagedData, WrongUsage
from mvc.limits import MIB

__all__ = ["Member", "decode_group", "encode_group", "group_widths"]

Member: TypeAlias = tuple[memoryview, memoryview | None, int]  # new, base, width
_SEGMENT = 4 * MIB


def encode_group(pipeline: Pipeline, members: Sequence[Member]) -> list[bytes]:
    """Parts to be written one after the other.

    A member is its new bytes, its base of equal length (None if and only if the
    pipeline has no operator) and the width of its elements.
    """
    _check_scope(pipeline)
    widths = [width for _, _, width in members]
    parts = [
        b"".join(
            varint(len(list(run)) << 2 | width.bit_length() - 1) for width, run in groupby(widths)
        )
    ]
    zstd = pipeline.find(Zstd)
    for width in sorted(set(widths)):
        for plane in _planes(pipeline, [m for m in members if m[2] == width], width):
            for start in range(0, len(plane), _SEGMENT):
                segment = plane[start : start + _SEGMENT]
                parts += map(bytes, zstd.encode(segment) if zstd else [segment.data])
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


def _planes(pipeline: Pipeline, members: Sequence[Member], width: int) -> list[Bytes]:
    """The planes of one width's members, member after member."""
    total = sum(len(m[0]) // width for m in members)
    planes = np.empty((width, total), np.uint8)
    split = pipeline.find(Planes)
    start = 0
    for member in members:
        words = _words(pipeline, member)
        for i, plane in enumerate(split.encode(words) if split else ()):
            planes[i, start : start + len(words)] = plane
        start += len(words)
    return list(planes)


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
    split, zstd = pipeline.find(Planes), pipeline.find(Zstd)
    zigzag = pipeline.find(Zigzag)
    planes = np.empty((width, total), np.uint8)
    for plane in planes:
        for start in range(0, total, _SEGMENT):
            segment = plane[start : start + _SEGMENT]
            if zstd:
                segment[:] = zstd.decode(cursor, len(segment), "segment")
            else:
                segment[:] = np.frombuffer(cursor.take(len(segment)), np.uint8)
    start = 0
    for target in targets:
        own: list[Bytes | int] = list(planes[:, start : start + len(target)])
        if split:
            split.decode(own, target)
        if zigzag:
            zigzag.decode(target)
        start += len(target)
