"""The bytes of the steps of many tensors.

Members whose steps have the same dtype, scale and table form a *class*: its table is stored
once, and the symbols of its members, one after the other, are one row for the coder.

Stored: the number of classes; for each its dtype (bits 0-1: float32, float64, float16,
bfloat16; bit 2: on the scale of the root), the number of its symbols but 0, if there are any
how many bytes of a number are stored, and the numbers of symbols 1, 2, ..., each without its
low bytes (these are zero); the classes of the members as runs (length, class); the symbols of
each class as the coder writes them. Numbers without a width are variable-length integers.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from mvc.codecs.floats import BY_CODE, FORMATS, Format
from mvc.codecs.streams import Parts
from mvc.codecs.varint import Cursor, varint
from mvc.errors import DamagedData, WrongUsage
from mvc.lossy.lc.stages import SymbolCoding
from mvc.lossy.lc.step import Addition, Symbols

if TYPE_CHECKING:
    from mvc.pipelines.pipeline import Pipeline

__all__ = ["decode_steps", "encode_steps"]

_ROOT = 4
_MOST_SYMBOLS = 1 << 16


class Table(Struct, frozen=True):
    """What the members of a class have in common: dtype, scale, and the bytes of the table."""

    dtype: str
    root: bool
    data: bytes

    @classmethod
    def of(cls, step: Addition) -> Table:
        return cls(step.dtype, step.root, step.table.tobytes())

    @property
    def format(self) -> Format:
        return FORMATS[self.dtype]

    def __len__(self) -> int:
        return len(self.data) // self.format.width

    def step(self, symbols: Symbols) -> Addition:
        """A member of the class."""
        table = np.frombuffer(self.data, self.format.table_type)
        return Addition(symbols, table, self.dtype, self.root)


def encode_steps(pipeline: Pipeline, steps: Sequence[Addition]) -> list[bytes | memoryview]:
    """One payload of all steps: parts to be written one after the other.

    The pipeline names the coder. The numbers of a table count in full: a step that uses few of
    its table's symbols should come with a smaller table.
    """
    coding = coding_of(pipeline)
    tables = [Table.of(step) for step in steps]
    rows: dict[Table, list[Symbols]] = {}
    for table, step in zip(tables, steps, strict=True):
        rows.setdefault(table, []).append(step.symbols)
    place = {table: i for i, table in enumerate(rows)}
    parts: Parts = [varint(len(rows)), *map(encode_table, rows)]
    parts.append(encode_runs([place[table] for table in tables]))
    for table, members in rows.items():
        parts += coding.encode(joined(members), len(table))
    return parts


def decode_steps(pipeline: Pipeline, data: memoryview, sizes: Sequence[int]) -> list[Addition]:
    """The steps of a payload; ``sizes`` are the raw bytes of its members, in order.

    Raises DamagedData unless every byte fits. No more than a fixed multiple of the members'
    raw bytes and of the data is allocated.
    """
    coding = coding_of(pipeline)
    cursor = Cursor(data)
    count = cursor.varint()
    if count > cursor.left:
        raise DamagedData("more tables than there is data")
    classes = [decode_table(cursor) for _ in range(count)]
    members = Members.decode(cursor, sizes, classes)
    rows = [
        coding.decode(cursor, total, len(table))
        for total, table in zip(members.totals, classes, strict=True)
    ]
    cursor.end()
    return [classes[member].step(rows[member][part]) for member, part in members.parts]


def coding_of(pipeline: Pipeline) -> SymbolCoding:
    if pipeline.coder is None:
        raise WrongUsage(f"pipeline {pipeline.text} has no coder of steps")
    return pipeline.coder.coding


def joined(rows: Sequence[Symbols]) -> Symbols:
    """Rows of symbols as one, in the smallest type that all of them fit in."""
    return np.ascontiguousarray(rows[0]) if len(rows) == 1 else np.concatenate(rows)


def encode_table(table: Table) -> bytes:
    width = table.format.width
    if len(table) > _MOST_SYMBOLS or any(table.data[:width]):
        raise WrongUsage("a table has up to 65,536 numbers, the first of them +0.0")
    code = BY_CODE.index(table.format) | (_ROOT if table.root else 0)
    if table.format.infinite(np.frombuffer(table.data, f"<u{width}")).any():
        raise WrongUsage("a table has a number that is infinite or none")
    head = bytes((code,)) + varint(len(table) - 1)
    if len(table) == 1:
        return head
    rows = np.frombuffer(table.data, np.uint8).reshape(-1, width)[1:]
    used = np.flatnonzero(rows.any(axis=0))
    kept = width - int(used[0]) if len(used) else 1
    return head + bytes((kept,)) + rows[:, width - kept :].tobytes()


def decode_table(cursor: Cursor) -> Table:
    code, count = cursor.byte(), cursor.varint()
    if code >= 2 * _ROOT or count >= _MOST_SYMBOLS:
        raise DamagedData("a table of numbers of no known kind")
    kind = BY_CODE[code % _ROOT]
    kept = cursor.byte() if count else 1
    if not 1 <= kept <= kind.width:
        raise DamagedData(f"numbers of {kept} bytes are not {kind.name}")
    stored = np.frombuffer(cursor.take(count * kept), np.uint8).reshape(count, kept)
    rows: NDArray[np.uint8] = np.zeros((count + 1, kind.width), np.uint8)
    rows[1:, kind.width - kept :] = stored
    if kind.infinite(rows.view(f"<u{kind.width}")).any():
        raise DamagedData("a table has a number that is infinite or none")
    return Table(kind.name, code >= _ROOT, rows.tobytes())


def encode_runs(members: Sequence[int]) -> bytes:
    runs = ((len(list(run)), member) for member, run in groupby(members))
    return b"".join(varint(length) + varint(member) for length, member in runs)


class Members(Struct, frozen=True):
    """Which part of which class's row each member is, and how long the rows are."""

    parts: list[tuple[int, slice]]
    totals: list[int]

    @classmethod
    def decode(cls, cursor: Cursor, sizes: Sequence[int], classes: Sequence[Table]) -> Members:
        """``sizes``: the raw bytes of the members. Raises DamagedData unless they fit."""
        made = cls([], [0] * len(classes))
        while len(made.parts) < len(sizes):
            length, member = cursor.varint(), cursor.varint()
            if not 0 < length <= len(sizes) - len(made.parts) or member >= len(classes):
                raise DamagedData("steps name more members or tables than there are")
            kind = classes[member].format
            at = len(made.parts)
            for size in sizes[at : at + length]:
                if size % kind.width:
                    raise DamagedData(f"{size} bytes are not whole {kind.name} elements")
                start = made.totals[member]
                made.totals[member] += size // kind.width
                made.parts.append((member, slice(start, made.totals[member])))
        return made
