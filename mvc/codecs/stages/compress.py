"""General compression of each stream on its own, and storing without any.

VSOL compares bz2, zlib, zstd, brotli and lzma at several levels (thesis §3.2.7, §4.7.1);
the parameters behind ``zstd:huff`` were found by measurement.
"""

from __future__ import annotations

from typing import ClassVar

from mvc.codecs import frames
from mvc.codecs.stages.base import CODINGS_2, WORDS, Kind, Stage, whole
from mvc.codecs.streams import Bytes, Parts, decode_stream, encode_stream
from mvc.codecs.varint import Cursor
from mvc.errors import InvalidPipeline

__all__ = ["GENERAL", "Compressor", "Raw", "Zstd"]


class Compressor(Stage):
    """Compresses streams of bytes."""

    takes = WORDS | {Kind.STREAMS}
    gives = Kind.BYTES
    needs = "words or streams, not bytes, before it"
    levels: ClassVar[tuple[int, int]]
    default: ClassVar[str] = ""

    @classmethod
    def read(cls, name: str, parameter: str) -> Stage:
        """``name:LEVEL``."""
        level = whole(f"{name}:{parameter}", "its level", parameter or cls.default, *cls.levels)
        return cls(f"{name}:{level}")

    @property
    def method(self) -> str:
        """What ``streams`` calls it."""
        return self.text

    def encode(self, stream: Bytes) -> Parts:
        """Parts to be joined."""
        return encode_stream(stream, self.method)

    def decode(self, cursor: Cursor, count: int, slot: str) -> Bytes | int:
        """A stream of ``count`` bytes, or its value if it is constant."""
        return decode_stream(cursor, count, slot, method=self.method)


class Zstd(Compressor):
    """Entropy coding of each stream on its own."""

    usage = "zstd:1..22|huff"
    about = "zstd at a level, or tuned to Huffman coding (huff)"
    levels = (1, frames.MAX_LEVEL)

    @classmethod
    def read(cls, name: str, parameter: str) -> Stage:
        """``zstd:LEVEL`` or ``zstd:huff``."""
        if not parameter:
            raise InvalidPipeline(
                f"stage {name}: its level is not given",
                hint=f"use zstd:huff or zstd:1 to zstd:{frames.MAX_LEVEL}",
            )
        frames.check_method(parameter)
        if parameter == frames.HUFFMAN:
            return cls(f"{name}:{parameter}")
        level = int(parameter)
        return (cls if level <= frames.FIRST_LEVELS else ZstdUltra)(f"{name}:{level}")

    @property
    def method(self) -> str:
        """The parameter: a level, or ``huff``."""
        return self.text.partition(":")[2]


class ZstdUltra(Zstd):
    """The highest levels."""

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


class Raw(Stage):
    """Stores words as they are."""

    usage = "raw"
    about = "nothing further: words are stored as they are"
    takes = frozenset({Kind.TENSOR, Kind.DIFFERENCES, Kind.PATTERNS, Kind.RESET})
    gives = Kind.BYTES
    needs = "to stand alone or right after a delta"
