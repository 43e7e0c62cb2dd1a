"""Figures of the drift: docs/pipelines.md and the experiment's README."""

from __future__ import annotations

from statistics import fmean, median
from typing import Any

from .sources import Claim, Stated, report

__all__ = ["CLAIMS", "STATED"]

README = "examples/reproduce/drift/README.md"
KEPT = "examples/reproduce/drift/bounds.md"
GRIDS = "docs/pipelines.md"
MNIST, TEXTS, GRID = "drift-mnist-4.26", "drift-texts-4.26", "drift-texts-grid"
BOUNDS = ("mnist", "fashion", "mnist-conv", "fashion-conv", "texts")
GUARDED_IN = (*BOUNDS[:-1], "texts-guarded")
GUARDED = tuple(f"frontier-{bound}-guarded" for bound in ("0", "0.1", "1"))
NETWORKS = {MNIST: "conv", TEXTS: "lstm"}


def values(name: str, configuration: str, network: str, key: str) -> list[float]:
    """Of a result's line, label by label."""
    (line,) = (line for line in report(name)["lines"] if line["name"] == configuration)
    found: list[float] = line["cells"][network][key]
    return found


def mean(name: str, configuration: str, network: str, key: str = "delta_bytes") -> float:
    return fmean(values(name, configuration, network, key))


def share(name: str, first: str, other: str, network: str) -> float:
    """Of the bytes of deltas."""
    return mean(name, first, network) / mean(name, other, network)


def _of_vsol(data: str) -> list[float]:
    """The guarded presets' bytes by those of the thesis's smallest unbroken preset of the bound.

    Of its fast one where each is broken.
    """
    lines = {line["name"]: line for line in report(f"drift-bounds-{data}")["bounds"][0]["lines"]}
    rivals = [name.replace("frontier", "vsol").replace("guarded", "fast") for name in GUARDED]
    return [
        lines[name]["of_vsol"] or lines[name]["bytes"] / lines[rival]["bytes"]
        for name, rival in zip(GUARDED, rivals, strict=True)
    ]


def _median() -> list[float]:
    """How many bounds of how many have an unbroken preset of the thesis; the median share."""
    lines = [line for name in GUARDED for line in _bounds(name)]
    unbroken = sum(line["of_vsol"] is not None for line in lines)
    return [unbroken, len(lines), median(share for data in GUARDED_IN for share in _of_vsol(data))]


def _held_out() -> list[float]:
    """Guarded presets whose drop on the last batch is above the bound; all; the most above it."""
    own = [
        preset["target"][0] - preset["bound"]
        for data in GUARDED_IN
        for training in report(f"drift-bounds-{data}")["trainings of the bounds"]
        for preset in training["presets"]
        if preset["name"] in GUARDED
    ]
    return [sum(drop > 0 for drop in own), len(own), 100 * max(own)]


def _bounds(preset: str) -> list[dict[str, Any]]:
    """The preset's line of every table of bounds that has one."""
    names = GUARDED_IN if preset in GUARDED else BOUNDS
    tables = [report(f"drift-bounds-{name}")["bounds"][0]["lines"] for name in names]
    return [line for lines in tables for line in lines if line["name"] == preset]


def _guarded() -> list[float]:
    lines = [line for name in GUARDED for line in _bounds(name)]
    cases = sum(line["trainings"] for line in lines)
    following, target, worst = (
        sum(line[measure]["broken"] for line in lines) for measure in ("next", "target", "worst")
    )
    twice = sum(line[measure]["twice"] for line in lines for measure in ("next", "target", "worst"))
    once = sum(line["at_once"] for line in lines)
    return [cases / 3, following, cases, target, worst, twice, once]


def _worst(preset: str) -> list[float]:
    """Trainings in which the worst label breaks the bound; all; those by all labels at once."""
    lines = _bounds(preset)
    return [
        sum(line["worst"]["broken"] for line in lines),
        sum(line["trainings"] for line in lines),
        sum(line["at_once"] for line in lines),
    ]


def _of_smallest(name: str, network: str, bound: str, first: str) -> float:
    """Of the bytes of that preset of the thesis for this bound that has fewer."""
    presets = (f"vsol-{bound}-fast", f"vsol-{bound}-slow")
    return max(share(name, first, other, network) for other in presets)


def _frontier(name: str) -> list[float]:
    network = NETWORKS[name]
    firsts = (("0", "frontier-0"), ("0.1", "frontier-0.1"), ("1", "frontier-1"))
    found = [_of_smallest(name, network, bound, first) for bound, first in firsts]
    return [*found, _of_smallest(name, network, "1", "frontier-1-slow")]


def _slow(name: str) -> list[float]:
    network = NETWORKS[name]
    thesis = [
        share(name, f"vsol-{bound}-slow", f"vsol-{bound}-fast", network)
        for bound in ("0", "0.1", "1")
    ]
    return [*thesis, share(name, "frontier-1-slow", "frontier-1", network)]


def _lost(name: str, configuration: str) -> list[float]:
    """Points that are lost on the drift target, by label: the least first."""
    return sorted(-value for value in values(name, configuration, NETWORKS[name], "target"))


def _less(name: str, key: str = "accuracy") -> list[float]:
    """By how many points ``frontier-1`` is less accurate than ``vsol-1-slow``, label by label."""
    pairs = zip(
        values(name, "vsol-1-slow", "lstm", key), values(name, "frontier-1", "lstm", key),
        strict=True,
    )  # fmt: skip
    return [one - other for one, other in pairs]


CLAIMS = (
    Claim(
        KEPT,
        "In these {} trainings the three guarded presets are broken on the next batch in {} of {} "
        "cases, on the last one in {}, on the worst label in {}; by more than two intervals in {}, "
        "and by an interval for all labels at once in {}.",
        _guarded,
    ),
    Claim(
        KEPT,
        "Of the presets without a guard `frontier-0` is broken on the worst label in {} of {} "
        "trainings (at once in {}), `vsol-0.1-fast` in {} of {} ({}), `vsol-1-fast` in {} of {} "
        "({});",
        lambda: [
            count
            for preset in ("frontier-0", "vsol-0.1-fast", "vsol-1-fast")
            for count in _worst(preset)
        ],
    ),
    Claim(
        KEPT,
        "The guarded presets for 0, 0.1 and 1 points take {}, {} and {} of the bytes with the "
        "small net on MNIST, {}, {} and {} on Fashion-MNIST; {}, {} and {} with the conv net on "
        "MNIST, {}, {} and {} on Fashion-MNIST; {}, {} and {} with the LSTM.",
        lambda: [share for name in GUARDED_IN for share in _of_vsol(name)],
    ),
    Claim(
        KEPT,
        "There is one for {} of these {} pairs of a network and a bound; the median share is {}.",
        _median,
    ),
    Claim(
        KEPT,
        "their drop there is above the bound in {} of {} cases, by up to {} points.",
        _held_out,
    ),
    Claim(
        README,
        "`lossless` takes {} of the delta bytes of the thesis's lossless pipeline, on texts {}.",
        lambda: [
            share(MNIST, "lossless", "vsol", "conv"),
            share(TEXTS, "lossless", "vsol", "lstm"),
        ],
    ),
    Claim(
        README,
        "presets take {} (bound 0), {} (0.1) and {} (1; `slow` {}) of the delta bytes",
        lambda: _frontier(MNIST),
    ),
    Claim(
        README,
        "`frontier-0.1` loses {} to {} points there, `frontier-1` {} to {}, `vsol-0.1-slow` {} to "
        "{} and `vsol-1-slow` {} to {}.",
        lambda: [
            end
            for preset in ("frontier-0.1", "frontier-1", "vsol-0.1-slow", "vsol-1-slow")
            for end in (_lost(MNIST, preset)[0], _lost(MNIST, preset)[-1])
        ],
    ),
    Claim(
        README,
        "they take {} (bound 0), {} (0.1) and {} (1) of the delta bytes of `fast`, "
        "`frontier-1-slow` {} of those",
        lambda: _slow(MNIST),
    ),
    Claim(README, "The shares are {}, {} and {} (`slow` {})", lambda: _frontier(TEXTS)),
    Claim(
        README,
        "`frontier-0` loses up to {} points and `frontier-0.1` up to {}, `vsol-1-slow` {} and {}.",
        lambda: [
            _lost(TEXTS, "frontier-0")[-1],
            _lost(TEXTS, "frontier-0.1")[-1],
            *_lost(TEXTS, "vsol-1-slow"),
        ],
    ),
    Claim(
        README,
        "accurate than `frontier-1` by {} and {} points, at {} times its bytes of deltas.",
        lambda: [*_less(TEXTS), share(TEXTS, "vsol-1-slow", "frontier-1", "lstm")],
    ),
    Claim(
        README,
        "`slow` takes {} (bound 0), {} (0.1) and {} (1) of the delta bytes of `fast`, "
        "`frontier-1-slow` {}.",
        lambda: _slow(TEXTS),
    ),
    Claim(
        GRIDS,
        "`frontier-1` is {} and {} points less accurate than `vsol-1-slow`, with {} of the bytes",
        lambda: [*_less(TEXTS), share(TEXTS, "frontier-1", "vsol-1-slow", "lstm")],
    ),
    Claim(
        GRIDS,
        "with C = 4 it was {} points lower on texts",
        lambda: [-mean(GRID, "grid:4 | steps | gaps | zstd:huff", "lstm", "accuracy")],
    ),
)
STATED = (
    Stated(README, "2 % of MNIST, 3 % of the package descriptions"),
    Stated(KEPT, "half a 95 % confidence interval"),
    Stated(KEPT, "hundred to 3,225 samples"),
    Stated(KEPT, "several times a bound of 0 or 0.1 points"),
)
