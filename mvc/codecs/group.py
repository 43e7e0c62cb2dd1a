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
from mvc.codecs.sparse import decode_sparse, encode_sparse
from mvc.codecs.stages.codings import Planes, Sparse, Zigzag
from mvc.codecs.streams import decode_segments, encode_segments
from mvc.codecs.varint import Cursor, varint
from mvc.codecs.words import Words, join, split, unzigzag, word_type, words_of, zigzag
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
    runs = ((len(list(run)), width) for width, run in groupby(widths))
    parts: list[bytes | memoryview] = [
        b"".join(varint(length << 2 | width.bit_length() - 1) for length, width in runs)
    ]
    for width in sorted(set(widths)):
        same = [m for m in members if m[2] == width]
        total = sum(len(new) // width for new, _, _ in same)
        if sparse := pipeline.find(Sparse):
            joined = np.empty(total, word_type(width))
            for at, block in _blocks(pipeline, same):
                joined[at : at + len(block)] = block
            parts += encode_sparse(joined, sparse.options, pipeline.method)
        else:
            planes = np.empty((width, total), np.uint8)
            for at, block in _blocks(pipeline, same):
                for i, plane in enumerate(split(block)):
                    planes[i, at : at + len(block)] = plane
            for plane in planes:
                parts += encode_segments(plane, pipeline.method)
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


def _blocks(pipeline: Pipeline, members: Sequence[Member]) -> Iterator[tuple[int, Words]]:
    """The words to be coded of one width's members, member after member, and where they begin.

    By blocks that stay in the processor's cache; a block of a delta lies in scratch.
    """
    at, folded = 0, pipeline.find(Zigzag)
    for new, base, width in members:
        for start in range(0, len(new), _BLOCK * width):
            cut = slice(start, start + _BLOCK * width)
            block, _ = pipeline.delta(new[cut], None if base is None else base[cut], width)
            if folded:
                zigzag(block)
            yield at, block
            at += len(block)


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


def _read_class(pipeline: Pipeline, cursor: Cursor, targets: list[Words], width: int) -> None:
    """Fills the members of one width."""
    total = sum(map(len, targets))
    if sparse := pipeline.find(Sparse):
        joined = np.empty(total, word_type(width))
        decode_sparse(cursor, joined, sparse.options, pipeline.method)
    else:
        planes = np.empty((width, total), np.uint8)
        for plane in planes:
            decode_segments(cursor, plane, pipeline.method)
    in_planes, folded = pipeline.find(Planes), pipeline.find(Zigzag)
    start = 0
    for target in targets:
        end = start + len(target)
        if in_planes:
            join(list(planes[:, start:end]), target)
        else:
            target[:] = joined[start:end]
        if folded:
            unzigzag(target)
        start = end
