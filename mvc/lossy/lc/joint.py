"""Several consecutive steps of the same tensors in one payload (a super-step).

Decoding gives every step back, so that the states between them are found by as many additions,
bit for bit. It is smaller than the steps by themselves because a weight that moves far once
does so again: the symbols of one weight at several times are one letter for the coder, which
has a frequency of its own.

Members whose steps have the same dtype, scale and table as each other at every time form a
class. Stored: the number of steps; the number of classes; the tables of each, time after time;
the classes of the members, as in ``mvc.lossy.lc.payload``; then for each class its limit, one
byte, and its letters. A letter joins as many times as keep the product of their numbers of
symbols within the limit (``_LIMITS``), the first time being the lowest digit; limit 0 joins
none.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod
from typing import TYPE_CHECKING

import numpy as np

from mvc.codecs.streams import Parts
from mvc.codecs.varint import Cursor, varint
from mvc.errors import DamagedData, WrongUsage
from mvc.lossy.lc.coders import packed
from mvc.lossy.lc.payload import (
    Members,
    Table,
    coding_of,
    decode_table,
    encode_runs,
    encode_table,
    joined,
)
from mvc.lossy.lc.stages import SymbolCoding
from mvc.lossy.lc.step import Addition, Symbols

if TYPE_CHECKING:
    from mvc.pipelines.pipeline import Pipeline

__all__ = ["MAX_JOINT", "decode_joint", "encode_joint"]

MAX_JOINT = 1024
"""Steps in one payload."""

_LIMITS = (0, 256, 4096)


def encode_joint(
    pipeline: Pipeline, steps: Sequence[Sequence[Addition]]
) -> list[bytes | memoryview]:
    """One payload of consecutive steps: ``steps[t][i]`` is added to tensor i at time t.

    Parts to be written one after the other. WrongUsage unless all times have the same tensors,
    and there are 1 to ``MAX_JOINT`` of them.
    """
    shapes = [[(step.dtype, step.nbytes) for step in at] for at in steps]
    if any(shape != shapes[0] for shape in shapes) or not 0 < len(steps) <= MAX_JOINT:
        raise WrongUsage(
            f"1 to {MAX_JOINT} steps are stored together, all of them of the same tensors"
        )
    by_member = [tuple(Table.of(step) for step in times) for times in zip(*steps, strict=True)]
    classes: dict[tuple[Table, ...], list[int]] = {}
    for i, tables in enumerate(by_member):
        classes.setdefault(tables, []).append(i)
    place = {tables: i for i, tables in enumerate(classes)}
    parts: Parts = [varint(len(steps)), varint(len(classes))]
    parts += [encode_table(table) for tables in classes for table in tables]
    parts.append(encode_runs([place[tables] for tables in by_member]))
    for tables, own in classes.items():
        rows = [joined([at[i].symbols for i in own]) for at in steps]
        parts += _smallest(coding_of(pipeline), rows, [len(table) for table in tables])
    return parts


def decode_joint(
    pipeline: Pipeline, data: memoryview, sizes: Sequence[int]
) -> list[list[Addition]]:
    """The steps of a payload by time; ``sizes`` are the raw bytes of its members, in order.

    Raises DamagedData unless every byte fits. A step holds one or two bytes for each element.
    """
    coding = coding_of(pipeline)
    cursor = Cursor(data)
    times, count = cursor.varint(), cursor.varint()
    if not 0 < times <= MAX_JOINT or times * count > cursor.left:
        raise DamagedData("more steps or tables than there is data")
    classes = [[decode_table(cursor) for _ in range(times)] for _ in range(count)]
    members = Members.decode(cursor, sizes, [tables[0] for tables in classes])
    rows: list[list[Symbols]] = []
    for total, tables in zip(members.totals, classes, strict=True):
        if len({table.dtype for table in tables}) > 1:
            raise DamagedData("a tensor changes its dtype between steps")
        limit = cursor.byte()
        if limit >= len(_LIMITS):
            raise DamagedData("joint symbols of no known kind")
        alphabets = [len(table) for table in tables]
        rows.append([])
        for run in _letters(alphabets, _LIMITS[limit]):
            letters = coding.decode(cursor, total, prod(run))
            rows[-1] += _apart(letters, run)
    cursor.end()
    steps: list[list[Addition]] = [[] for _ in range(times)]
    for member, part in members.parts:
        for at, table, row in zip(steps, classes[member], rows[member], strict=True):
            at.append(table.step(row[part]))
    return steps


def _smallest(coding: SymbolCoding, rows: Sequence[Symbols], alphabets: Sequence[int]) -> Parts:
    """The symbols of a class by time, with the limit that makes them smallest."""
    best: Parts = []
    known: list[list[list[int]]] = []
    for place, limit in enumerate(_LIMITS):
        runs = list(_letters(alphabets, limit))
        if runs in known or (coding is packed and limit > 256):
            continue
        known.append(runs)
        parts: Parts = [bytes((place,))]
        at = 0
        for run in runs:
            parts += coding.encode(_together(rows[at : at + len(run)], run), prod(run))
            at += len(run)
        if not best or sum(map(len, parts)) < sum(map(len, best)):
            best = parts
    return best


def _letters(alphabets: Sequence[int], limit: int) -> Iterator[list[int]]:
    """The numbers of symbols of the times that share a letter, letter after letter."""
    run: list[int] = []
    for alphabet in alphabets:
        if run and prod(run) * alphabet > limit:
            yield run
            run = []
        run.append(alphabet)
    if run:
        yield run


def _together(rows: Sequence[Symbols], run: Sequence[int]) -> Symbols:
    """Letters whose digits are the symbols in ``rows``."""
    if len(rows) == 1:
        return rows[0]
    letters: Symbols = rows[-1].astype(np.uint8 if prod(run) <= 256 else np.uint16)
    for row, alphabet in zip(rows[-2::-1], run[-2::-1], strict=True):
        letters *= letters.dtype.type(alphabet % 256 if letters.itemsize == 1 else alphabet)
        letters += row.astype(letters.dtype, copy=False)
    return letters


def _apart(letters: Symbols, run: Sequence[int]) -> list[Symbols]:
    """The digits of letters, the lowest first, by look-up."""
    if len(run) == 1:
        return [letters]
    rows, rest = [], np.arange(prod(run))
    for alphabet in run:
        digit = (rest % alphabet).astype(np.uint8 if alphabet <= 256 else np.uint16)
        rows.append(digit.take(letters))
        rest //= alphabet
    return rows
