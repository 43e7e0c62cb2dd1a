"""A pipeline, such as ``xor | planes | zstd:1``, encodes and decodes tensors.

The text of a pipeline names its stages. A tensor is stored as a delta (the difference from another
tensor, the base) or as a full record (without a base). Full records are encoded without the delta
stages of the pipeline, such as ``xor``. Decisions are stages that decide whether a version is
stored. Lossy stages change the tensors before they are encoded. The text of all other stages
(``coding()``) is stored with the tensors, for decoding. Tensors are encoded in chunks. The forms of
a chunk are described in docs/format.md, "Payload of a single member".
"""

from __future__ import annotations

from functools import cached_property, lru_cache
from typing import Literal

import numpy as np
from msgspec.structs import replace

from mvc.codecs import steps
from mvc.codecs.compressors import FAST, Compressor
from mvc.codecs.stage import Stage
from mvc.codecs.stages import Elide, Raw, StreamLayout, WordStage, Zigzag
from mvc.codecs.streams import Parts, decode_bitmap, encode_stream
from mvc.codecs.varint import Cursor
from mvc.codecs.words import (
    Bytes,
    Words,
    changes,
    difference,
    move,
    move_at,
    move_marked,
    scratch_words,
    word_type,
    words_of,
)
from mvc.errors import DamagedData, InvalidPipeline, WrongUsage
from mvc.limits import MAX_PIPELINE_TEXT
from mvc.lossy.lc.stages import Coder, LossyPipeline, Promote, Quantiser
from mvc.lossy.weights import LossyStage
from mvc.pipelines.table import check_order, read_stages
from mvc.types import FIRST_RELEASE

RAW, ZERO, CONSTANT, CODED, ELIDED, GRID = range(6)

_ELIDE_SHARE = 0.92  # if more words have changed, a bitmap of the changed words saves no space
# All words are stored, without a bitmap, if more than the first fraction of words has changed, and
# at most the second fraction needs more than one byte. This needs no more space and decodes faster.
_DENSE_SHARE, _WIDE_SHARE = 0.6, 1 / 64
_SAMPLES, _SAMPLE = 4, 1 << 15  # number of blocks from which a size is estimated, and bytes of each
_FEW = 64  # a cheap test first compares this many words
_WHOLE = 2 * _SAMPLES * _SAMPLE  # up to this size, a chunk is encoded to estimate its size

_UNSPLIT = StreamLayout("")  # for pipelines without a layout stage


class Pipeline(LossyPipeline, frozen=True, dict=True):
    """Stages in a checked order. Pipelines with equal texts are equal.

    ``stages``: the stages that encode. ``decisions`` and ``lossy``: the stages that act before
    encoding. A word is an element as an unsigned integer. ``maps``: stages that change each word.
    ``layout``: the stage that then divides the words into streams. ``method``: the stage that
    compresses the streams. ``elides``: whether unchanged words may be left out.
    """

    scope: Literal["tensor", "group"]
    stages: tuple[Stage, ...]
    maps: tuple[WordStage, ...]
    elides: bool
    layout: StreamLayout
    method: Compressor | None

    @staticmethod
    @lru_cache(maxsize=256)
    def parse(text_or_preset: str) -> Pipeline:
        """The pipeline with this text, or the preset (a pipeline with a name) of this name.

        Raises InvalidPipeline, which names the stage that does not fit.
        """
        if len(text_or_preset) > MAX_PIPELINE_TEXT:
            raise InvalidPipeline(f"a pipeline has at most {MAX_PIPELINE_TEXT} characters")
        return _build(read_stages(text_or_preset))

    def coding(self) -> Pipeline:
        """The pipeline without decisions and lossy stages."""
        return _build(self.stages) if self.decisions or self.lossy else self

    def levels(self) -> tuple[Pipeline, ...]:
        """The pipeline without decisions, then pipelines that lose less and less.

        The last of these pipelines is exact.
        """
        levels = [_build(tuple(stage for stage in read_stages(self.text) if not stage.decides))]
        while lossy := levels[-1].lossy:
            finer = {stage.text: stage.finer() for stage in lossy}
            stages = (finer.get(s.text, s) for s in read_stages(levels[-1].text))
            levels.append(_build(tuple(stage for stage in stages if stage)))
        return tuple(levels)

    def full(self) -> Pipeline:
        """The result of ``coding()`` without its delta stages, for records without a base."""
        return self._full

    @cached_property
    def _full(self) -> Pipeline:
        stages = (stage.full() for stage in self.stages)
        return _build(tuple(stage for stage in stages if stage) or (Raw("raw"),))

    def in_blocks(self, length: int) -> Pipeline:
        """The pipeline without ``elide``, and with ``blocks:LENGTH`` in place of ``planes``."""
        return Pipeline.parse(
            self.text.replace("elide | planes |", "planes |").replace(
                "planes |", f"blocks:{length} |"
            )
        )

    @property
    def features(self) -> frozenset[str]:
        """The features that a repository's format must list if this pipeline is used."""
        return frozenset(stage.feature for stage in self.stages) - {FIRST_RELEASE}

    def encode_chunk(self, new: memoryview, base: memoryview | None, width: int) -> bytes:
        """Encodes one chunk of a tensor. ``width``: the size of an element: 1, 2, 4 or 8 bytes.

        ``base``: bytes of the length of ``new`` if this pipeline encodes deltas; otherwise None.
        """
        return b"".join(self.encode_parts(new, base, width))

    def encode_parts(self, new: memoryview, base: memoryview | None, width: int) -> Parts:
        """As ``encode_chunk``, but returns parts to join.

        Join the parts before this thread encodes anything else. A part may be a slice of ``new``,
        or of memory that this thread reuses.
        """
        if len(new) <= width and self._keeps_single_words:
            return [self._encode_single(new, base, width)]
        data, tail, marks, count = self.delta(new, base, width)
        alike = count in (0, len(data)) and _alike(data[:_FEW]) and _alike(data)
        if alike and not data[:1].any() and not any(tail):
            return [bytes((ZERO,))]
        if alike and len(data) > 1:
            return [bytes((CONSTANT,)), data[:1].tobytes(), tail]
        stored = 1 + data.nbytes
        if not self._coded or not len(data):
            return [bytes((RAW,)), data.view(np.uint8).data, tail]
        grid = None
        if self.layout.on_grid:
            words, old = words_of(new, width), None if base is None else words_of(base, width)
            grid = steps.encode(words, old, marks, self.method)
        parts: Parts = [bytes((GRID,)), *grid] if grid else self._encode_words(data, marks, count)
        if sum(map(len, parts)) >= stored:
            # the stages work in place, so the words are computed again
            data = self.delta(new, base, width)[0]
            return [bytes((RAW,)), data.view(np.uint8).data, tail]
        return [*parts, tail]

    def estimate(
        self, new: memoryview, base: memoryview | None, width: int
    ) -> tuple[float, bytes | None]:
        """Estimates the encoded size of ``new``, divided by the size of ``new``; 0.0 for no bytes.

        A tensor of up to 256 KiB is encoded completely, and the encoded chunk is returned. Of a
        larger tensor, samples of 128 KiB in total are encoded, and None is returned as the chunk.
        Without a base, the estimate is for the pipeline without its delta stages.
        """
        total = len(new)
        if not total:
            return 0.0, None
        form = self if base is not None else self.full()
        if total <= _WHOLE:
            encoded = form.encode_chunk(new, base, width)
            return len(encoded) / total, encoded
        sample, old = (
            sample_of(new, unit=form.layout.unit),
            None if base is None else sample_of(base, unit=form.layout.unit),
        )
        return len(form.encode_chunk(sample, old, width)) / len(sample), None

    def decode_chunk(self, data: memoryview, out: memoryview, width: int) -> None:
        """Decodes a full record's chunk into ``out``, which has the length of the raw chunk."""
        if self.operator != "none":
            raise WrongUsage(f"pipeline {self.text} encodes deltas, not full records")
        target = words_of(out, width)
        words, _, _, tail = self._decode(Cursor(data), len(out), target, target)
        if words is not target:
            np.copyto(target, words)
        out[len(out) - len(tail) :] = tail

    def apply_chunk(
        self, data: memoryview, state: memoryview, width: int, *, reverse: bool
    ) -> None:
        """Applies a delta's chunk to ``state``: replaces the base by the new bytes, in place.

        With ``reverse``, replaces the new bytes by the base. If DamagedData is raised, ``state`` is
        unchanged.
        """
        if self.operator not in {"sub", "xor"}:
            raise WrongUsage(f"pipeline {self.text} encodes no deltas chunk by chunk")
        target = words_of(state, width)
        words, marks, at, tail = self._decode(
            Cursor(data), len(state), target, None, reverse=reverse
        )
        if marks is not None:
            move_marked(self.operator, target, marks, words, reverse=reverse)
        elif at is not None:
            move_at(self.operator, target, at, words, reverse=reverse)
        else:
            move(self.operator, target, words, reverse=reverse)
        if tail:
            end = words_of(state[len(state) - len(tail) :], 1)
            move(self.operator, end, np.frombuffer(tail, np.uint8), reverse=reverse)

    @cached_property
    def _coded(self) -> bool:
        return not isinstance(self.stages[-1], Raw) and len(self.stages) > (self.operator != "none")

    @cached_property
    def _keeps_single_words(self) -> bool:
        """Whether no stage makes a single word smaller. One byte plane needs two bytes."""
        layout = self.layout
        planes = self.method is not None and layout.splits and not layout.on_grid
        return planes or not self._coded

    def _encode_single(self, new: memoryview, base: memoryview | None, width: int) -> bytes:
        """Encodes a chunk of at most one word as the stages would encode it, but faster.

        Avoids arrays where it can: a model may have 100,000 tensors of one word.
        """
        word_type(width)  # raises for an invalid width
        if self.operator == "none" and base is None and not (self.lossy or self.decisions):
            data = bytes(new)
        else:
            words, tail, _, _ = self.delta(new, base, width)
            data = words.tobytes() + bytes(tail)
        return bytes((RAW,)) + data if any(data) else bytes((ZERO,))

    def delta(
        self, new: memoryview, base: memoryview | None, width: int
    ) -> tuple[Words, bytes | memoryview, Bytes | None, int]:
        """Returns the words to encode, the tail, a bitmap of the nonzero words, and the number of
        nonzero words.

        The tail is the bytes after the last complete word. The words of a delta are in memory that
        this thread reuses. Without a base, the bitmap is None, and the number is that of all words.
        """
        words = words_of(new, width)
        end = words.nbytes
        if self.lossy or self.decisions:
            raise WrongUsage(f"pipeline {self.text} has decisions or lossy stages: use coding()")
        if self.operator == "none" and base is None:
            return words, new[end:], None, len(words)
        if self.operator in {"none", "add"} or base is None or len(base) != len(new):
            raise WrongUsage(
                f"pipeline {self.text} cannot encode a chunk of {len(new)} bytes with these "
                "arguments"
            )
        out = scratch_words("delta", len(words), width)
        marks, count = changes(self.operator, words, words_of(base, width), out)
        if end == len(new):
            return out, b"", marks, count
        tail = np.empty(len(new) - end, np.uint8)
        difference(self.operator, words_of(new[end:], 1), words_of(base[end:], 1), tail)
        return out, tail.tobytes(), marks, count

    def _encode_words(self, data: Words, marks: Bytes | None, count: int) -> Parts:
        parts: Parts = [bytes((CODED,))]
        stored_marks = marks if self.elides and self._gains_by_eliding(data, count) else None
        if stored_marks is not None:
            # If units of a layer did not change, the bitmap repeats at the length of a row.
            parts = [bytes((ELIDED,)), *encode_stream(stored_marks, FAST, repeats=True)]
        if self.maps and self.operator == "none":
            data = data.copy()  # the stages work in place, and ``data`` is the caller's
        for stage in self.maps:
            stage.forward(data)
        return parts + self.layout.encode(data, self.method, stored_marks)

    def _gains_by_eliding(self, data: Words, count: int) -> bool:
        """Whether to store a bitmap and the ``count`` changed words instead of all words of
        ``data``.
        """
        if not _DENSE_SHARE * len(data) < count <= _ELIDE_SHARE * len(data):
            return count <= _ELIDE_SHARE * len(data)
        if not self.layout.folds:
            return True
        folded = scratch_words("zigzag", len(data), data.itemsize)
        np.add(data, 0x80, out=folded)
        return bool(np.count_nonzero(folded > 0xFF) > _WIDE_SHARE * len(data))

    def _decode(
        self, cursor: Cursor, size: int, state: Words, out: Words | None, *, reverse: bool = False
    ) -> tuple[Words, Bytes | None, Words | None, memoryview]:
        """Decodes a chunk of ``size`` raw bytes. Returns words, bitmap, positions and tail.

        The words are in ``out`` or in scratch memory. If not all words are stored, the bitmap marks
        the stored words, or the positions name these words. ``state``: the words with which to
        combine the result, or an array of the same length and type.
        """
        marks: Bytes | None = None
        at: Words | None = None
        width, count, shape = state.itemsize, len(state), cursor.byte()
        if shape in (CODED, ELIDED) and self._coded:
            if shape == ELIDED:
                marks, count = self._decode_marks(cursor, count)
            words = scratch_words("kept", count, width) if out is None else out
            words, at = self.layout.decode(cursor, words, self.method)
            for stage in reversed(self.maps):
                stage.back(words)
        elif shape == RAW:
            words = np.frombuffer(cursor.read(count * width), word_type(width))
        elif shape == GRID and self.layout.on_grid:
            full = self.operator == "none"
            words = steps.decode(cursor, state, self.method, full=full, reverse=reverse)
        elif shape in (CONSTANT, ZERO):
            words = scratch_words("delta", count, width) if out is None else out
            value = cursor.read(width) if shape == CONSTANT else bytes(width)
            words.fill(int.from_bytes(value, "little"))
        else:
            raise DamagedData(f"a chunk of unknown shape {shape}")
        tail = memoryview(bytes(size % width)) if shape == ZERO else cursor.read(size % width)
        cursor.end()
        return words, marks, at, tail

    def _decode_marks(self, cursor: Cursor, count: int) -> tuple[Bytes, int]:
        """A bitmap of the stored words among ``count``, and the number of stored words."""
        if not self.elides:
            raise DamagedData(
                f"a chunk leaves out words, which pipeline {self.text} does not allow"
            )
        return decode_bitmap(cursor, count, FAST, "mask")


def sample_of(data: memoryview, block: int = _SAMPLE, unit: int = 64) -> memoryview:
    """Blocks of ``data`` at regular distances, joined. ``data`` itself if it is at most twice as
    long as the blocks. ``block``: the size of a block in bytes, rounded down to a multiple of
    ``unit``.
    """
    block = block // unit * unit
    if len(data) <= 2 * _SAMPLES * block:
        return data
    step = (len(data) - block) // (_SAMPLES - 1) // unit * unit
    return memoryview(b"".join(data[at : at + block] for at in range(0, _SAMPLES * step, step)))


def _alike(data: Words) -> bool:
    return bool((data == data[:1]).all())


def _build(stages: tuple[Stage, ...]) -> Pipeline:
    """A pipeline of these stages. Raises InvalidPipeline if their order is not allowed."""
    check_order(stages)
    lossy = tuple(s for s in stages if isinstance(s, LossyStage))
    decisions = tuple(s for s in stages if s.decides)
    coding = tuple(s for s in stages if s not in lossy and s not in decisions)
    maps = tuple(s for s in coding if isinstance(s, WordStage))
    layout = next((s for s in coding if isinstance(s, StreamLayout)), _UNSPLIT)
    if layout.splits and maps and isinstance(maps[-1], Zigzag):
        layout, maps = replace(layout, folds=True), maps[:-1]
    return Pipeline(
        text=" | ".join(s.text for s in stages),
        scope="group" if any(s.scope == "group" for s in coding) else "tensor",
        operator=coding[0].operator,
        stages=coding,
        decisions=decisions,
        lossy=lossy,
        maps=maps,
        elides=any(isinstance(s, Elide) for s in coding),
        layout=layout,
        method=next((s for s in coding if isinstance(s, Compressor)), None),
        quantiser=next((s for s in coding if isinstance(s, Quantiser)), None),
        promote=next((s for s in coding if isinstance(s, Promote)), None),
        coder=next((s for s in coding if isinstance(s, Coder)), None),
    )
