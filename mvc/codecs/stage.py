"""The base class of all stages, and functions that parse the parameters of stages.

A stage is one step of a pipeline, such as ``zstd:1`` in ``xor | planes | zstd:1``. Pipelines encode
and decode tensors.
"""

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
    """The kinds of data that stages accept and return. The values are words for messages."""

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
"""The name of a feature of the repository format: lossless stages except byte planes and zstd."""

LC = "lc"
"""The name of a feature of the repository format: lossy deltas (``mvc.lossy.lc``)."""

Costs: TypeAlias = Mapping[int, tuple[float, float]]
"""Maps the width of an element in bytes to the time for each raw byte and each stored byte, in ns.
"""

DELTAS = frozenset({Kind.DIFFERENCES, Kind.PATTERNS, Kind.RESET, Kind.FOLDED})
WORDS = DELTAS | {Kind.TENSOR, Kind.KEPT}


class Stage(Struct, frozen=True):
    """One stage of a pipeline, such as ``zstd:1``. Each kind of stage is a subclass.

    ``text``: name and parameters as the user wrote them. ``usage``: the form of the text, which
    begins with the name. ``about``: the first line of the docstring, for users. ``returns``: the
    kind of data that the stage returns; None if it returns the kind that it gets.
    """

    text: str
    usage: ClassVar[str]
    about: ClassVar[str]
    accepts: ClassVar[frozenset[Kind]]
    returns: ClassVar[Kind | None] = None
    needs: ClassVar[str]
    scope: ClassVar[Literal["tensor", "group"]] = "tensor"
    operator: ClassVar[Literal["none", "sub", "xor", "add"]] = "none"  # how the delta is computed
    delta: ClassVar[bool] = False  # whether the stage is omitted if a tensor is stored in full
    lossy: ClassVar[bool] = False
    feature: ClassVar[str]  # of the repository format, as ``STAGES``
    decides: ClassVar[bool] = False  # decides whether a version is saved, and changes nothing
    costs: ClassVar[Costs] = {}  # of decoding (tests/benchmarks/bench_rates.py); {}: negligible

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "usage" in vars(cls):  # not a variant of another stage
            cls.about = (cls.__doc__ or "").partition("\n")[0]

    @classmethod
    def read(cls, name: str, parameter: str) -> Stage:
        """The stage ``name:parameter``. Raises InvalidPipeline for a wrong parameter."""
        if parameter:
            raise InvalidPipeline(f"stage {name} takes no parameter, not {parameter!r}")
        return cls(name)

    @property
    def acts_on(self) -> str:
        """What the stage processes at a time, in words for messages."""
        of_tensors = "all tensors" if self.scope == "group" else "each tensor"
        return "the version" if self.decides else of_tensors

    def costs_in(self, operator: str) -> Costs:  # noqa: ARG002
        """The costs of decoding if the delta was computed with ``operator``."""
        return self.costs

    def full(self) -> Stage | None:
        """The stage to use if a tensor is stored in full. None if this stage is then omitted."""
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
    """A number as text, without an exponent and without needless zeros."""
    return format(value.normalize() + 0, "f")


def read_options(
    stage: str, parameter: str, named: Sequence[str], flags: Sequence[str]
) -> tuple[str, dict[str, str]]:
    """Parses ``first,name=value,flag``. Returns ``first`` and a dict with the other parts.

    In the dict, the value of a flag is empty.
    """
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
