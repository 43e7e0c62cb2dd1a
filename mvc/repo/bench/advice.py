"""From what was measured to what a repository would cost, and to advice.

A version costs its deltas and its part of the full version that ends a chain; its
recovery takes one full version and the deltas behind it (R' = floor(MDTT / t) where
``store.max_recovery`` is set; VSOL §3.2.8).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Advice", "Costs", "Figures", "Row", "Rules", "Series", "advise", "costs"]

_KEEPS_UP = 0.5
"""Share of the fastest delta pipeline's encoding speed that a choice must reach."""
_ENDLESS = 1_000_000  # deltas behind which nothing needs to be told apart
_ALIKE = 1.01  # sizes that differ by less are no reason to choose


@dataclass(frozen=True, slots=True)
class Figures:
    """``ratio``: stored bytes per raw byte. Speeds in raw bytes a second, 0 if not timed.

    ``chained``: the share of the raw bytes that was coded against a base, ``chain_ratio``
    the ratio of that part.
    """

    ratio: float
    encode: float
    decode: float
    chained: float = 0.0
    chain_ratio: float = 0.0


@dataclass(frozen=True, slots=True)
class Series:
    """What is alike for all pipelines.

    ``raw``: bytes of the newest version. ``changed``: share of them that a new version
    changes, ``touched``: that has changed at all. ``hash_seconds``: to check a version.
    """

    raw: int
    changed: float
    touched: float
    hash_seconds: float


@dataclass(frozen=True, slots=True)
class Rules:
    """The settings that bound a chain, as ``mvc config`` names them."""

    reset_interval: int
    max_recovery: float | None
    max_chain: float


@dataclass(frozen=True, slots=True)
class Costs:
    """``interval``: versions from one in full to the next. ``version_bytes``: the mean.

    ``recovery``: seconds for the newest version at the end of a chain; ``fits``: within
    ``store.max_recovery``.
    """

    interval: int
    version_bytes: float
    recovery: float
    fits: bool


@dataclass(frozen=True, slots=True)
class Row:
    """One pipeline. ``delta`` is None where no version has a base to be coded against."""

    pipeline: str
    preset: str | None
    takes_bases: bool
    delta: Figures | None
    full: Figures
    costs: Costs

    @property
    def name(self) -> str:
        """What ``commit.pipeline`` is set to: the preset, if it is one."""
        return self.preset or self.pipeline

    @property
    def speed(self) -> float:
        """Encoding speed of what most commits store."""
        return self.delta.encode if self.delta else self.full.encode


@dataclass(frozen=True, slots=True)
class Advice:
    """``row`` is None where no pipeline keeps within the bound.

    ``least_speed``: what a pipeline must encode at, in bytes a second, to be advised.
    """

    row: Row | None
    reason: str
    least_speed: float


def costs(series: Series, delta: Figures | None, full: Figures, rules: Rules) -> Costs:
    """What a long history with versions like these would cost under one pipeline."""
    full_seconds = series.raw * _per(full.decode) + series.hash_seconds
    bound = rules.max_recovery
    fits = bound is None or full_seconds <= bound
    chained = delta.chained if delta else 0.0
    if delta is None or not chained:
        stored = series.raw * (series.changed * delta.ratio if delta else full.ratio)
        return Costs(1, stored, full_seconds, fits)
    step = series.raw * series.changed * chained * _per(delta.decode)
    deltas = rules.reset_interval - 1
    if bound is not None:
        deltas = _times(bound - full_seconds, step)
    deltas = min(deltas, _times(rules.max_chain, delta.chain_ratio))
    ends = series.raw * series.touched * chained * full.ratio / (deltas + 1)
    stored = series.raw * series.changed * delta.ratio + ends
    return Costs(deltas + 1, stored, full_seconds + deltas * step, fits)


def _times(whole: float, part: float) -> int:
    """How often ``part`` fits in, within reason."""
    return int(max(0.0, min(whole / part, _ENDLESS))) if part else _ENDLESS


def _per(rate: float) -> float:
    return 1 / rate if rate else 0.0


def advise(rows: Sequence[Row], in_use: str) -> Advice:
    """The smallest store whose commits keep up and whose recovery keeps within the bound.

    Of sizes within a per cent of the smallest, the pipeline in use is chosen, else the
    one listed first. Pipelines without deltas are left out where no delta was measured.
    """
    least = _KEEPS_UP * max((row.speed for row in rows if row.takes_bases), default=0.0)
    fitting = [row for row in rows if row.costs.fits and (row.takes_bases or row.delta)]
    if not fitting:
        why = "no pipeline recovers even a full version within store.max_recovery"
        return Advice(None, why, least)
    # Where the bound leaves only slow ones, slow ones it is.
    keeping_up = [row for row in fitting if row.speed >= least] or fitting
    smallest = min(row.costs.version_bytes for row in keeping_up)
    alike = [row for row in keeping_up if row.costs.version_bytes <= _ALIKE * smallest]
    chosen = next((row for row in alike if row.pipeline == in_use), alike[0])
    why = "the smallest store of those that encode at least half as fast as the fastest with deltas"
    if any(not row.costs.fits for row in rows):
        why += " and recover within store.max_recovery"
    return Advice(chosen, why, least)
