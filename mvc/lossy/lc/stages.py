"""Stages of LC-Checkpoint, which stores the states of a training as lossy deltas (docs/lc.md).

A stored version is the previous stored version plus a rounded delta. So it differs from the
training's state. The delta cannot be undone. This module has the base classes of the stages, the
coders, the stage ``promote``, and the short form ``lc:...`` of a pipeline.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from decimal import Decimal
from typing import ClassVar, Literal, Protocol

from msgspec import Struct

from mvc.codecs.compressors import HUFFMAN
from mvc.codecs.stage import LC, Costs, Kind, Stage, number, plain, read_options, whole_number
from mvc.codecs.stages import Planes
from mvc.codecs.streams import Parts
from mvc.codecs.varint import Cursor
from mvc.errors import InvalidPipeline
from mvc.lossy.lc.coders import ans, huffman, packed
from mvc.lossy.lc.groups import Group, TensorChange
from mvc.lossy.lc.step import Addition, Symbols
from mvc.lossy.weights import LossyStage

PREFIX = "lc:"
MAX_BITS = 8
"""The largest X of ``promote:X``. Its 255 buckets are about as many as occur in a training."""

_LEAST_SHARE = "0.0001"


class Quantiser(Stage, frozen=True):
    """Turns a model's changes into symbols (small integers).

    ``own``: whether every tensor has a separate table with the values of its symbols.
    """

    accepts = frozenset({Kind.PAIR})
    needs = "to be first"
    scope = "group"
    operator = "add"
    delta = True
    lossy = True
    feature = LC
    own: bool

    def full(self) -> Stage:
        """The stage for full records, which are exact."""
        return Planes("planes")

    @abstractmethod
    def choose(
        self, pipeline: LossyPipeline, groups: Sequence[Group]
    ) -> list[tuple[TensorChange, Addition]]:
        """Chooses a delta for each change in ``groups``, within the bounds of ``pipeline``."""


class SymbolCoding(Protocol):
    """The functions that each module of ``mvc.lossy.lc.coders`` has."""

    def encode(self, symbols: Symbols, alphabet: int) -> Parts: ...

    def decode(self, cursor: Cursor, count: int, alphabet: int) -> Symbols: ...


class Coder(Stage, frozen=True):
    """Stores the symbols of all tensors of a record."""

    accepts = frozenset({Kind.BUCKETS, Kind.SYMBOLS})
    returns = Kind.BYTES
    needs = "the symbols of expq, promote or uniform before it"
    scope = "group"
    feature = LC
    coding: ClassVar[SymbolCoding]

    def full(self) -> Stage:
        """The stage that codes the byte planes of full records."""
        return HUFFMAN


class Promote(Stage, frozen=True):
    """lossy: keeps the 2^X - 1 largest exponents, or as many as a bound allows

    A *bucket* has the changes of one sign and exponent. One of three fields is set. ``bits``: X.
    ``budget``: keep as many buckets as fit into this share of the raw bytes. ``error``: keep as few
    buckets as possible, with a relative error of the delta of at most this number.
    """

    bits: int
    budget: Decimal | None
    error: Decimal | None
    usage = "promote:X|budget=B|error=E"
    accepts = frozenset({Kind.BUCKETS})
    returns = Kind.SYMBOLS
    needs = "the buckets of expq directly before it"
    scope = "group"
    delta = True
    lossy = True
    feature = LC

    @classmethod
    def read(cls, name: str, parameter: str) -> Stage:
        if "=" not in parameter:
            bits = whole_number(name, "X", parameter, low=1, high=MAX_BITS)
            return cls(f"{name}:{bits}", bits, None, None)
        key, value, text = bound_of(name, parameter)
        share = {"budget": None, "error": None, key: value}
        return cls(f"{name}:{text}", 0, share["budget"], share["error"])


class LossyPipeline(Struct, frozen=True):
    """The stages of a pipeline that decide whether a version is saved, and that change weights.

    If the pipeline is ``forward_only``, ``quantiser``, ``promote`` and ``coder`` make and store
    lossy deltas.
    """

    text: str
    operator: Literal["none", "sub", "xor", "add"]
    decisions: tuple[Stage, ...]
    lossy: tuple[LossyStage, ...]
    quantiser: Quantiser | None
    promote: Promote | None
    coder: Coder | None

    @property
    def forward_only(self) -> bool:
        """Whether deltas are added to a state, and cannot be undone (``mvc.lossy.lc``).

        Such deltas are lossy: the stored version is the state after the addition. They are encoded
        for all tensors together, by ``mvc.lossy.lc.payload``.
        """
        return self.operator == "add"

    @abstractmethod
    def levels(self) -> Sequence[LossyPipeline]:
        """Forms of the pipeline without decisions: as written, then finer and finer forms.

        The last form changes no weights.
        """


class Huffman(Coder, frozen=True):
    """codes symbols: a canonical Huffman code"""

    usage = "huffman"
    costs: ClassVar[Costs] = {4: (11.0, 0.0)}
    coding: ClassVar[SymbolCoding] = huffman


class Packed(Coder, frozen=True):
    """codes symbols: several to a byte, then Huffman codes of zlib or zstd (fast)"""

    usage = "packed"
    costs: ClassVar[Costs] = {4: (0.59, 0.0)}
    coding: ClassVar[SymbolCoding] = packed


class Ans(Coder, frozen=True):
    """codes symbols: asymmetric numeral systems (smallest)"""

    usage = "ans"
    costs: ClassVar[Costs] = {4: (30.0, 0.0)}
    coding: ClassVar[SymbolCoding] = ans


def expand(text: str) -> str:
    """The stages of a short form ``lc:...``. Raises InvalidPipeline, which names unknown words.

    >>> expand("lc:x=3")
    'expq | promote:3 | packed'
    >>> expand("lc:uniform,budget=0.02")
    'uniform:budget=0.02 | ans'
    """
    known = [coder.usage for coder in (Huffman, Packed, Ans)]
    words = [word.strip() for word in text.removeprefix(PREFIX).split(",")]
    _, options = read_options(
        PREFIX.rstrip(":"), ",".join(("", *words)), ("x", "budget", "error"),
        ("uniform", "mean", "tensor", *known),
    )  # fmt: skip
    bounds = [name for name in ("x", "budget", "error") if name in options]
    coders = [name for name in known if name in options]
    if len(bounds) != 1 or len(coders) > 1:
        raise InvalidPipeline(
            f"{text!r} must have exactly one bound and at most one coder",
            hint=f"such as lc:x=3, lc:budget=0.05 or lc:uniform,budget=0.02; coders: "
            f"{', '.join(known)}",
        )
    (bound,) = bounds
    if bound == "x":
        whole_number(text, "X", options["x"], low=1, high=MAX_BITS)
    coder = coders[0] if coders else "packed" if bound == "x" else "ans"
    flags = [name for name in ("mean", "tensor") if name in options]
    if "uniform" in options:
        return f"uniform:{','.join([f'{bound}={options[bound]}', *flags])} | {coder}"
    bound_text = options[bound] if bound == "x" else f"{bound}={options[bound]}"
    return f"{with_flags('expq', flags)} | promote:{bound_text} | {coder}"


def with_flags(stage: str, flags: Sequence[str]) -> str:
    """The text of a stage with flags."""
    return stage + (":" + ",".join(flags) if flags else "")


def bound_of(name: str, parameter: str) -> tuple[str, Decimal, str]:
    """Parses ``budget=B`` or ``error=E``.

    Returns the name, the value, and the text of the option.
    """
    key, _, value = (part.strip() for part in parameter.partition("="))
    if key not in ("budget", "error"):
        raise InvalidPipeline(
            f"stage {name} has no option {parameter!r}", hint="use budget=B or error=E"
        )
    share = number(name, key, value, low=_LEAST_SHARE, high="1")
    return key, share, f"{key}={plain(share)}"
