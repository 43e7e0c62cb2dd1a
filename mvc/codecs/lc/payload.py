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
from functools import partial
from itertools import groupby
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from mvc.codecs.lc.coders import CODERS, huffman
from mvc.codecs.lc.coders.huffman import CodeTables
from mvc.codecs.lc.step import Step, Symbols
from mvc.codecs.lossy.floats import FORMATS
from mvc.codecs.pipeline import Pipeline
from mvc.codecs.stages.lc import Coder
from mvc.codecs.streams import Parts
from mvc.codecs.varint import Cursor, varint
from mvc.errors import DamagedData, WrongUsage

__all__ = ["decode_steps", "encode_steps"]

DTYPES = ("float32", "float64", "float16", "bfloat16")
_ROOT = 4
_MOST_SYMBOLS = 1 << 16


class Table(Struct, frozen=True):
    """What the members of a class have in common: dtype, scale, and the bytes of the table."""

    dtype: str
    root: bool
    data: bytes

    @classmethod
    def of(cls, step: Step) -> Table:
        return cls(step.dtype, step.root, step.table.tobytes())

    @property
    def width(self) -> int:
        return FORMATS[self.dtype].width

    def __len__(self) -> int:
        return len(self.data) // self.width

    def step(self, symbols: Symbols) -> Step:
        """A member of the class."""
        form = "<u2" if self.dtype == "bfloat16" else f"<f{self.width}"
        return Step(symbols, np.frombuffer(self.data, form), self.dtype, self.root)


def encode_steps(
    pipeline: Pipeline, steps: Sequence[Step], *, known: CodeTables | None = None
) -> list[bytes | memoryview]:
    """One payload of all steps: parts to be written one after the other.

    The pipeline names the coder; ``huffman`` uses the codes that are ``known``, if given. The
    numbers of a table count in full: a step that uses few of its table's symbols should come
    with a smaller table.
    """
    coder = CODERS[coder_of(pipeline).coding]
    encode = coder.encode
    if known is not None and coder is huffman:
        encode = partial(huffman.encode, tables=known)
    tables = [Table.of(step) for step in steps]
    rows: dict[Table, list[Symbols]] = {}
    for table, step in zip(tables, steps, strict=True):
        rows.setdefault(table, []).append(step.symbols)
    place = {table: i for i, table in enumerate(rows)}
    parts: Parts = [varint(len(rows)), *map(encode_table, rows)]
    parts.append(encode_runs([place[table] for table in tables]))
    for table, members in rows.items():
        parts += encode(joined(members), len(table))
    return parts


def decode_steps(pipeline: Pipeline, data: memoryview, sizes: Sequence[int]) -> list[Step]:
    """The steps of a payload; ``sizes`` are the raw bytes of its members, in order.

    Raises DamagedData unless every byte fits. No more than a fixed multiple of the members'
    raw bytes and of the data is allocated.
    """
    coder = CODERS[coder_of(pipeline).coding]
    cursor = Cursor(data)
    classes = _decode_tables(cursor)
    members = decode_runs(cursor, len(sizes), len(classes))
    counts = [count_of(size, classes[member]) for size, member in zip(sizes, members, strict=True)]
    totals = [0] * len(classes)
    for own, member in zip(counts, members, strict=True):
        totals[member] += own
    rows = [
        coder.decode(cursor, total, len(table))
        for total, table in zip(totals, classes, strict=True)
    ]
    cursor.end()
    steps = []
    for count, member in zip(counts, members, strict=True):
        steps.append(classes[member].step(rows[member][:count]))
        rows[member] = rows[member][count:]
    return steps


def joined(rows: Sequence[Symbols]) -> Symbols:
    """Rows of symbols as one, in the smallest type that all of them fit in."""
    return np.ascontiguousarray(rows[0]) if len(rows) == 1 else np.concatenate(rows)


def coder_of(pipeline: Pipeline) -> Coder:
    coder = pipeline.find(Coder)
    if coder is None:
        raise WrongUsage(f"pipeline {pipeline.text} has no coder of steps")
    return coder


def encode_table(table: Table) -> bytes:
    if len(table) > _MOST_SYMBOLS or any(table.data[: table.width]):
        raise WrongUsage("a table has up to 65,536 numbers, the first of them +0.0")
    code = DTYPES.index(table.dtype) | (_ROOT if table.root else 0)
    if _infinite(np.frombuffer(table.data, f"<u{table.width}"), table.dtype):
        raise WrongUsage("a table has a number that is infinite or none")
    head = bytes((code,)) + varint(len(table) - 1)
    if len(table) == 1:
        return head
    rows = np.frombuffer(table.data, np.uint8).reshape(-1, table.width)[1:]
    used = np.flatnonzero(rows.any(axis=0))
    kept = table.width - int(used[0]) if len(used) else 1
    return head + bytes((kept,)) + rows[:, table.width - kept :].tobytes()


def _decode_tables(cursor: Cursor) -> list[Table]:
    count = cursor.varint()
    if count > cursor.left:
        raise DamagedData("more tables than there is data")
    return [decode_table(cursor) for _ in range(count)]


def decode_table(cursor: Cursor) -> Table:
    code, count = cursor.byte(), cursor.varint()
    if code >= 2 * _ROOT or count >= _MOST_SYMBOLS:
        raise DamagedData("a table of numbers of no known kind")
    dtype = DTYPES[code % _ROOT]
    width = FORMATS[dtype].width
    kept = cursor.byte() if count else 1
    if not 1 <= kept <= width:
        raise DamagedData(f"numbers of {kept} bytes are not {dtype}")
    stored = np.frombuffer(cursor.take(count * kept), np.uint8).reshape(count, kept)
    rows: NDArray[np.uint8] = np.zeros((count + 1, width), np.uint8)
    rows[1:, width - kept :] = stored
    if _infinite(rows.view(f"<u{width}"), dtype):
        raise DamagedData("a table has a number that is infinite or none")
    return Table(dtype, code >= _ROOT, rows.tobytes())


def _infinite(words: NDArray[Any], dtype: str) -> bool:
    """Whether a word stands for an infinity or for no number."""
    exponent = FORMATS[dtype].exponent
    return bool((words & exponent == exponent).any())


def encode_runs(members: Sequence[int]) -> bytes:
    runs = ((len(list(run)), member) for member, run in groupby(members))
    return b"".join(varint(length) + varint(member) for length, member in runs)


def decode_runs(cursor: Cursor, count: int, classes: int) -> list[int]:
    members: list[int] = []
    while len(members) < count:
        length, member = cursor.varint(), cursor.varint()
        if not 0 < length <= count - len(members) or member >= classes:
            raise DamagedData("steps name more members or tables than there are")
        members += [member] * length
    return members


def count_of(size: int, table: Table) -> int:
    if size % table.width:
        raise DamagedData(f"{size} bytes are not whole {table.dtype} elements")
    return size // table.width
