"""Encodes and decodes the steps of many tensors, of one or several times.

A *step* is the lossy delta of one tensor. It has a symbol (a small integer) for each element, and a
table with the value that each symbol adds. docs/format.md, "Payload of steps" and "Payload of joint
steps", describes the bytes. A *joint* payload (a super-step) has the steps of several successive
times, and decodes to each of these steps. So every state in between can be recovered, bit for bit.
A joint payload is smaller than separate payloads, because a weight that changes much at one time
often does so again. The symbols of a weight at several times form one *letter*, which has its own
frequency.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from math import prod

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from mvc.codecs.floats import BY_CODE, FORMATS, Format
from mvc.codecs.streams import Parts
from mvc.codecs.varint import Cursor, varint
from mvc.errors import DamagedData, WrongUsage
from mvc.lossy.lc.coders import packed
from mvc.lossy.lc.packing import symbol_type
from mvc.lossy.lc.stages import LossyPipeline, SymbolCoding
from mvc.lossy.lc.step import Addition, Symbols

MAX_JOINT = 1024
"""The most steps in one payload."""

_LIMITS = (0, 256, 4096)
_ROOT = 4
_MOST_SYMBOLS = 1 << 16


def encode_steps(pipeline: LossyPipeline, steps: Sequence[Addition]) -> list[bytes | memoryview]:
    """One payload of all steps, as parts to join.

    The pipeline names the coder. A table is stored with all its values, so a step that uses few
    symbols should have a small table.
    """
    return _encode(_coding_of(pipeline), [steps], joint=False)


def encode_joint(
    pipeline: LossyPipeline, steps: Sequence[Sequence[Addition]]
) -> list[bytes | memoryview]:
    """One payload of consecutive steps: ``steps[t][i]`` is added to tensor i at time t.

    Returns parts to join. Raises WrongUsage if the number of times is not from 1 to ``MAX_JOINT``,
    or if the times have different tensors.
    """
    shapes = [[(step.dtype, step.nbytes) for step in at] for at in steps]
    if any(shape != shapes[0] for shape in shapes) or not 0 < len(steps) <= MAX_JOINT:
        raise WrongUsage(f"a joint payload has 1 to {MAX_JOINT} steps, all of the same tensors")
    return [varint(len(steps)), *_encode(_coding_of(pipeline), steps, joint=True)]


def decode_steps(pipeline: LossyPipeline, data: memoryview, sizes: Sequence[int]) -> list[Addition]:
    """The steps of a payload. ``sizes``: the raw bytes of its tensors, in order.

    Raises DamagedData if a byte does not fit. Allocates at most a fixed multiple of the tensors'
    raw bytes and of the data.
    """
    (steps,) = _decode(_coding_of(pipeline), Cursor(data), sizes, times=1, joint=False)
    return steps


def decode_joint(
    pipeline: LossyPipeline, data: memoryview, sizes: Sequence[int]
) -> list[list[Addition]]:
    """For each time of a joint payload, its steps.

    See ``decode_steps``. A step takes one or two bytes of memory for each element.
    """
    cursor = Cursor(data)
    times = cursor.varint()
    if not 0 < times <= MAX_JOINT:
        raise DamagedData(f"{times} steps cannot be in one payload")
    return _decode(_coding_of(pipeline), cursor, sizes, times=times, joint=True)


def _coding_of(pipeline: LossyPipeline) -> SymbolCoding:
    if pipeline.coder is None:
        raise WrongUsage(f"pipeline {pipeline.text} has no coder of steps")
    return pipeline.coder.coding


def _encode(coding: SymbolCoding, steps: Sequence[Sequence[Addition]], *, joint: bool) -> Parts:
    by_member = [tuple(map(CodeTable.of, times)) for times in zip(*steps, strict=True)]
    classes: dict[tuple[CodeTable, ...], list[int]] = {}
    for i, tables in enumerate(by_member):
        classes.setdefault(tables, []).append(i)
    numbers_ = {tables: i for i, tables in enumerate(classes)}
    parts: Parts = [varint(len(classes))]
    parts += [encode_table(table) for tables in classes for table in tables]
    parts.append(encode_runs([numbers_[tables] for tables in by_member]))
    for tables, members_ in classes.items():
        rows = [_row([at[i].symbols for i in members_]) for at in steps]
        if joint:
            parts += _smallest(coding, rows, [len(table) for table in tables])
        else:
            parts += coding.encode(rows[0], len(tables[0]))
    return parts


def _decode(
    coding: SymbolCoding, cursor: Cursor, sizes: Sequence[int], *, times: int, joint: bool
) -> list[list[Addition]]:
    count = cursor.varint()
    if times * count > cursor.left:
        raise DamagedData("more steps or tables than data")
    classes = [[_decode_table(cursor) for _ in range(times)] for _ in range(count)]
    members = _Members.decode(cursor, sizes, [tables[0] for tables in classes])
    rows: list[list[Symbols]] = []
    for total, tables in zip(members.totals, classes, strict=True):
        if len({table.dtype for table in tables}) > 1:
            raise DamagedData("a tensor changes its dtype between steps")
        limit = cursor.byte() if joint else 0
        if limit >= len(_LIMITS):
            raise DamagedData("joint symbols of unknown kind")
        rows.append([])
        for run in _letters([len(table) for table in tables], _LIMITS[limit]):
            rows[-1] += _digits(coding.decode(cursor, total, prod(run)), run)
    cursor.end()
    steps: list[list[Addition]] = [[] for _ in range(times)]
    for member, part in members.parts:
        for at, table, row in zip(steps, classes[member], rows[member], strict=True):
            at.append(table.step(row[part]))
    return steps


class CodeTable(Struct, frozen=True):
    """What all members (tensors) of a class have in common: dtype, scale, and the table of values.

    ``root``: the scale is that of the square root. ``data``: the bytes of the table.
    """

    dtype: str
    root: bool
    data: bytes

    @classmethod
    def of(cls, step: Addition) -> CodeTable:
        return cls(step.dtype, step.root, step.table.tobytes())

    @property
    def format(self) -> Format:
        return FORMATS[self.dtype]

    def __len__(self) -> int:
        return len(self.data) // self.format.width

    def step(self, symbols: Symbols) -> Addition:
        table = np.frombuffer(self.data, self.format.table_type)
        return Addition(symbols, table, self.dtype, self.root)


def _row(rows: Sequence[Symbols]) -> Symbols:
    """Joins rows of symbols to one row, in the smallest type that fits all."""
    return np.ascontiguousarray(rows[0]) if len(rows) == 1 else np.concatenate(rows)


def encode_table(table: CodeTable) -> bytes:
    """The stored form of a table.

    Raises WrongUsage for a table that ``decode_steps`` would refuse.
    """
    width = table.format.width
    if len(table) > _MOST_SYMBOLS or any(table.data[:width]):
        raise WrongUsage("a table has up to 65,536 numbers, and the first is +0.0")
    code = BY_CODE.index(table.format) | (_ROOT if table.root else 0)
    if table.format.infinite(np.frombuffer(table.data, f"<u{width}")).any():
        raise WrongUsage("a table has a number that is infinite or NaN")
    head = bytes((code,)) + varint(len(table) - 1)
    if len(table) == 1:
        return head
    rows = np.frombuffer(table.data, np.uint8).reshape(-1, width)[1:]
    used = np.flatnonzero(rows.any(axis=0))
    nbytes = width - int(used[0]) if len(used) else 1
    return head + bytes((nbytes,)) + rows[:, width - nbytes :].tobytes()


def _decode_table(cursor: Cursor) -> CodeTable:
    code, count = cursor.byte(), cursor.varint()
    if code >= 2 * _ROOT or count >= _MOST_SYMBOLS:
        raise DamagedData("a table of numbers of unknown kind")
    kind = BY_CODE[code % _ROOT]
    nbytes = cursor.byte() if count else 1
    if not 1 <= nbytes <= kind.width:
        raise DamagedData(f"numbers of {nbytes} bytes are not {kind.name}")
    stored = np.frombuffer(cursor.read(count * nbytes), np.uint8).reshape(count, nbytes)
    rows: NDArray[np.uint8] = np.zeros((count + 1, kind.width), np.uint8)
    rows[1:, kind.width - nbytes :] = stored
    if kind.infinite(rows.view(f"<u{kind.width}")).any():
        raise DamagedData("a table has a number that is infinite or NaN")
    return CodeTable(kind.name, code >= _ROOT, rows.tobytes())


def encode_runs(members: Sequence[int]) -> bytes:
    """The numbers as runs of equal numbers. A run is its length and the number, each a varint."""
    runs = ((len(list(run)), member) for member, run in groupby(members))
    return b"".join(varint(length) + varint(member) for length, member in runs)


class _Members(Struct, frozen=True):
    """Which symbols belong to which member (tensor).

    ``parts``: for each member its class (the members with the same table), and its slice of the
    class's row of symbols. ``totals``: for each class the length of its row.
    """

    parts: list[tuple[int, slice]]
    totals: list[int]

    @classmethod
    def decode(cls, cursor: Cursor, sizes: Sequence[int], classes: Sequence[CodeTable]) -> _Members:
        """``sizes``: the raw bytes of the members. Raises DamagedData unless these sizes fit."""
        result = cls([], [0] * len(classes))
        while len(result.parts) < len(sizes):
            length, member = cursor.varint(), cursor.varint()
            if not 0 < length <= len(sizes) - len(result.parts) or member >= len(classes):
                raise DamagedData("steps name more members or tables than exist")
            kind = classes[member].format
            at = len(result.parts)
            for size in sizes[at : at + length]:
                if size % kind.width:
                    raise DamagedData(f"{size} bytes are not whole {kind.name} elements")
                start = result.totals[member]
                result.totals[member] += size // kind.width
                result.parts.append((member, slice(start, result.totals[member])))
        return result


def _smallest(coding: SymbolCoding, rows: Sequence[Symbols], alphabets: Sequence[int]) -> Parts:
    """Encodes the symbols of a class at all times.

    Tries several limits for the size of letters, and returns the encoding with the fewest bytes.
    """
    best: Parts = []
    tried: list[list[list[int]]] = []
    for position, limit in enumerate(_LIMITS):
        runs = list(_letters(alphabets, limit))
        if runs in tried or (coding is packed and limit > 256):
            continue
        tried.append(runs)
        parts: Parts = [bytes((position,))]
        at = 0
        for run in runs:
            parts += coding.encode(_together(rows[at : at + len(run)], run), prod(run))
            at += len(run)
        if not best or sum(map(len, parts)) < sum(map(len, best)):
            best = parts
    return best


def _letters(alphabets: Sequence[int], limit: int) -> Iterator[list[int]]:
    """Divides the times into letters. Yields the sizes of the alphabets of the times in each
    letter.
    """
    run: list[int] = []
    for alphabet in alphabets:
        if run and prod(run) * alphabet > limit:
            yield run
            run = []
        run.append(alphabet)
    if run:
        yield run


def _together(rows: Sequence[Symbols], run: Sequence[int]) -> Symbols:
    """Combines the symbols of several times to letters.

    The symbols are the digits of the letter.
    """
    if len(rows) == 1:
        return rows[0]
    letters: Symbols = rows[-1].astype(symbol_type(prod(run)))
    for row, alphabet in zip(rows[-2::-1], run[-2::-1], strict=True):
        letters *= letters.dtype.type(alphabet % 256 if letters.itemsize == 1 else alphabet)
        letters += row.astype(letters.dtype, copy=False)
    return letters


def _digits(letters: Symbols, run: Sequence[int]) -> list[Symbols]:
    """The symbols (digits) of letters, the lowest digit first, by table lookup."""
    if len(run) == 1:
        return [letters]
    rows, rest = [], np.arange(prod(run))
    for alphabet in run:
        digit = (rest % alphabet).astype(symbol_type(alphabet))
        rows.append(digit.take(letters))
        rest //= alphabet
    return rows
