"""The stages by which tensors are stored and come back exactly.

XOR is VSOL's delta creator (thesis §3.2.3). Its byte segmentation has three forms (§3.2.6):
(1) each tensor's planes by themselves; (2) plane i of all tensors of a record, one after the
other, for each i; (3) the same bytes as (2), made by joining the tensors first. It compares
bz2, zlib, zstd, brotli and lzma at several levels (§3.2.7, §4.7.1); the parameters behind
``zstd:huff`` were found by measurement.

``steps`` is the delta between two versions of weights on a grid, ``gaps`` codes which entries
moved, and ``lattice`` is what full records are coded with. Where a tensor is on no grid
(integers, entries taken over exactly, the first version of a constant one) a delta is an
exclusive or, coded as byte planes. Nothing of this is in the thesis but the idea to quantise
instead of resetting bits (its future work).
"""

from __future__ import annotations

from typing import ClassVar

from mvc.codecs.compressors import HUFFMAN
from mvc.codecs.sparse import OPTIONS
from mvc.codecs.stages.base import CODINGS_2, DELTAS, WORDS, Kind, Stage, whole
from mvc.errors import InvalidPipeline


class Operator(Stage, frozen=True):
    """The delta between a tensor and its base."""

    takes = frozenset({Kind.PAIR, Kind.CHOSEN})
    needs = "to stand first, or right after the choice of what changes"
    delta = True


class Sub(Operator, frozen=True):
    """Wrap-around subtraction."""

    usage = "sub"
    about = "delta: wrap-around integer subtraction of the base's words"
    gives = Kind.DIFFERENCES


class Xor(Operator, frozen=True):
    """Exclusive or."""

    usage = "xor"
    about = "delta: exclusive or with the base's words"
    gives = Kind.PATTERNS


class Steps(Operator, frozen=True):
    """Whole steps on a tensor's grid; patterns where it is on none."""

    usage = "steps"
    about = "delta: whole steps on a tensor's grid (exclusive or where it is on none)"
    gives = Kind.STEPS
    feature = CODINGS_2


class Zigzag(Stage, frozen=True):
    """Folds the sign of a difference into its lowest bit."""

    usage = "zigzag"
    about = "folds the sign of a difference into its lowest bit"
    takes = frozenset({Kind.DIFFERENCES})
    gives = Kind.FOLDED
    needs = "the differences of sub directly before it"
    delta = True


class Elide(Stage, frozen=True):
    """Leaves out the words that are zero, where enough of them are."""

    usage = "elide"
    about = "leaves out unchanged words and marks the others in a bitmap"
    takes = DELTAS
    gives = Kind.KEPT
    needs = "a delta (sub or xor) before it"
    delta = True


class Planes(Stage, frozen=True):
    """Byte i of every word, for each i: bytes of like meaning side by side."""

    usage = "planes[:all|concat]"
    about = "byte planes: of each tensor, or (all, concat) of all tensors of a record"
    takes = WORDS
    gives = Kind.STREAMS
    needs = "words, not bytes or streams, before it"

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


class PlanesOfAll(Planes, frozen=True):
    """Planes over all tensors of a record (form 2)."""

    scope = "group"


class PlanesOfJoined(PlanesOfAll, frozen=True):
    """The same bytes from the tensors joined first (form 3)."""

    feature = CODINGS_2


class Sparse(Stage, frozen=True):
    """Positions and values of the words that are not zero, of every tensor by itself."""

    options: frozenset[str]
    usage = "sparse[:none|values,layers,indices,diff]"
    about = "positions and values of what changed; all options unless some are named"
    takes = DELTAS
    gives = Kind.STREAMS
    feature = CODINGS_2
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


class SparseOfAll(Sparse, frozen=True):
    """``sparse`` over the words of all tensors of a record, joined."""

    scope = "group"


class OnGrid(Planes, frozen=True):
    """Codes words on a grid (``mvc.codecs.steps``); byte planes for all others."""

    feature = CODINGS_2


class Gaps(OnGrid, frozen=True):
    """The gaps between the entries that moved, and how many steps each moved."""

    usage = "gaps"
    about = "codes steps: Rice codes of the gaps between the entries that moved, and signs"
    takes = frozenset({Kind.STEPS})
    needs = "the steps of the stage steps before it"

    def full(self) -> Stage:
        """Full records hold the multiples themselves."""
        return Lattice("lattice")


class Lattice(OnGrid, frozen=True):
    """The multiples of a tensor on a grid."""

    usage = "lattice"
    about = "full records on a grid: how many steps every entry is from zero"
    takes = frozenset({Kind.TENSOR})
    needs = "to stand first, without a delta"


class Compressor(Stage, frozen=True):
    """Compresses each stream of bytes on its own."""

    takes = WORDS | {Kind.STREAMS}
    gives = Kind.BYTES
    needs = "words or streams, not bytes, before it"
    levels: ClassVar[tuple[int, int]]
    default: ClassVar[str] = ""

    @classmethod
    def read(cls, name: str, parameter: str) -> Stage:
        level = whole(f"{name}:{parameter}", "its level", parameter or cls.default, *cls.levels)
        return cls(f"{name}:{level}")

    @property
    def method(self) -> str:
        """What ``mvc.codecs.compressors`` calls it."""
        return self.text.removeprefix("zstd:")


class Zstd(Compressor, frozen=True):
    """zstd at a level of the format's first version, or tuned to Huffman coding."""

    usage = "zstd:1..22|huff"
    about = "zstd at a level, or tuned to Huffman coding (huff)"

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

    feature = CODINGS_2


def _general(name: str, usage: str, about: str, most: int, default: str = "") -> type[Compressor]:
    """A compressor from outside that takes a level; brotli's and lzma's levels begin at 0."""
    levels = (0 if name in {"lzma", "brotli"} else 1, most)
    members = {"usage": usage, "about": about, "levels": levels, "default": default}
    return type(name.capitalize(), (Compressor,), {**members, "feature": CODINGS_2})


GENERAL = {
    "zlib": _general("zlib", "zlib:1..9", "zlib (deflate) at a level", 9),
    "bz2": _general("bz2", "bz2:1..9", "bzip2 at a level", 9),
    "lzma": _general("lzma", "lzma[:0..9]", "lzma at a level (6 unless said otherwise)", 9, "6"),
    "brotli": _general("brotli", "brotli:0..11", "brotli at a level (needs the extra brotli)", 11),
}
"""Compressors that came after the first version of the format, by name."""


class Raw(Stage, frozen=True):
    """Stores words as they are."""

    usage = "raw"
    about = "nothing further: words are stored as they are"
    takes = frozenset({Kind.TENSOR, Kind.DIFFERENCES, Kind.PATTERNS, Kind.RESET})
    gives = Kind.BYTES
    needs = "to stand alone or right after a delta"
