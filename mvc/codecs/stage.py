"""The base class of all stages, and the parsing of their parameters."""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import ClassVar, Literal, TypeAlias

from msgspec import Struct

from mvc.errors import InvalidPipeline

_NUMBER = re.compile(r"-?(\d{1,12}(\.\d{0,12})?|\.\d{1,12})", re.ASCII)
_WHOLE = re.compile(r"\d{1,9}", re.ASCII)


class Kind(enum.Enum):
    """The data between two stages."""

    TENSOR = "a tensor's words"
    PAIR = "a tensor and its base"
    CHOSEN = "a tensor's chosen changes and its base"
    DIFFERENCES = "wrap-around differences"
    PATTERNS = "exclusive-or patterns"
    RESET = "exclusive-or patterns with low bits reset"
    FOLDED = "folded differences"
    STEPS = "whole steps on a grid"
    KEPT = "the changed words"
    BUCKETS = "buckets of changes"
    SYMBOLS = "symbols of changes"
    STREAMS = "byte streams"
    BYTES = "bytes"


STAGES = "stages"
"""The format feature of lossless stages beyond byte planes and zstd."""

LC = "lc"
"""The format feature of lossy deltas that are added to a state (``mvc.lossy.lc``)."""

Costs: TypeAlias = Mapping[int, tuple[float, float]]
"""Nanoseconds per raw byte and per stored byte, by the width of an element in bytes."""

DELTAS = frozenset({Kind.DIFFERENCES, Kind.PATTERNS, Kind.RESET, Kind.FOLDED})
WORDS = DELTAS | {Kind.TENSOR, Kind.KEPT}


class Stage(Struct, frozen=True):
    """One stage of a pipeline, such as ``zstd:1``. Its class describes it.

    ``text``: name and parameters as written. ``usage`` begins with the name. The first line of the
    docstring is shown to users. A stage without ``returns`` returns the kind of data that it takes.
    """

    text: str
    usage: ClassVar[str]
    about: ClassVar[str]
    accepts: ClassVar[frozenset[Kind]]
    returns: ClassVar[Kind | None] = None
    needs: ClassVar[str]
    scope: ClassVar[Literal["tensor", "group"]] = "tensor"
    operator: ClassVar[Literal["none", "sub", "xor", "add"]] = "none"  # how the delta is computed
    delta: ClassVar[bool] = False  # only meant for deltas, absent from full records
    lossy: ClassVar[bool] = False
    feature: ClassVar[str]  # of the format; only for stages that records name
    decides: ClassVar[bool] = False  # decides whether a version is saved, and changes nothing
    costs: ClassVar[Costs] = {}  # of decoding (tests/benchmarks/bench_rates.py); {}: negligible

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "usage" in vars(cls):  # classes without it are internal variants
            cls.about = (cls.__doc__ or "").partition("\n")[0]

    @classmethod
    def read(cls, name: str, parameter: str) -> Stage:
        """The stage ``name:parameter``. Raises InvalidPipeline, with an explanation."""
        if parameter:
            raise InvalidPipeline(f"stage {name} takes no parameter, not {parameter!r}")
        return cls(name)

    @property
    def acts_on(self) -> str:
        """What the stage processes as a unit, for messages."""
        of_tensors = "all tensors" if self.scope == "group" else "each tensor"
        return "the version" if self.decides else of_tensors

    def costs_in(self, operator: str) -> Costs:  # noqa: ARG002
        """Decoding costs in a pipeline with this operator."""
        return self.costs

    def full(self) -> Stage | None:
        """The stage that full records use in place of this one; None if they use none."""
        return None if self.delta else self


def number(stage: str, name: str, text: str, *, low: str, high: str) -> Decimal:
    """A decimal number from ``low`` to ``high``, both included."""
    if _NUMBER.fullmatch(text) and Decimal(low) <= Decimal(text) <= Decimal(high):
        return Decimal(text)
    raise _wrong(stage, f"{name} must be a number from {low} to {high}", text)


def whole_number(stage: str, name: str, text: str, *, low: int, high: int) -> int:
    """A whole number from ``low`` to ``high``, both included."""
    if _WHOLE.fullmatch(text) and low <= int(text) <= high:
        return int(text)
    raise _wrong(stage, f"{name} must be a whole number from {low} to {high}", text)


def _wrong(stage: str, rule: str, text: str) -> InvalidPipeline:
    actual = f"not {text!r}" if text else "and is missing"
    return InvalidPipeline(f"stage {stage}: {rule}, {actual}")


def plain(value: Decimal) -> str:
    """The shortest text of a number, without an exponent."""
    return format(value.normalize() + 0, "f")


def read_options(
    stage: str, parameter: str, named: Sequence[str], flags: Sequence[str]
) -> tuple[str, dict[str, str]]:
    """Parses ``first,name=value,flag``: the first value and a mapping; a flag's value is empty."""
    first, *rest = (part.strip() for part in parameter.split(","))
    options: dict[str, str] = {}
    for part in rest:
        name, equals, value = (s.strip() for s in part.partition("="))
        if name in options:
            raise InvalidPipeline(f"stage {stage}:{parameter} has {name} twice")
        if not ((name in named and value) or (name in flags and not equals)):
            known = [*(f"{n}=..." for n in named), *flags]
            raise InvalidPipeline(
                f"stage {stage} has no option {part!r}",
                hint=f"use {', '.join(known)}",
            )
        options[name] = value
    return first, options
