"""Encodes and decodes payloads: the lossy deltas of many tensors, as bytes.

A *step* is the lossy delta of one tensor between two successive versions. A step has a symbol (a
small integer) for each element, and a table. The table says which value each symbol adds to its
element. docs/format.md, "Payload of steps" and "Payload of joint steps", describes the bytes.

A *joint* payload (a super-step) has the steps of several successive versions, called *times* here.
Every step can be decoded from the joint payload. A joint payload is smaller than separate payloads,
because a weight that changes much at one time often changes much at the next time. So the symbols
of an element at several times are encoded as one symbol, a *letter*.
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
"""The most times in one joint payload."""

_LIMITS = (0, 256, 4096)
_ROOT = 4
_MOST_SYMBOLS = 1 << 16


def encode_steps(pipeline: LossyPipeline, steps: Sequence[Addition]) -> list[bytes | memoryview]:
    """One payload of all steps, as parts to join. The pipeline chooses the coder.

    The table of a step is stored with all its values, even values of unused symbols.
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
        raise WrongUsage(
            f"a joint payload has steps of 1 to {MAX_JOINT} versions with the same tensors"
        )
    return [varint(len(steps)), *_encode(_coding_of(pipeline), steps, joint=True)]


def decode_steps(pipeline: LossyPipeline, data: memoryview, sizes: Sequence[int]) -> list[Addition]:
    """The steps of a payload. ``sizes``: the number of bytes of each tensor, in order.

    Raises DamagedData for an invalid payload. Even then, the memory is at most a fixed multiple of
    the bytes of the payload and the tensors.
    """
    (steps,) = _decode(_coding_of(pipeline), Cursor(data), sizes, times=1, joint=False)
    return steps


def decode_joint(
    pipeline: LossyPipeline, data: memoryview, sizes: Sequence[int]
) -> list[list[Addition]]:
    """The steps of a joint payload, a list for each time. See ``decode_steps``."""
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
            raise DamagedData("unknown limit of joint symbols")
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
    """The dtype, scale and table of a step. Tensors with equal ``CodeTable`` form a class.

    ``root``: whether the values of the table are added to square roots of the elements. ``data``:
    the bytes of the table.
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
    """Joins rows of symbols to one row."""
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
    """Run-length encoding: for each run of equal numbers its length and the number, as varints."""
    runs = ((len(list(run)), member) for member, run in groupby(members))
    return b"".join(varint(length) + varint(member) for length, member in runs)


class _Members(Struct, frozen=True):
    """Which symbols belong to which member (tensor).

    The symbols of all members of a class (members with the same table) are joined to one row.
    ``parts``: for each member, the number of its class, and the slice of the row that belongs to
    the member. ``totals``: the length of each class's row.
    """

    parts: list[tuple[int, slice]]
    totals: list[int]

    @classmethod
    def decode(cls, cursor: Cursor, sizes: Sequence[int], classes: Sequence[CodeTable]) -> _Members:
        """``sizes``: the number of bytes of each member. Raises DamagedData if a size is wrong."""
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
    """Encodes the symbols of a class at all times, in the fewest bytes.

    Tries several limits for the number of different letters.
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
    """Groups successive times whose symbols form one letter.

    ``alphabets``: the number of symbols at each time. Yields these numbers for each group. A group
    of several times has at most ``limit`` different letters.
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
    """Combines the symbols of an element at several times to one letter.

    The symbols are the digits of the letter. The lowest digit is the earliest time's symbol.
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
