"""Parses pipelines such as ``xor | planes | zstd:1``, which say how tensors are encoded.

A pipeline is a line of stages. This module has the table of all stages, and the presets, which are
names for pipelines. It also checks the order of stages: each stage must accept the kind of data
that the stage before it returns. Stored data name a stage by its text, so a text must not change.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from mvc.codecs import compressors
from mvc.codecs import stages as lossless
from mvc.codecs.stage import Kind, Stage
from mvc.errors import InvalidPipeline
from mvc.lossy.bits import ResetBits
from mvc.lossy.decisions import DriftStage, Dsed, Every
from mvc.lossy.grid import Grid
from mvc.lossy.guard import GuardStage
from mvc.lossy.lc import stages as lc
from mvc.lossy.lc.buckets import ExpQ
from mvc.lossy.lc.levels import Uniform
from mvc.lossy.topk import TopKOfAll, TopKOfEach
from mvc.text import did_you_mean

_STAGES: tuple[type[Stage], ...] = (
    Every,
    DriftStage,
    TopKOfEach,
    TopKOfAll,
    Grid,
    lossless.Sub,
    lossless.Xor,
    lossless.WholeSteps,
    ResetBits,
    GuardStage,
    Dsed,
    lossless.Zigzag,
    lossless.Elide,
    lossless.Planes,
    lossless.Blocks,
    lossless.Sparse,
    lossless.Gaps,
    lossless.Lattice,
    compressors.Zstd,
    compressors.Zlib,
    compressors.Bz2,
    compressors.Lzma,
    compressors.Brotli,
    lossless.Raw,
    ExpQ,
    lc.Promote,
    Uniform,
    lc.Huffman,
    lc.Packed,
    lc.Ans,
)
"""All stages, sorted by their position in a pipeline."""

STAGES = {re.split("[:[]", kind.usage)[0]: kind for kind in _STAGES}
"""Maps the name of a stage to its class."""

_GAPS = "gaps | zstd:huff"
_STEPS = f"steps | {_GAPS}"
_TOP_LINEAR = "topk:0.075,min=0.001,loss=linear"
_TOP_ABOVE = "topk:0.075,min=0.001,loss=-0.5"

PRESETS = {
    "lossless": "sub | zigzag | elide | planes | zstd:huff",
    "vsol": "xor | planes:all | zstd:1",
    "vsol-0-fast": "xor | lsb:20 | planes:all | zstd:1",
    "vsol-0-slow": "xor | lsb:20 | dsed:0 | planes:all | zstd:1",
    "vsol-0.1-fast": f"{_TOP_LINEAR} | xor | lsb:18 | sparse | zstd:1",
    "vsol-0.1-slow": "xor | lsb:20 | dsed:0.01 | planes:all | zstd:1",
    "vsol-1-fast": f"{_TOP_ABOVE} | xor | lsb:20 | sparse | zstd:1",
    "vsol-1-slow": f"{_TOP_ABOVE} | xor | lsb:20 | dsed:0.01 | sparse | zstd:1",
    "frontier-0": f"grid:0.25 | {_STEPS}",
    "frontier-0.1": f"grid:1 | {_STEPS}",
    "frontier-1": f"grid:2 | {_STEPS}",
    "frontier-1-slow": f"grid:2 | steps | dsed:0 | {_GAPS}",
    "frontier-0-guarded": f"grid:0.25 | steps | guard:0 | {_GAPS}",
    "frontier-0.1-guarded": f"grid:0.5 | steps | guard:0.001 | {_GAPS}",
    "frontier-1-guarded": f"grid:1 | steps | guard:0.01 | {_GAPS}",
    "lc": lc.expand("lc:mean,budget=0.05"),
    "none": "raw",
}
"""Maps the name of a preset to its pipeline. ``lossless`` is the default, chosen by measurements.

``vsol`` and ``vsol-BOUND-SPEED`` are the presets of the VSOL thesis (§4.8.5, §5.1). BOUND is the
accuracy that may be lost, in per cent.
"""

_ENDS = {
    Kind.STEPS: "add the stage gaps at the end",
    Kind.BUCKETS: "add the stage huffman, packed or ans at the end",
    Kind.SYMBOLS: "add the stage huffman, packed or ans at the end",
    Kind.PAIR: "add a delta (sub or xor) at the end",
    Kind.CHOSEN: "add a delta (sub or xor) at the end",
}
"""Kinds of data that the last stage must not return. Maps each kind to the hint for the user."""


def read_stages(text: str) -> tuple[Stage, ...]:
    """The stages of a pipeline or preset. Does not check the order of the stages.

    Raises InvalidPipeline for an unknown stage.
    """
    words = [word.strip() for word in PRESETS.get(text.strip(), text).split("|")]
    line = " | ".join(lc.expand(w) if w.startswith(lc.PREFIX) else w for w in words)
    stages = []
    for word in line.split("|"):
        name, colon, parameter = (part.strip() for part in word.partition(":"))
        if name not in STAGES or (colon and not parameter):
            raise _unknown(word.strip())
        stages.append(STAGES[name].read(name, parameter))
    return tuple(stages)


def _unknown(word: str) -> InvalidPipeline:
    """The error for a part of a pipeline that is not a stage."""
    if word in PRESETS:
        return InvalidPipeline(
            f"{word} is a preset, and cannot be combined with stages",
            hint=f"'mvc pipeline {word}' prints its stages: write these instead",
        )
    name = word.partition(":")[0].strip()
    names = [*STAGES, *PRESETS]
    hint = did_you_mean(name.lower(), names, "'mvc pipeline' lists stages and presets")
    if name in STAGES:  # the parameter after the colon is empty
        hint = f"write {STAGES[name].usage}"
    return InvalidPipeline(f"{word!r} is neither a stage nor a preset", hint=hint)


def check_order(stages: Sequence[Stage]) -> None:
    """Raises InvalidPipeline if a stage does not accept the data of the stage before it.

    Also raises it if a stage occurs twice, if no stage encodes, or if the last stage returns
    unfinished data.
    """
    text = " | ".join(stage.text for stage in stages)
    first = next((s for s in stages if not s.decides), None)
    kind = Kind.PAIR if first and Kind.PAIR in first.accepts else Kind.TENSOR
    for stage in stages:
        if kind not in stage.accepts:
            raise InvalidPipeline(
                f"stage {stage.text} in {text!r} gets {kind.value}; it needs {stage.needs}"
            )
        kind = stage.returns or kind
    names = [stage.text.partition(":")[0] for stage in stages]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise InvalidPipeline(f"stage {twice} occurs more than once in {text!r}")
    if kind in _ENDS:
        raise InvalidPipeline(f"{text!r} ends with {kind.value}", hint=_ENDS[kind])
    if first is None:
        raise InvalidPipeline(
            f"{text!r} only decides which versions are saved",
            hint="add a stage that encodes, such as zstd:1, at the end",
        )
