"""Reads canonical bytes that differ from known ones in a few fields alone.

A history holds many values of one form: versions of one model, each with other ids and sizes.
Comparing all other bytes at once, and taking all fields at once, costs a fraction of reading
them one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from struct import Struct
from typing import Generic, TypeVar

_V = TypeVar("_V")

Field = tuple[int, int, bool]
"""First byte and end; whether it is a number, of which every value is as good."""


class FormLayout:
    """Where the fields lie that may differ."""

    def __init__(self, data: bytes, fields: Sequence[Field]) -> None:
        """``fields``: in ascending order. A number takes as many bytes in all values."""
        same = bytearray(b"\xff") * len(data)
        parts, at = [], 0
        for begin, end, is_number in fields:
            # What is left of a number says where it ends.
            same[begin:end] = (b"\x80" if is_number else b"\0") * (end - begin)
            parts.append(f"{begin - at}x{end - begin}s")
            at = end
        self._mask = int.from_bytes(same, "little")
        self._fixed = int.from_bytes(data, "little") & self._mask
        self._parts = Struct("".join(parts) + f"{len(data) - at}x")

    def read(self, data: bytes) -> tuple[bytes, ...] | None:
        """The fields of ``data``; None if it differs in anything else."""
        if len(data) != self._parts.size:
            return None
        if int.from_bytes(data, "little") & self._mask != self._fixed:
            return None
        return self._parts.unpack(data)


class Forms(Generic[_V]):
    """The layouts that values of one kind have had last, by length.

    ``make``: the value with other fields that is like a known one in all else; ValueError if the
    fields are wrong.
    """

    def __init__(self, make: Callable[[_V, Sequence[bytes]], _V]) -> None:
        self._make = make
        self._known: dict[int, tuple[FormLayout, _V]] = {}
        self._credit = float(_MOST)  # layouts to learn; more for each that is of use

    def read(self, data: bytes) -> _V | None:
        """The value; None if it is of an unknown form, or damaged."""
        found = self._known.get(len(data))
        fields = None if found is None else found[0].read(data)
        if found is None or fields is None:
            return None
        try:
            value = self._make(found[1], fields)
        except ValueError:
            return None
        self._credit += 1
        return value

    def add(self, data: bytes, fields: Sequence[Field], value: _V) -> None:
        """Makes known what was read from ``data``, unless that is long or learning does not pay."""
        self._credit += _RETRY
        if len(data) <= _LONGEST and self._credit >= 1:
            self._credit -= 1
            if len(self._known) >= _MOST:
                self._known.clear()
            self._known[len(data)] = FormLayout(data, fields), value


_LONGEST, _MOST = 1 << 16, 64
_RETRY = 1 / 16  # a layout is learned for so many values that had none of use


@lru_cache(maxsize=4096)  # times and sizes recur
def number(field: bytes, limit: int = (1 << 64) - 1) -> int:
    r"""The number in a field; ValueError if it is larger, or has redundant bytes.

    >>> number(b"\xac\x02")
    300
    """
    value = field[-1]
    if not value and len(field) > 1:
        raise ValueError("redundant bytes")
    for byte in field[-2::-1]:
        value = value << 7 | byte & 0x7F
    if value > limit:
        raise ValueError(f"more than {limit}")
    return value
