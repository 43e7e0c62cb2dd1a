"""The stages of a pipeline: a closed table of small classes.

A stage is typed by what it takes and gives, by scope and by direction, so that
a wrong order is refused when a pipeline is built. Data names a stage only by
its text, and only what is in this table can be named.

    sub, xor          pair of tensors -> words     undirected deltas
    zigzag            differences -> words         signs folded into the lowest bit
    elide             words -> fewer words         a bitmap marks the changed ones
    planes            words -> streams             one per byte of a word
    planes:all        the same, over all tensors of a record (scope group)
    zstd:N, zstd:huff words or streams -> bytes    entropy coding
    raw               words -> bytes               nothing

Sources: XOR and byte planes are VSOL's delta creator and format rearrangement
(thesis §3.2; form 2, "by byte segments"); the parameters behind ``huff`` and
the elision of unchanged elements were found by measurement.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from mvc.codecs import frames, words
from mvc.codecs.scratch import scratch_words
from mvc.codecs.streams import Bytes, Parts, decode_marks, decode_stream, encode_stream
from mvc.codecs.varint import Cursor
from mvc.codecs.words import Words
from mvc.errors import InvalidPipeline

__all__ = ["STAGES", "Elide", "Kind", "Operator", "Planes", "Raw", "Stage", "Zigzag", "Zstd"]

Scope = Literal["tensor", "group"]


class Kind(enum.Enum):
    """What flows between two stages."""

    TENSOR = "a tensor's words"
    PAIR = "a tensor and its base"
    DIFFERENCES = "wrap-around differences"
    PATTERNS = "exclusive-or patterns"
    FOLDED = "folded differences"
    KEPT = "the changed words"
    STREAMS = "byte streams"
    BYTES = "bytes"


_WORDS = frozenset({Kind.TENSOR, Kind.DIFFERENCES, Kind.PATTERNS, Kind.FOLDED, Kind.KEPT})


@dataclass(frozen=True)
class Stage:
    """Name and parameter as written; what it takes and gives."""

    text: str
    takes: ClassVar[frozenset[Kind]]
    gives: ClassVar[Kind]
    needs: ClassVar[str]
    scope: ClassVar[Scope] = "tensor"
    direction: ClassVar[Literal["undirected", "forward"]] = "undirected"
    delta: ClassVar[bool] = False  # only meant for deltas, absent from full records


class Operator(Stage):
    """``sub`` or ``xor``: the delta between a tensor and its base."""

    takes = frozenset({Kind.PAIR})
    needs = "to stand first"
    delta = True

    def encode(self, new: Words, base: Words, out: Words) -> None:
        """``out`` = the delta from ``base`` to ``new``."""
        words.difference(self.text, new, base, out)

    def decode(self, state: Words, delta: Words, *, reverse: bool) -> None:
        """Move ``state`` along ``delta`` in place."""
        words.move(self.text, state, delta, reverse=reverse)


class Sub(Operator):
    """Wrap-around subtraction."""

    gives = Kind.DIFFERENCES


class Xor(Operator):
    """Exclusive or."""

    gives = Kind.PATTERNS


class Zigzag(Stage):
    """Folds the sign of a difference into its lowest bit."""

    takes = frozenset({Kind.DIFFERENCES})
    gives = Kind.FOLDED
    needs = "the differences of sub directly before it"
    delta = True

    def encode(self, data: Words) -> None:
        """In place."""
        words.zigzag(data, scratch_words("zigzag", len(data), data.itemsize))

    def decode(self, data: Words) -> None:
        """In place."""
        words.unzigzag(data, scratch_words("zigzag", len(data), data.itemsize))


class Elide(Stage):
    """Leaves out the words that are zero, where enough of them are."""

    takes = frozenset({Kind.DIFFERENCES, Kind.PATTERNS, Kind.FOLDED})
    gives = Kind.KEPT
    needs = "a delta (sub or xor) before it"
    delta = True

    SHARE = 0.92  # of changed words; above it the bitmap costs more than it saves

    def encode(self, data: Words, marked: Words, changed: int) -> Words:
        """The ``changed`` words of ``data`` where ``marked`` is true (scratch)."""
        kept = scratch_words("kept", changed, data.itemsize)
        np.compress(marked, data, out=kept)
        return kept

    def decode(self, kept: Words, positions: Words, out: Words) -> None:
        """``out`` = zeros, with ``kept`` at ``positions``."""
        out.fill(0)
        out[positions] = kept

    def encode_marks(self, marked: Words) -> Parts:
        """The bitmap; idle units leave it repeating at the length of a row."""
        return encode_stream(np.packbits(marked), self.METHOD, repeats=True)

    METHOD = "1"

    def decode_marks(self, cursor: Cursor, count: int) -> Words:
        """Positions of the kept words among ``count``."""
        return decode_marks(cursor, count, "mask")


class Planes(Stage):
    """Byte i of every word, for each i: bytes of like meaning side by side."""

    takes = _WORDS
    gives = Kind.STREAMS
    needs = "words, not bytes or streams, before it"

    def encode(self, data: Words) -> list[Bytes]:
        """One stream per byte of a word, lowest first (scratch)."""
        return _split(data, "half")

    def decode(self, planes: list[Bytes | int], out: Words) -> None:
        """``out`` = the words whose bytes are ``planes``."""
        _join(planes, out, "half")


def _split(data: Words, slot: str) -> list[Bytes]:
    """By halves: the narrower the words, the more of them a processor handles at once."""
    half = data.itemsize // 2
    if not half:
        return [data.view(np.uint8)]
    spare = scratch_words("shifted", len(data), data.itemsize)
    np.right_shift(data, 8 * half, out=spare)
    low = scratch_words(slot + "0", len(data), half)
    high = scratch_words(slot + "1", len(data), half)
    np.copyto(low, data, casting="unsafe")
    np.copyto(high, spare, casting="unsafe")
    return _split(low, slot + "0") + _split(high, slot + "1")


def _join(planes: list[Bytes | int], out: Words, slot: str) -> None:
    half = len(planes) // 2
    if all(isinstance(plane, int) for plane in planes):
        out.fill(sum(plane << 8 * i for i, plane in enumerate(planes)))
    elif not half:
        out[:] = planes[0]
    else:
        low = _half(planes[:half], len(out), slot + "0")
        high = _half(planes[half:], len(out), slot + "1")
        if isinstance(high, int):
            np.copyto(out, low)
            if high:
                np.bitwise_or(out, out.dtype.type(high << 8 * half), out=out)
        else:
            np.copyto(out, high)
            np.left_shift(out, 8 * half, out=out)
            np.bitwise_or(out, low, out=out)


def _half(planes: list[Bytes | int], count: int, slot: str) -> Words | int:
    """The words of these planes, or their value if all are constant."""
    if len(planes) == 1:
        return planes[0]
    if all(isinstance(plane, int) for plane in planes):
        return sum(int(plane) << 8 * i for i, plane in enumerate(planes))
    out = scratch_words(slot, count, len(planes))
    _join(planes, out, slot)
    return out


class PlanesOfAll(Planes):
    """Planes over the concatenation of all tensors of a record."""

    scope = "group"


class Zstd(Stage):
    """Entropy coding of each stream on its own."""

    takes = _WORDS | {Kind.STREAMS}
    gives = Kind.BYTES
    needs = "words or streams, not bytes, before it"

    @property
    def method(self) -> str:
        """The parameter: a level, or ``huff``."""
        return self.text.partition(":")[2]

    def encode(self, stream: Bytes) -> Parts:
        """Parts to be joined."""
        return encode_stream(stream, self.method)

    def decode(self, cursor: Cursor, count: int, slot: str) -> Bytes | int:
        """A stream of ``count`` bytes, or its value if it is constant."""
        return decode_stream(cursor, count, slot)


class Raw(Stage):
    """Stores words as they are."""

    takes = frozenset({Kind.TENSOR, Kind.DIFFERENCES, Kind.PATTERNS})
    gives = Kind.BYTES
    needs = "to stand alone or right after a delta"


def _plain(kind: type[Stage]) -> Callable[[str, str], Stage]:
    def build(name: str, parameter: str) -> Stage:
        if parameter:
            raise InvalidPipeline(f"stage {name} takes no parameter, not {parameter!r}")
        return kind(name)

    return build


def _planes(name: str, parameter: str) -> Stage:
    if parameter not in ("", "all"):
        raise InvalidPipeline(f"stage {name}:{parameter} does not exist", hint="use planes:all")
    return PlanesOfAll(f"{name}:all") if parameter else Planes(name)


def _zstd(name: str, parameter: str) -> Stage:
    frames.check_method(parameter)
    return Zstd(f"{name}:{parameter if parameter == frames.HUFFMAN else int(parameter)}")


STAGES: dict[str, Callable[[str, str], Stage]] = {
    "sub": _plain(Sub),
    "xor": _plain(Xor),
    "zigzag": _plain(Zigzag),
    "elide": _plain(Elide),
    "planes": _planes,
    "zstd": _zstd,
    "raw": _plain(Raw),
}
