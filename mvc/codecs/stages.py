"""The lossless stages of pipelines, which encode and decode tensors exactly (docs/pipelines.md).

A *word* is the bits of one element, as an unsigned integer. The *byte planes* of a tensor are byte
0 of all words, then byte 1 of all words, and so on. A tensor is on a *grid* if its elements are
multiples of one power of two. For such a tensor, the stage ``steps`` computes changes in multiples
of this power of two. For any other tensor, ``steps`` computes an exclusive or, which is stored as
byte planes. XOR, byte planes and the choice of compressors are from C. Heitenberger's thesis
(§3.2.3, §3.2.6, §3.2.7).
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from mvc.codecs.compressors import Compressor
from mvc.codecs.sparse import OPTIONS, decode_sparse, encode_sparse
from mvc.codecs.stage import DELTAS, STAGES, WORDS, Costs, Kind, Stage, whole_number
from mvc.codecs.streams import (
    Parts,
    decode_array,
    decode_segments,
    decode_stream,
    encode_segments,
    encode_stream,
)
from mvc.codecs.varint import Cursor
from mvc.codecs.words import Bytes, Words, join, scratch_words, split, unzigzag, zigzag
from mvc.errors import InvalidPipeline
from mvc.types import FIRST_RELEASE as FIRST

_PLANES = tuple(f"plane{i}" for i in range(8))
BLOCK = 1 << 18
"""How many words of joined tensors are processed together, so that they stay in the CPU cache."""
LENGTHS = (18, 20, 22, 24, 34, 66, 84, 110, 136, 144, 176, 210)
"""Lengths in bytes of the blocks of the quantised types of GGUF that are in use."""
_SAMPLE = 2000  # about how many blocks ``_begins`` examines
_GAIN = 512  # bits that a cut must save (``_begins``); in random data, a cut saves about 200
_SPARSE = (0.0, 0.5)  # with a share of nonzero bytes in this range, a bitmap is stored


class _Delta(Stage, frozen=True):
    accepts = frozenset({Kind.PAIR, Kind.CHOSEN})
    needs = "to be first, or directly after the stage that chooses the changes"
    delta = True
    feature = FIRST


class Sub(_Delta, frozen=True):
    """delta: wrap-around integer subtraction of the base's words"""

    usage = "sub"
    returns = Kind.DIFFERENCES
    operator = "sub"
    costs: ClassVar[Costs] = {1: (0.0, 0.0), 2: (0.007, 0.0), 4: (0.007, 0.0), 8: (0.008, 0.0)}


class Xor(_Delta, frozen=True):
    """delta: exclusive or with the base's words"""

    usage = "xor"
    returns = Kind.PATTERNS
    operator = "xor"
    costs: ClassVar[Costs] = {1: (0.0, 0.0), 2: (0.007, 0.0), 4: (0.007, 0.0), 8: (0.009, 0.0)}


class WholeSteps(_Delta, frozen=True):
    """delta: whole steps on a tensor's grid (exclusive or if it has none)"""

    usage = "steps"
    returns = Kind.STEPS
    operator = "xor"
    feature = STAGES


class WordStage(Stage, frozen=True):
    """Maps each word to a word of the same width, and back. It maps 0 to 0."""

    accepts = WORDS
    needs = "words, not bytes or streams, before it"

    @abstractmethod
    def forward(self, words: Words) -> None:
        """Maps ``words`` in place."""

    @abstractmethod
    def back(self, words: Words) -> None:
        """Undoes ``forward``, in place."""


class Zigzag(WordStage, frozen=True):
    """folds the sign of a difference into its lowest bit"""

    usage = "zigzag"
    accepts = frozenset({Kind.DIFFERENCES})
    returns = Kind.FOLDED
    needs = "the differences of sub directly before it"
    delta = True
    feature = FIRST

    def forward(self, words: Words) -> None:
        zigzag(words)

    def back(self, words: Words) -> None:
        unzigzag(words)


class Elide(Stage, frozen=True):
    """leaves out unchanged words and marks the others in a bitmap"""

    usage = "elide"
    accepts = DELTAS
    returns = Kind.KEPT
    needs = "a delta (sub or xor) before it"
    delta = True
    feature = FIRST
    costs: ClassVar[Costs] = {1: (0.66, 0.0), 2: (0.014, 0.0), 4: (0.0, 0.0), 8: (0.0, 0.0)}


class StreamLayout(Stage, frozen=True):
    """Turns words into streams of bytes. This base class stores the words one after another.

    ``method``: the compressor. ``marks``: a bitmap of the words to store. ``folds``: whether to
    apply zigzag, too. mvc encodes a sample of a tensor to estimate its encoded size. ``unit``: the
    length of a sample is a multiple of this number of bytes.
    """

    folds: bool = False
    unit: int = 64
    returns = Kind.STREAMS
    feature = FIRST
    splits: ClassVar[bool] = False  # into byte planes
    on_grid: ClassVar[bool] = False  # words on a grid are coded by ``mvc.codecs.steps``

    def encode(self, data: Words, method: Compressor | None, marks: Bytes | None = None) -> Parts:
        """Encodes the words of a chunk. May overwrite ``data``."""
        if marks is not None:
            flags = np.unpackbits(marks, count=len(data)).view(np.bool_)
            included = scratch_words("kept", int(np.count_nonzero(flags)), data.itemsize)
            data = np.compress(flags, data, out=included)
        return self.encode_joined(data, method)

    def decode(
        self, cursor: Cursor, words: Words, method: Compressor | None
    ) -> tuple[Words, Words | None]:
        """Decodes a chunk to words and their positions (None if all words are stored).

        ``words``: memory for all words of the chunk, which the result may use.
        """
        words.view(np.uint8)[:] = decode_stream(cursor, words.nbytes, method, "plane")
        return words, None

    def encode_joined(self, data: Words, method: Compressor | None) -> Parts:
        """Encodes the joined words of several tensors. May overwrite ``data``."""
        return encode_stream(data.view(np.uint8), method)

    def decode_joined(self, cursor: Cursor, words: Words, method: Compressor | None) -> None:
        """Decodes the joined words of several tensors into ``words``, which contains zeros."""
        raise NotImplementedError


class Planes(StreamLayout, frozen=True):
    """byte planes: of each tensor, or (all, concat) of all tensors of a record"""

    usage = "planes[:all|concat]"
    accepts = WORDS
    needs = "words, not bytes or streams, before it"
    splits = True
    costs: ClassVar[Costs] = {1: (0.021, 0.0), 2: (0.02, 0.0), 4: (0.022, 0.0), 8: (0.022, 0.0)}

    @classmethod
    def read(cls, name: str, parameter: str) -> Stage:
        if cls is not Planes:  # a subclass, which takes no parameter
            return super().read(name, parameter)
        kinds = {"": Planes, "all": PlanesOfAll, "concat": PlanesOfJoined}
        if parameter not in kinds:
            raise InvalidPipeline(
                f"stage {name}:{parameter} does not exist", hint="use planes:all or planes:concat"
            )
        return kinds[parameter](f"{name}:{parameter}" if parameter else name)

    def encode(self, data: Words, method: Compressor | None, marks: Bytes | None = None) -> Parts:
        streams = split(data, marks=marks, folded=self.folds)
        return [part for stream in streams for part in encode_stream(stream, method)]

    def decode(
        self, cursor: Cursor, words: Words, method: Compressor | None
    ) -> tuple[Words, Words | None]:
        slots = _PLANES[: words.itemsize]
        streams = [decode_stream(cursor, len(words), method, slot) for slot in slots]
        join(streams, words, folded=self.folds)
        return words, None

    def encode_joined(self, data: Words, method: Compressor | None) -> Parts:
        planes = np.empty((data.itemsize, len(data)), np.uint8)
        for at in range(0, len(data), BLOCK):
            parts = split(data[at : at + BLOCK], folded=self.folds)
            for plane, part in zip(planes, parts, strict=True):
                plane[at : at + BLOCK] = part
        return [part for plane in planes for part in encode_segments(plane, method)]

    def decode_joined(self, cursor: Cursor, words: Words, method: Compressor | None) -> None:
        planes = np.empty((words.itemsize, len(words)), np.uint8)
        for plane in planes:
            decode_segments(cursor, plane, method)
        for start in range(0, len(words), BLOCK):
            cut = slice(start, start + BLOCK)
            join(list(planes[:, cut]), words[cut], folded=self.folds)


class PlanesOfAll(Planes, frozen=True):
    """Byte planes of all tensors of a record together."""

    scope = "group"
    accepts = WORDS - {Kind.KEPT}
    needs = "all words of a tensor, not bytes or streams, before it"
    costs: ClassVar[Costs] = {1: (0.055, 0.0), 2: (0.047, 0.0), 4: (0.058, 0.0), 8: (0.079, 0.0)}


class PlanesOfJoined(PlanesOfAll, frozen=True):
    """As ``PlanesOfAll``, with the same bytes. The text differs, and is another format feature."""

    feature = STAGES


class Blocks(StreamLayout, frozen=True):
    """bytes at the same positions of all blocks of N bytes, for quantised weights

    In every block, scales and quantised weights have the same positions. A chunk may begin inside a
    block.
    """

    usage = "blocks:N"
    accepts = WORDS - {Kind.KEPT}
    feature = "blocks"
    needs = PlanesOfAll.needs
    # The costs of width 1 were measured on quantised types of GGUF.
    costs: ClassVar[Costs] = {1: (0.9, 0.0), 2: (0.17, 0.0), 4: (1.3, 0.0), 8: (0.0, 0.0)}

    @classmethod
    def read(cls, name: str, parameter: str) -> Stage:
        length = whole_number(name, "N", parameter, low=2, high=1024)
        return cls(f"{name}:{length}", unit=length)

    def encode(
        self,
        data: Words,
        method: Compressor | None,
        marks: Bytes | None = None,  # noqa: ARG002
    ) -> Parts:
        begins = _begins(self._places(data)[0])
        parts: Parts = [np.packbits(begins).tobytes()]
        for place in self._places(data, begins):
            parts += encode_stream(np.ascontiguousarray(place).reshape(-1), method, sparse=_SPARSE)
        return parts

    def decode(
        self, cursor: Cursor, words: Words, method: Compressor | None
    ) -> tuple[Words, Words | None]:
        bitmap = np.frombuffer(cursor.read(-(-self.unit // 8)), np.uint8)
        for place in self._places(words, np.unpackbits(bitmap, count=self.unit)):
            place[:] = decode_array(cursor, place.size, method, "plane").reshape(place.shape)
        return words, None

    def _places(self, words: Words, begins: NDArray[Any] | tuple[()] = ()) -> list[NDArray[Any]]:
        """The blocks, cut at the positions in ``begins``; and the bytes after the last block."""
        data = words.view(np.uint8)
        end = len(data) // self.unit * self.unit
        blocks = data[:end].reshape(-1, self.unit)
        return [*np.split(blocks, np.flatnonzero(begins), axis=1), data[end:]]


def _begins(blocks: NDArray[Any]) -> NDArray[np.bool_]:
    """For each position in a block, whether to cut all blocks before this position.

    A cut is made if the bytes at this position and the bytes at the position before need fewer bits
    with two codes than with one code.
    """
    length = blocks.shape[1]
    sample = blocks[:: max(1, len(blocks) // _SAMPLE)].astype(np.intp)
    keys = sample * length + np.arange(length)
    counts = np.bincount(keys.reshape(-1), minlength=256 * length).reshape(256, length)
    apart, joined = _terms(counts), _terms(counts[:, 1:] + counts[:, :-1])
    gain = 2 * len(sample) - (joined - apart[:, 1:] - apart[:, :-1]).sum(axis=0)
    return np.append(False, gain > _GAIN)


def _terms(counts: NDArray[Any]) -> NDArray[Any]:
    return np.asarray(counts * np.log2(np.maximum(counts, 1)))


class Sparse(StreamLayout, frozen=True):
    """positions and values of changed words; all options unless some are named"""

    options: frozenset[str] = frozenset(OPTIONS)
    usage = "sparse[:none|values,layers,indices,diff]"
    accepts = DELTAS
    feature = STAGES
    needs = "a delta (sub or xor) before it"
    delta = True
    costs: ClassVar[Costs] = {1: (0.53, 0.0), 2: (0.43, 0.0), 4: (0.26, 0.0), 8: (0.0, 0.0)}

    @classmethod
    def read(cls, name: str, parameter: str) -> Stage:
        if not parameter:
            return SparseOfAll(name)
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
        return kind(text, options=frozenset(chosen))

    def full(self) -> Stage | None:
        """Full records store all words, so they use byte planes."""
        if "values" not in self.options:
            return None
        return PlanesOfAll("planes:all") if self.scope == "group" else Planes("planes")

    def decode(
        self, cursor: Cursor, words: Words, method: Compressor | None
    ) -> tuple[Words, Words | None]:
        return decode_sparse(cursor, len(words), words.itemsize, self.options, method=method)

    def encode_joined(self, data: Words, method: Compressor | None) -> Parts:
        return encode_sparse(data, self.options, method)

    def decode_joined(self, cursor: Cursor, words: Words, method: Compressor | None) -> None:
        values, at = self.decode(cursor, words, method)
        words[slice(None) if at is None else at] = values


class SparseOfAll(Sparse, frozen=True):
    """``sparse`` over the joined words of all tensors of a record."""

    scope = "group"
    costs: ClassVar[Costs] = {1: (0.52, 0.0), 2: (0.46, 0.0), 4: (0.27, 0.0), 8: (0.0, 0.0)}


class _OnGrid(Planes, frozen=True):
    feature = STAGES
    on_grid = True


class Gaps(_OnGrid, frozen=True):
    """codes steps: Rice codes of the gaps between changed entries, and signs"""

    usage = "gaps"
    accepts = frozenset({Kind.STEPS})
    needs = "the steps of the stage steps before it"
    costs: ClassVar[Costs] = {1: (0.03, 0.0), 2: (0.026, 0.0), 4: (0.12, 0.065), 8: (0.0, 0.0)}

    def full(self) -> Stage:
        """Full records store the multiples, not their changes."""
        return Lattice("lattice")


class Lattice(_OnGrid, frozen=True):
    """full records on a grid: the distance of every entry from zero in steps"""

    usage = "lattice"
    accepts = frozenset({Kind.TENSOR})
    needs = "to be first, without a delta"
    costs: ClassVar[Costs] = {1: (0.017, 0.0), 2: (0.3, 0.0), 4: (0.17, 0.0), 8: (0.064, 0.0)}


class Raw(Stage, frozen=True):
    """no compression: words are stored unchanged"""

    usage = "raw"
    feature = FIRST
    accepts = frozenset({Kind.TENSOR, Kind.DIFFERENCES, Kind.PATTERNS, Kind.RESET})
    returns = Kind.BYTES
    needs = "to be the only stage, or directly after a delta"
    costs: ClassVar[Costs] = {1: (0.022, 0.0), 2: (0.022, 0.0), 4: (0.022, 0.0), 8: (0.023, 0.0)}
