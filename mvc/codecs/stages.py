"""The stages by which tensors are stored and come back exactly (docs/pipelines.md).

XOR, byte planes and the choice of compressors are VSOL's (thesis §3.2.3, §3.2.6, §3.2.7).
The parameters behind ``zstd:huff`` were found by measurement. Where a tensor is on no grid
(integers, entries taken over exactly, the first version of a constant one) a delta of ``steps``
is an exclusive or, coded as byte planes.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from mvc.codecs.compressors import HUFFMAN
from mvc.codecs.sparse import OPTIONS, decode_sparse, encode_sparse
from mvc.codecs.stage import DELTAS, STAGES, WORDS, Kind, Stage, whole
from mvc.codecs.streams import Parts, decode_segments, decode_stream, encode_segments, encode_stream
from mvc.codecs.varint import Cursor
from mvc.codecs.words import Bytes, Words, join, scratch_words, split, unzigzag, zigzag
from mvc.errors import InvalidPipeline
from mvc.types import FIRST_RELEASE as FIRST

BLOCK = 1 << 18
"""Words of a group that are worked on at once, to stay in the processor's cache."""


class _Delta(Stage, frozen=True):
    takes = frozenset({Kind.PAIR, Kind.CHOSEN})
    needs = "to stand first, or right after the choice of what changes"
    delta = True
    feature = FIRST


class Sub(_Delta, frozen=True):
    """delta: wrap-around integer subtraction of the base's words"""

    usage = "sub"
    gives = Kind.DIFFERENCES
    operator = "sub"


class Xor(_Delta, frozen=True):
    """delta: exclusive or with the base's words"""

    usage = "xor"
    gives = Kind.PATTERNS
    operator = "xor"


class WholeSteps(_Delta, frozen=True):
    """delta: whole steps on a tensor's grid (exclusive or where it is on none)"""

    usage = "steps"
    gives = Kind.STEPS
    operator = "xor"
    feature = STAGES


class Zigzag(Stage, frozen=True):
    """folds the sign of a difference into its lowest bit"""

    usage = "zigzag"
    takes = frozenset({Kind.DIFFERENCES})
    gives = Kind.FOLDED
    needs = "the differences of sub directly before it"
    delta = True
    feature = FIRST


class Elide(Stage, frozen=True):
    """leaves out unchanged words and marks the others in a bitmap"""

    usage = "elide"
    takes = DELTAS
    gives = Kind.KEPT
    needs = "a delta (sub or xor) before it"
    delta = True
    feature = FIRST


class StreamLayout(Stage, frozen=True):
    """How words become streams of bytes: the base class lays them out one after the other.

    ``method`` is the compressor's, ``folded`` whether signs are folded, ``marks`` a bitmap of the
    words to take.
    """

    feature = FIRST
    splits: ClassVar[bool] = False  # into byte planes
    on_grid: ClassVar[bool] = False  # words on a grid are coded by ``mvc.codecs.steps``

    def encode(
        self, data: Words, method: str | None, *, folded: bool, marks: Bytes | None = None
    ) -> Parts:
        """The streams of a chunk; ``data`` may be changed."""
        if marks is not None:
            taken = np.unpackbits(marks, count=len(data)).view(np.bool_)
            kept = scratch_words("kept", int(np.count_nonzero(taken)), data.itemsize)
            data = np.compress(taken, data, out=kept)
        if folded:
            zigzag(data)
        return self.encode_joined(data, method)

    def decode(
        self, cursor: Cursor, words: Words, method: str | None, *, folded: bool
    ) -> tuple[Words, Words | None]:
        """The words of a chunk, in ``words`` or not; their positions where not all are there."""
        words.view(np.uint8)[:] = decode_stream(cursor, words.nbytes, method, "plane")
        if folded:
            unzigzag(words)
        return words, None

    def encode_joined(self, data: Words, method: str | None) -> Parts:
        """The streams of the words of a group's members, which are folded already."""
        return encode_stream(data.view(np.uint8), method)

    def decode_joined(self, cursor: Cursor, words: Words, method: str | None) -> None:
        """Fills ``words``, which are zeros, as ``encode_joined`` was given them."""
        raise NotImplementedError


class Planes(StreamLayout, frozen=True):
    """byte planes: of each tensor, or (all, concat) of all tensors of a record"""

    usage = "planes[:all|concat]"
    takes = WORDS
    gives = Kind.STREAMS
    needs = "words, not bytes or streams, before it"
    splits = True

    @classmethod
    def read(cls, name: str, parameter: str) -> Stage:
        if cls is not Planes:  # those for words on a grid
            return super().read(name, parameter)
        kinds = {"": Planes, "all": PlanesOfAll, "concat": PlanesOfJoined}
        if parameter not in kinds:
            raise InvalidPipeline(
                f"stage {name}:{parameter} does not exist", hint="use planes:all or planes:concat"
            )
        return kinds[parameter](f"{name}:{parameter}" if parameter else name)

    def encode(
        self, data: Words, method: str | None, *, folded: bool, marks: Bytes | None = None
    ) -> Parts:
        streams = split(data, marks=marks, folded=folded)
        return [part for stream in streams for part in encode_stream(stream, method)]

    def decode(
        self, cursor: Cursor, words: Words, method: str | None, *, folded: bool
    ) -> tuple[Words, Words | None]:
        slots = (f"plane{i}" for i in range(words.itemsize))
        join([decode_stream(cursor, len(words), method, s) for s in slots], words, folded=folded)
        return words, None

    def encode_joined(self, data: Words, method: str | None) -> Parts:
        planes = np.empty((data.itemsize, len(data)), np.uint8)
        for at in range(0, len(data), BLOCK):
            for plane, part in zip(planes, split(data[at : at + BLOCK]), strict=True):
                plane[at : at + BLOCK] = part
        return [part for plane in planes for part in encode_segments(plane, method)]

    def decode_joined(self, cursor: Cursor, words: Words, method: str | None) -> None:
        planes = np.empty((words.itemsize, len(words)), np.uint8)
        for plane in planes:
            decode_segments(cursor, plane, method)
        for start in range(0, len(words), BLOCK):
            cut = slice(start, start + BLOCK)
            join(list(planes[:, cut]), words[cut])


class PlanesOfAll(Planes, frozen=True):
    """Planes over all tensors of a record (form 2)."""

    scope = "group"


class PlanesOfJoined(PlanesOfAll, frozen=True):
    """The same bytes from the tensors joined first (form 3)."""

    feature = STAGES


class Sparse(StreamLayout, frozen=True):
    """positions and values of what changed; all options unless some are named"""

    options: frozenset[str]
    usage = "sparse[:none|values,layers,indices,diff]"
    takes = DELTAS
    gives = Kind.STREAMS
    feature = STAGES
    needs = "a delta (sub or xor) before it"
    delta = True

    @classmethod
    def read(cls, name: str, parameter: str) -> Stage:
        if not parameter:
            return SparseOfAll(name, frozenset(OPTIONS))
        chosen = [] if parameter == "none" else [p.strip() for p in parameter.split(",")]
        wrong = next((p for p in chosen if p not in OPTIONS or chosen.count(p) > 1), None)
        if wrong is not None:
            raise InvalidPipeline(
                f"stage {name} has no option {wrong!r}, or has it twice",
                hint=f"use {name}:none, or some of {', '.join(OPTIONS)}",
            )
        text = ",".join(o for o in OPTIONS if o in chosen) or "none"
        text = name if len(chosen) == len(OPTIONS) else f"{name}:{text}"
        kind = SparseOfAll if "layers" in chosen else Sparse
        return kind(text, frozenset(chosen))

    def full(self) -> Stage | None:
        """Planes of the values: no word of a full record counts as unchanged."""
        if "values" not in self.options:
            return None
        return PlanesOfAll("planes:all") if self.scope == "group" else Planes("planes")

    def decode(
        self, cursor: Cursor, words: Words, method: str | None, *, folded: bool
    ) -> tuple[Words, Words | None]:
        values, at = decode_sparse(cursor, len(words), words.itemsize, self.options, method=method)
        if folded:
            unzigzag(values)
        return values, at

    def encode_joined(self, data: Words, method: str | None) -> Parts:
        return encode_sparse(data, self.options, method)

    def decode_joined(self, cursor: Cursor, words: Words, method: str | None) -> None:
        values, at = self.decode(cursor, words, method, folded=False)
        words[slice(None) if at is None else at] = values


class SparseOfAll(Sparse, frozen=True):
    """``sparse`` over the words of all tensors of a record, joined."""

    scope = "group"


class _OnGrid(Planes, frozen=True):
    feature = STAGES
    on_grid = True


class Gaps(_OnGrid, frozen=True):
    """codes steps: Rice codes of the gaps between the entries that moved, and signs"""

    usage = "gaps"
    takes = frozenset({Kind.STEPS})
    needs = "the steps of the stage steps before it"

    def full(self) -> Stage:
        """Full records hold the multiples themselves."""
        return Lattice("lattice")


class Lattice(_OnGrid, frozen=True):
    """full records on a grid: how many steps every entry is from zero"""

    usage = "lattice"
    takes = frozenset({Kind.TENSOR})
    needs = "to stand first, without a delta"


class Compressor(Stage, frozen=True):
    """Compresses each stream of bytes on its own."""

    feature = FIRST
    takes = WORDS | {Kind.STREAMS}
    gives = Kind.BYTES
    needs = "words or streams, not bytes, before it"
    levels: ClassVar[tuple[int, int]]
    default: ClassVar[str] = ""

    @property
    def acts_on(self) -> str:
        return "the bytes"

    @classmethod
    def read(cls, name: str, parameter: str) -> Stage:
        low, high = cls.levels
        text = parameter or cls.default
        level = whole(f"{name}:{parameter}", "its level", text, low=low, high=high)
        return cls(f"{name}:{level}")

    @property
    def method(self) -> str:
        """What ``mvc.codecs.compressors`` calls it."""
        return self.text.removeprefix("zstd:")


class Zstd(Compressor, frozen=True):
    """zstd at a level, or tuned to Huffman coding (huff)"""

    usage = "zstd:1..22|huff"

    @classmethod
    def read(cls, name: str, parameter: str) -> Stage:
        if parameter == HUFFMAN:
            return cls(f"{name}:{parameter}")
        level = int(parameter) if parameter.isascii() and parameter.isdigit() else 0
        if not 1 <= level <= 22:
            wrong = f"{name}:{parameter} does not exist"
            raise InvalidPipeline(
                wrong if parameter else f"stage {name}: its level is not given",
                hint="use zstd:huff or zstd:1 to zstd:22",
            )
        return (cls if level <= 19 else ZstdUltra)(f"{name}:{level}")


class ZstdUltra(Zstd, frozen=True):
    """The highest levels; the window is never larger than the data, a few MiB at most."""

    feature = STAGES


def _general(
    name: str, usage: str, about: str, most: int, *, default: str = ""
) -> type[Compressor]:
    """A compressor from outside that takes a level; brotli's and lzma's levels begin at 0."""
    levels = (0 if name in {"lzma", "brotli"} else 1, most)
    members = {"usage": usage, "__doc__": about, "levels": levels, "default": default}
    return type(name.capitalize(), (Compressor,), {**members, "feature": STAGES})


GENERAL = {
    "zlib": _general("zlib", "zlib:1..9", "zlib (deflate) at a level", 9),
    "bz2": _general("bz2", "bz2:1..9", "bzip2 at a level", 9),
    "lzma": _general(
        "lzma", "lzma[:0..9]", "lzma at a level (6 unless said otherwise)", 9, default="6"
    ),
    "brotli": _general("brotli", "brotli:0..11", "brotli at a level (needs the extra brotli)", 11),
}
"""Compressors beside zstd, by name."""


class Raw(Stage, frozen=True):
    """nothing further: words are stored as they are"""

    usage = "raw"
    feature = FIRST
    takes = frozenset({Kind.TENSOR, Kind.DIFFERENCES, Kind.PATTERNS, Kind.RESET})
    gives = Kind.BYTES
    needs = "to stand alone or right after a delta"
