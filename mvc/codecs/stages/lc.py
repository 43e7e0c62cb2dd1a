"""The stages of LC-Checkpoint: a lossy delta that is added to the state of a training.

``expq`` puts the changes into buckets by sign and exponent and gives each bucket one
representative; ``promote`` keeps the buckets with the largest exponents and sets all others to
zero; a coder stores which bucket each entry is in. ``uniform`` is a quantiser of equal steps
in place of the first two. What they do is in ``mvc.codecs.lc``.

A delta like this leads from a state to a later one and never back, and what is stored is the
state that the encoder has after adding it, not the one that it was given.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import ClassVar, Literal

from mvc.codecs.stages.base import LC, Kind, Stage, number, plain, read_options, whole
from mvc.codecs.stages.codings import Planes, Zstd
from mvc.errors import InvalidPipeline

PREFIX = "lc:"
MAX_BITS = 8
"""Of ``promote:X``: 255 buckets, about all that a training ever has."""

_CODERS = ("huffman", "packed", "ans")
_LEAST_SHARE = "0.0001"


class Quantiser(Stage, frozen=True):
    """Makes symbols of a model's changes. ``own`` says that every tensor has its own table."""

    takes = frozenset({Kind.PAIR})
    needs = "to stand first"
    scope = "group"
    delta = True
    lossy = True
    feature = LC
    own: bool

    def full(self) -> Stage:
        """Full records are exact: byte planes."""
        return Planes("planes")


class ExpQ(Quantiser, frozen=True):
    """Buckets by sign and exponent. ``mean``: the representative is the bucket's mean."""

    mean: bool
    own: bool
    usage = "expq[:mean][,tensor]"
    about = "lossy delta: one value for all changes of one sign and exponent"
    gives = Kind.BUCKETS

    @classmethod
    def read(cls, name: str, parameter: str) -> Stage:
        said = _flags(name, parameter, ("mean", "tensor"))
        return cls(_text(name, said), mean="mean" in said, own="tensor" in said)


class Promote(Stage, frozen=True):
    """Keeps the buckets with the largest exponents: how many, one of three numbers says.

    ``bits``: 2^bits - 1 buckets. ``budget``: as many as fit into this share of the raw bytes.
    ``error``: as few as keep the delta's relative error within it.
    """

    bits: int
    budget: Decimal | None
    error: Decimal | None
    usage = "promote:X|budget=B|error=E"
    about = "lossy: keeps the 2^X - 1 largest exponents, or as many as a bound allows"
    takes = frozenset({Kind.BUCKETS})
    gives = Kind.SYMBOLS
    needs = "the buckets of expq directly before it"
    scope = "group"
    delta = True
    lossy = True
    feature = LC

    @classmethod
    def read(cls, name: str, parameter: str) -> Stage:
        if "=" not in parameter:
            bits = whole(name, "X", parameter, 1, MAX_BITS)
            return cls(f"{name}:{bits}", bits, None, None)
        key, value = _bound(name, parameter)
        share = {"budget": None, "error": None, key: value}
        return cls(f"{name}:{key}={plain(value)}", 0, share["budget"], share["error"])


class Uniform(Quantiser, frozen=True):
    """Equal steps around a dead zone of two steps; each level stands for the mean of its entries.

    The step is the smallest that keeps to ``budget``, or the largest that keeps to ``error``.
    """

    budget: Decimal | None
    error: Decimal | None
    own: bool
    usage = "uniform:budget=B|error=E[,tensor]"
    about = "lossy delta: equal steps around zero, as fine as a bound allows"
    gives = Kind.SYMBOLS

    @classmethod
    def read(cls, name: str, parameter: str) -> Stage:
        first, *said = (part.strip() for part in parameter.split(","))
        key, value = _bound(name, first)
        _, options = read_options(name, ",".join(("", *said)), ("budget", "error"), ("tensor",))
        said = [flag for flag in ("tensor",) if flag in options]
        if len(options) > len(said):
            raise InvalidPipeline(f"stage {name} takes one bound: budget=B or error=E")
        share = {"budget": None, "error": None, key: value}
        text = _text(f"{name}:{key}={plain(value)}", said, ",")
        return cls(text, own="tensor" in said, **share)


class Coder(Stage, frozen=True):
    """Stores the symbols of all tensors of a record. ``coding`` is its name in the code."""

    takes = frozenset({Kind.BUCKETS, Kind.SYMBOLS})
    gives = Kind.BYTES
    needs = "the symbols of expq, promote or uniform before it"
    scope = "group"
    feature = LC
    coding: ClassVar[Literal["huffman", "packed", "ans"]]

    def full(self) -> Stage:
        """What codes the planes of full records."""
        return Zstd("zstd:huff")


class Huffman(Coder, frozen=True):
    """A canonical Huffman code; at least one bit an entry."""

    usage = "huffman"
    about = "codes symbols: a canonical Huffman code"
    coding = "huffman"


class Packed(Coder, frozen=True):
    """Several symbols a byte, and a Huffman code of the bytes."""

    usage = "packed"
    about = "codes symbols: several to a byte, then Huffman codes of zlib or zstd (fast)"
    coding = "packed"


class Ans(Coder, frozen=True):
    """Asymmetric numeral systems: nearly the entropy."""

    usage = "ans"
    about = "codes symbols: asymmetric numeral systems (smallest)"
    coding = "ans"


def expand(text: str) -> str:
    """The line that a short form ``lc:...`` means; InvalidPipeline names what it does not know.

    >>> expand("lc:x=2")
    'expq | promote:2 | packed'
    >>> expand("lc:uniform,budget=0.02")
    'uniform:budget=0.02 | ans'
    """
    words = [word.strip() for word in text.removeprefix(PREFIX).split(",")]
    _, said = read_options(
        PREFIX.rstrip(":"), ",".join(("", *words)), ("x", "budget", "error"),
        ("uniform", "mean", "tensor", *_CODERS),
    )  # fmt: skip
    bounds = [name for name in ("x", "budget", "error") if name in said]
    coders = [name for name in _CODERS if name in said]
    if len(bounds) != 1 or len(coders) > 1:
        raise InvalidPipeline(
            f"{text!r} does not say one bound and at most one coder",
            hint=f"such as lc:x=2, lc:budget=0.05 or lc:uniform,budget=0.02; coders: "
            f"{', '.join(_CODERS)}",
        )
    bound = bounds[0]
    if bound == "x":
        whole(text, "X", said["x"], 1, MAX_BITS)
    coder = coders[0] if coders else "packed" if bound == "x" else "ans"
    if "uniform" in said:
        if bound == "x" or "mean" in said:
            wrong = "mean" if "mean" in said else "x"
            raise InvalidPipeline(
                f"{text!r}: uniform takes no {wrong}", hint="it takes budget=B or error=E"
            )
        own = ["tensor"] if "tensor" in said else []
        return _text(f"uniform:{bound}={said[bound]}", own, ",") + f" | {coder}"
    flags = [name for name in ("mean", "tensor") if name in said]
    kept = said[bound] if bound == "x" else f"{bound}={said[bound]}"
    return f"{_text('expq', flags)} | promote:{kept} | {coder}"


def _flags(name: str, parameter: str, known: tuple[str, ...]) -> list[str]:
    """Those of ``known`` that the parameter names."""
    if not parameter:
        return []
    _, said = read_options(name, f",{parameter}", (), known)
    return [flag for flag in known if flag in said]


def _text(stage: str, flags: Sequence[str], colon: str = ":") -> str:
    return stage + (colon + ",".join(flags) if flags else "")


def _bound(name: str, parameter: str) -> tuple[str, Decimal]:
    """``budget=B`` or ``error=E``."""
    key, _, value = (part.strip() for part in parameter.partition("="))
    if key not in ("budget", "error"):
        raise InvalidPipeline(
            f"stage {name} does not know {parameter!r}", hint="it knows budget=B and error=E"
        )
    return key, number(name, key, value, _LEAST_SHARE, "1")
