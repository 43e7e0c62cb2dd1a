"""Figures of rework: docs/lc.md and the experiment's README."""

from __future__ import annotations

from functools import partial
from statistics import fmean
from typing import Any

from .sources import Claim, Stated, report

__all__ = ["CLAIMS", "STATED"]

README = "examples/reproduce/rework/README.md"
MODELS = ("mlr", "mf", "lenet")


def sizes(model: str, x: int = 3) -> dict[str, Any]:
    """The stages' mean and largest shares of a checkpoint, and the entropy's."""
    (group,) = (
        group for group in report("rework-sizes")["groups"] if group["setting"]["model"] == model
    )
    return next(line for line in group["lines"] if line["x"] == x)


def line(name: str, model: str, scheme: str) -> dict[str, Any]:
    """The trials of a scheme."""
    (group,) = (group for group in report(name)["groups"] if group["setting"]["model"] == model)
    return next(line for line in group["lines"] if line["scheme"] == scheme)


def times(model: str, scheme: str, other: str, kind: str = "fractional") -> float:
    """How many times less rework a scheme has than another."""
    return fmean(line("rework", model, other)[kind]) / fmean(line("rework", model, scheme)[kind])


def _entropies(model: str) -> list[float]:
    found = sizes(model)
    entropy, ans, coded = found["entropy"][0], found["ans"][0], found["E+P+H"][0]
    above = 100 * (ans / entropy - 1)
    return [100 * entropy, 100 * ans, above, 100 * coded, coded / entropy]


def _gain(x: int) -> list[float]:
    """Of ``ans`` against Huffman's code."""
    return [sizes(model, x)["E+P+H"][0] / sizes(model, x)["ans"][0] for model in MODELS]


def _tables(x: int) -> dict[str, dict[str, float]]:
    """What a cache of Huffman codes does, by model."""
    return {
        group["setting"]["model"]: line
        for group in report("rework-tables")["groups"]
        for line in group["lines"]
        if line["x"] == x
    }


LESS = "lc:mean,budget=0.05"
DECISIONS = "docs/decisions.md"
CLAIMS = (
    Claim(
        DECISIONS,
        "makes deltas up to {} % larger with `lc:x=3`, and up to {} % with `lc:x=4`",
        lambda: [100 * max(each["larger"] for each in _tables(x).values()) for x in (3, 4)],
    ),
    Claim(
        DECISIONS,
        "Building the code takes about {} % of the encoding time for 60,000 weights and {} to {} % "
        "for 8,000",
        lambda: [
            *(100 * _tables(2)[model]["build"] for model in ("lenet", "mlr")),
            100 * _tables(3)["mlr"]["build"],
        ],
    ),
    *(
        Claim(
            README,
            f"| {title} | {{}} % | {{}} % | {{}} % | {{}} % | {{}} |",
            partial(_entropies, model),
        )
        for model, title in zip(MODELS, ("MLR", "MF", "LeNet-5"), strict=True)
    ),
    Claim(
        README,
        "in fractional iterations at most {} times TOPN's, in whole ones at most {} times",
        lambda: [
            max(1 / times(model, LESS, "topn:0.05", kind) for model in MODELS)
            for kind in ("fractional", "rework")
        ],
    ),
    Claim(
        README,
        "smaller than Huffman's code by {} times (MF), {} times (LeNet-5) and {} times (MLR) at "
        "x=3, and by {}, {} and {} times at x=2",
        lambda: [_gain(x)[which] for x in (3, 2) for which in (1, 2, 0)],
    ),
    Claim(
        README,
        "is {} times smaller than Huffman's bytes for LeNet-5 and {} times for MLR; for MF it is "
        "{} times",
        lambda: [_entropies(model)[-1] for model in ("lenet", "mlr", "mf")],
    ),
    Claim(
        README,
        "At x=2 the ratios are {} (MLR), {} (MF) and {} (LeNet-5)",
        lambda: [1 / sizes(model, 2)["E+P+H"][0] for model in MODELS],
    ),
)
STATED = (
    Stated(README, "three bits and a budget of 5 % lose less than both or"),
    Stated(README, "The paper gives SCAR and TOPN 5 % or 10 % and LC what it takes"),
    Stated(README, "LC's budget of 5 % is an upper bound"),
    Stated(DECISIONS, "the paper's cache of codes (section 3.2)"),
    Stated(README, "At x=3 only MF reaches 2.5 times."),
    Stated(README, "No coder of single symbols could reach 2.5 times at x=3"),
    Stated(README, "less than one bit a weight, 3.13 %"),
    Stated(README, "the paper's 15 % means five"),
    Stated(README, "Intervals are 95 % of the mean, from 10,000 resamples"),
    Stated(README, "digits grow from 8 x 8 to 28 x 28"),
    Stated(
        README, "has batches of 50 and rate 0.5, so that an epoch of MovieLens's 100,004 ratings"
    ),
    Stated(README, "100,004 ratings, 671 users, 9,066 films"),
    Stated(README, "mean and 95 % interval"),
    Stated(README, "**Equal steps at 2 %**"),
    Stated(README, "SCAR and TOPN at 5 % leave out several times the noise"),
    Stated(README, "half the bytes of SCAR and TOPN at 5 %"),
    Stated(README, "**Momentum** of 0.9"),
    Stated(README, "by up to 17 %, and leaving out one after the sixth by less than 2 %"),
)
