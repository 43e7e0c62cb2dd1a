"""The closed table of stages, and reading a line of them.

Stored data names a stage by its text; only what is in the table can be named. The order of
stages is checked by what each takes and gives.
"""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches

from mvc.codecs.stages import codings, decisions, lc, lossy
from mvc.codecs.stages.base import Kind, Stage
from mvc.errors import InvalidPipeline

__all__ = ["STAGES", "check_order", "read_stages"]


STAGES: dict[str, type[Stage]] = {
    "every": decisions.Every,
    "drift": decisions.Drift,
    "topk": lossy.TopK,
    "topk-all": lossy.TopKOfAll,
    "grid": lossy.Grid,
    "sub": codings.Sub,
    "xor": codings.Xor,
    "steps": codings.Steps,
    "lsb": lossy.ResetBits,
    "dsed": decisions.Dsed,
    "zigzag": codings.Zigzag,
    "elide": codings.Elide,
    "planes": codings.Planes,
    "sparse": codings.Sparse,
    "gaps": codings.Gaps,
    "lattice": codings.Lattice,
    "zstd": codings.Zstd,
    **codings.GENERAL,
    "raw": codings.Raw,
    "expq": lc.ExpQ,
    "promote": lc.Promote,
    "uniform": lc.Uniform,
    "huffman": lc.Huffman,
    "packed": lc.Packed,
    "ans": lc.Ans,
}
"""By name, in the order in which they may stand."""


def read_stages(text: str, presets: Sequence[str]) -> tuple[Stage, ...]:
    """The stages of a line; InvalidPipeline names what is none. The hint names ``presets``."""
    stages = []
    for word in text.split("|"):
        name, colon, parameter = (part.strip() for part in word.partition(":"))
        if name not in STAGES or (colon and not parameter):
            raise _unknown(text, word.strip(), presets)
        stages.append(STAGES[name].read(name, parameter))
    return tuple(stages)


def _unknown(text: str, word: str, presets: Sequence[str]) -> InvalidPipeline:
    """What is wrong with a word of a line that is no stage."""
    if word in presets:
        return InvalidPipeline(
            f"{word} is a preset, and a preset stands alone",
            hint=f"'mvc pipeline {word}' prints the stages to write in its place",
        )
    name = word.partition(":")[0].strip()
    why = ""
    if not word:
        why = ": nothing is named" + (f" between the bars of {text!r}" if "|" in text else "")
        hint = "'mvc pipeline' lists stages and presets"
    elif name in STAGES:
        why, hint = ": nothing stands after the colon", f"a stage is written {STAGES[name].usage}"
    elif close := get_close_matches(name.lower(), [*STAGES, *presets], n=3):
        hint = f"did you mean {' or '.join(close)}?"
    else:
        hint = f"stages: {', '.join(STAGES)}; presets: {', '.join(presets)}"
    return InvalidPipeline(f"{word!r} is neither a stage nor a preset{why}", hint=hint)


def check_order(stages: Sequence[Stage]) -> None:
    """Raise InvalidPipeline, naming the stage and what it needs, unless every stage fits."""
    text = " | ".join(stage.text for stage in stages)
    first = next((s for s in stages if not s.decides), None)
    kind = Kind.PAIR if first and Kind.PAIR in first.takes else Kind.TENSOR
    for stage in stages:
        if kind is Kind.CHOSEN and stage.gives is kind:
            chosen = " and ".join(s.text for s in stages if s.gives is kind)
            raise InvalidPipeline(f"{text!r} chooses changes more than once: {chosen}")
        if kind not in stage.takes:
            raise InvalidPipeline(
                f"stage {stage.text} in {text!r} gets {kind.value}; it needs {stage.needs}"
            )
        kind = stage.gives or kind
    names = [stage.text.partition(":")[0] for stage in stages]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise InvalidPipeline(f"stage {twice} stands more than once in {text!r}")
    if kind is Kind.STEPS:
        raise InvalidPipeline(f"{text!r} ends with {kind.value}", hint="gaps belongs after it")
    if kind in (Kind.BUCKETS, Kind.SYMBOLS):
        raise InvalidPipeline(
            f"{text!r} ends with {kind.value}", hint="huffman, packed or ans belongs after it"
        )
    if kind in (Kind.PAIR, Kind.CHOSEN):
        raise InvalidPipeline(
            f"{text!r} ends with {kind.value}", hint="a delta (sub or xor) belongs after it"
        )
    if all(stage.decides for stage in stages):
        raise InvalidPipeline(
            f"{text!r} only decides what is saved", hint="say how: a coding belongs after it"
        )
    group = next((s for s in stages if s.scope == "group" and s.gives is not Kind.CHOSEN), None)
    if group and any(isinstance(s, codings.Elide) for s in stages):
        raise InvalidPipeline(
            f"{text!r}: elide works on one tensor, {group.text} on a whole record"
        )
