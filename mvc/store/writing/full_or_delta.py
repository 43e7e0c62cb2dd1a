"""Chooses how a piece (at most 32 MiB of an object) is stored: in full, or as a delta from a base.

A delta is stored if the delta is at least a tenth smaller than a full record of the piece, and if
the chain is short enough. A *chain* is a full record and the deltas that are decoded after the full
record to recover an object. As in Mercurial, the policy limits the length and the stored bytes of a
chain.

Sizes are estimated on samples. To save time, the full record is assumed to be as large as the full
record at the beginning of the chain, because weights of one model compress alike. A *coding* is a
way to encode a piece.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from mvc.codecs import cast
from mvc.codecs.optim import Prediction
from mvc.codecs.patch import encode_patch
from mvc.codecs.stages import LENGTHS
from mvc.limits import PIECE
from mvc.model.tensor import DTYPES, TensorSpec
from mvc.pipelines.pipeline import Pipeline
from mvc.store.graph.search import Link
from mvc.store.writing.layout import Layout

WORTH = 0.9
"""The size of a delta, as a share of the full record, above which the full record is stored."""

_AGAIN = 4  # after so many deltas, the size of a full record is estimated on a sample
_SAMPLE = 64 << 10
_SAMPLED = 256 << 10  # bytes; in larger contents of dtype raw, only the changed part is sampled
_TINY = 4096
_ERROR = 1.005  # pipelines with ``blocks`` must save more than this error of estimates


class Policy(Struct, frozen=True):
    """How objects are stored. ``layout`` chooses the base of each version.

    ``reset``: store a full record of everything. ``max_chain``: maximum stored bytes of a chain, as
    a multiple of the raw size. ``saving``: the share of the raw size that a delta must save.
    ``run``: maximum number of consecutive versions that are predicted by optimizer steps.
    """

    pipeline: Pipeline
    layout: Layout = Layout()
    max_chain: float = float("inf")
    reset: bool = False
    saving: float = 0.0
    run: int = 0

    @property
    def predicts(self) -> bool:
        """Whether pieces may be predicted by optimizer steps."""
        pipeline = self.pipeline
        delta = pipeline.operator in {"sub", "xor"} and pipeline.scope == "tensor"
        return delta and self.run > 0 and not self.reset

    def may_delta(self, spec: TensorSpec) -> bool:
        """Whether a content of this type can have a base."""
        if self.pipeline.operator != "none":
            return True
        return spec.dtype == "raw" and self.pipeline.text != "raw"


def exactly(pipeline: Pipeline) -> Pipeline:
    """The pipeline for tensors that a lossy pipeline does not encode."""
    return Pipeline.parse("lossless") if pipeline.forward_only else pipeline


class BasePiece(Struct, frozen=True, gc=False):
    """One piece of a base: its bytes and its chain (``Graph.chain``).

    ``ends``: whether the chain has its maximum length, so that the new piece gets a full record.
    """

    id: bytes
    data: memoryview
    chain: tuple[Link, ...] = ()
    ends: bool = False


class Choice(Struct, frozen=True, gc=False):
    """A coding of a piece, and its estimated size.

    ``pipeline``: None for a patch. ``share``: encoded bytes per raw byte. ``encoded``: the encoded
    piece, if the estimate has encoded the whole piece. ``width``: bytes of an element. ``against``:
    whether the coding is a delta. ``prediction``: the optimizer's step that ``transform`` names, if
    any.
    """

    transform: str
    pipeline: Pipeline | None
    share: float
    encoded: bytes | None = None
    width: int = 1
    against: bool = False
    prediction: Prediction | None = None

    @property
    def text(self) -> str:
        parts = [self.transform] if self.transform else []
        return " | ".join([*parts, self.pipeline.text] if self.pipeline else parts)

    @property
    def cost(self) -> float:
        """The number by which codings are compared.

        For pipelines with ``blocks``, ``share`` is multiplied by ``_ERROR``.
        """
        return self.share * (_ERROR if "blocks:" in self.text else 1.0)

    @property
    def grouped(self) -> bool:
        """Whether several pieces with this coding are encoded together, as one payload."""
        return self.pipeline is not None and self.pipeline.scope == "group"


def choose(
    spec: TensorSpec,
    new: memoryview,
    base_spec: TensorSpec | None,
    base: BasePiece | None,
    policy: Policy,
) -> list[Choice]:
    """The codings in which one piece is stored: a delta, a full record, or both.

    At the end of a chain, a delta and a full record are stored. Then earlier versions of the chain
    can also be decoded from the new full record, by undoing deltas. ``base`` must already have the
    dtype of ``new``.
    """
    if base is None or base_spec is None:
        return [_full(spec, new, policy)]
    delta = _delta(spec, new, base_spec, base, policy=policy)
    stored = (base.chain[-1].stored if base.chain else 0) + delta.share * len(new)
    ends = policy.reset or base.ends or stored > policy.max_chain * len(new)
    known = None if ends or delta.transform else _first_share(base, len(new))
    if known is not None and delta.share <= _most(known, policy):
        return [delta]
    full = _full(spec, new, policy)
    if delta.share > _most(full.share, policy):
        return [full]
    if ends:
        return [full] if delta.transform else [delta, full]
    return [delta]


def _most(full: float, policy: Policy) -> float:
    """The maximum size of a delta, if the full record has the size ``full``.

    Sizes are shares of the raw size.
    """
    return min(WORTH * full, full - policy.saving)


def _first_share(base: BasePiece, nbytes: int) -> float | None:
    """Stored bytes per raw byte of the full record at which the base's chain begins.

    None if this number is unknown or must be estimated again. None for small pieces, too, because
    headers would distort the number.
    """
    if nbytes < _TINY or not base.chain or base.chain[-1].depth % _AGAIN == _AGAIN - 1:
        return None
    first = base.chain[0]
    return first.stored / nbytes if first.depth == 0 and first.nbytes == nbytes else None


def _forms(pipeline: Pipeline, spec: TensorSpec, size: int) -> list[tuple[Pipeline, int]]:
    """Pipelines and element widths to try on a sample.

    Bytes of dtype ``raw`` may be floats of any width. Rows of dtype ``uint8`` may be quantised
    blocks.
    """
    if spec.dtype == "uint8" and len(spec.shape) > 1 and size >= 4 * _TINY:
        blocks = (pipeline.in_blocks(n) for n in LENGTHS if spec.shape[-1] % n == 0)
        return [(form, 1) for form in dict.fromkeys((pipeline, *blocks))]
    if spec.dtype != "raw" or size < _TINY:
        return [(pipeline, spec.width)]
    return [(pipeline, width) for width in ((4, 2, 8, 1) if size > _SAMPLED else (4, 1))]


def _full(spec: TensorSpec, new: memoryview, policy: Policy) -> Choice:
    pipeline = policy.pipeline.full()
    best = min(
        (
            Choice("", form, *form.estimate(new, None, width), width=width)
            for form, width in _forms(pipeline, spec, len(new))
        ),
        key=lambda choice: choice.cost,
    )
    if spec.dtype != "raw" or pipeline.text == "raw":
        return best
    patch = Choice("patch", None, _patch_share(new, memoryview(b"")))
    return min(best, patch, key=lambda choice: choice.share)


def _delta(
    spec: TensorSpec, new: memoryview, base_spec: TensorSpec, base: BasePiece, *, policy: Policy
) -> Choice:
    pipeline, choices = policy.pipeline, []
    castable = DTYPES[spec.dtype].floating and spec.dtype != base_spec.dtype
    transform = f"cast:{base_spec.dtype}>{spec.dtype}" if castable else ""
    if len(base.data) != len(new):
        transform = "resize"
    data, part, size = base.data, 1.0, len(new)
    if spec.dtype == "raw" and size > _SAMPLED:
        # A sample of the whole content could miss a local change. So sample the changed part.
        data = fitted(data, size)
        new, data = _changed(new, data)
        part = len(new) / size
    if pipeline.operator != "none":
        data = fitted(data, len(new))
        for form, width in _forms(pipeline, spec, size):
            share, encoded = form.estimate(new, data, width)
            whole = encoded if len(new) == size else None
            choices.append(Choice(transform, form, share * part, whole, width=width, against=True))
    if spec.dtype == "raw" and pipeline.text != "raw":
        choices.append(Choice("patch", None, _patch_share(new, data) * part, against=True))
    return min(choices, key=lambda c: c.cost, default=Choice("", pipeline, 9.0, against=True))


def _changed(new: memoryview, base: memoryview) -> tuple[memoryview, memoryview]:
    """Cuts ``new`` and ``base`` to the range from the first to the last differing 64-bit word."""
    words = (np.frombuffer(data, np.uint64, len(data) // 8) for data in (new, base))
    differ = np.not_equal(*words)
    first, last = int(differ.argmax()), len(differ) - int(differ[::-1].argmax())
    window = slice(first * 8, last * 8 if differ[first] else 0)
    return new[window], base[window]


def lines_up(base: TensorSpec, spec: TensorSpec, start: int) -> bool:
    """Whether the base has a piece from which the new piece at ``start`` can be a delta."""
    if base.dtype == spec.dtype:
        return not start or start < base.nbytes
    # Pieces of different element sizes contain different elements.
    return not start and base.elements == spec.elements and base.nbytes <= PIECE


def converted(data: memoryview, base: TensorSpec, spec: TensorSpec) -> memoryview:
    """The bytes of a base, converted to the dtype of ``spec``."""
    if base.dtype == spec.dtype:
        return data
    return memoryview(cast.cast(data, base.dtype, spec.dtype)).cast("B")


def fitted(data: memoryview, size: int) -> memoryview:
    """``data`` cut or zero-filled to ``size`` bytes."""
    if len(data) == size:
        return data
    return memoryview(bytes(data[:size]).ljust(size, b"\0"))


def _patch_share(new: memoryview, base: memoryview) -> float:
    if not len(new):
        return 0.0
    middle = max(0, len(new) // 2 - _SAMPLE // 2) if len(new) > 2 * _SAMPLE else 0
    sample = new[middle : middle + (len(new) if not middle else _SAMPLE)][: 2 * _SAMPLE]
    near = base[max(0, middle - 2 * _SAMPLE) : middle + 4 * _SAMPLE]
    return len(encode_patch(sample, near)) / len(sample)
