"""An experiment: data, network, split and seed, all of which name its folder.

The split makes virtual drift out of a labelled data set: one label is rare at first, then grows
(the thesis "A Versioning System for Online Learning systems", section 4.1.2). Its names beside
ours: TBOn ``batches``, UPMOn ``peak``, UPOff ``seen``, POff ``offline``. All counts are exact:
shares are read as decimals, so that 0.1 means a tenth.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mvc.errors import WrongUsage

from ..data import Dataset
from ..experiment import option
from ..networks import Recipe, recipe_for
from ..workspace import digest

__all__ = [
    *("SEED", "Drift", "Experiment", "Plan", "Settings", "Share"),
    *("divide", "experiments", "largest_batch", "plan_split", "share_of"),
]

SEED = 2
"""The thesis's; the number of the label is added to it (section 4.2.1)."""

_MAX_SEED = 2**32 - 1

Share = str | float | Fraction
"""A share, 0 to 1. A float counts as the decimal that it prints as."""


@dataclass(frozen=True)
class Settings:
    """What differs from the defaults of a network; None stands for the default."""

    model: str | None = option(None, "conv, lstm, small or rows. Default: what fits.", "NAME")
    batch_size: int | None = option(None, "Default: 86, 256 or 8, or what the data allow.", "N")
    batches: int | None = option(None, "Online batches (TBOn). Default: 150, 60 for digits.", "N")
    peak: str = option("0.5", "Of the label in the last batch (UPMOn).", "SHARE")
    seen: str | None = option(
        None,
        "Of all data: samples of the label that are known offline (UPOff). Default: 0.0001, 0.001 "
        "for texts and digits.",
        "SHARE",
    )
    offline: Share | None = option(
        None, "Of all data: offline (POff). Default: what is left.", "SHARE", type=str
    )
    epochs: int | None = option(None, "Offline. Default: 10.", "N")
    seed: int = option(SEED, "The label is added.", "N")


@dataclass(frozen=True)
class Plan:
    """How many samples go where; the same for every label, since the scarcest one decides.

    ``drifting`` and ``others`` are samples of the label that drifts in and of all others.
    """

    batch_size: int
    batches: int
    peak: Fraction
    seen: Fraction
    offline: Fraction
    max_batches: int
    max_seen: Fraction
    max_offline: Fraction
    drifting_online: int
    others_online: int
    drifting_offline: int
    others_offline: int

    @property
    def per_batch(self) -> tuple[int, ...]:
        """Samples of the drifting label in each online batch: a share that grows linearly.

        After batch n their number is floor(all * (n+1)^2 / batches^2), the area under a
        straight line; the last batch ends at all of them.
        """
        return _per_batch(self.drifting_online, self.batches)


@dataclass(frozen=True)
class Drift:
    """Row numbers of a data set: those to train with before, and each online batch's.

    Inside a batch the drifting label comes first. int64.
    """

    offline: NDArray[np.int64]
    online: tuple[NDArray[np.int64], ...]


@dataclass(frozen=True)
class Experiment:
    """One network, trained offline and then online while one label drifts in."""

    data: Dataset
    recipe: Recipe
    plan: Plan
    epochs: int
    seed: int
    label: int

    @classmethod
    def of(cls, data: Dataset, settings: Settings, label: int) -> Experiment:
        """Checks everything; WrongUsage names what is out of range."""
        recipe = recipe_for(settings.model, data)
        if not 0 <= label < len(data.classes):
            raise WrongUsage(f"label is {label}: it must be from 0 to {len(data.classes) - 1}")
        epochs = recipe.epochs if settings.epochs is None else settings.epochs
        if epochs < 1:
            raise WrongUsage(f"epochs is {epochs}: it must be at least 1")
        if not 0 <= settings.seed <= _MAX_SEED:
            raise WrongUsage(f"seed is {settings.seed}: it must be from 0 to {_MAX_SEED}")
        batches = recipe.batches if settings.batches is None else settings.batches
        if batches < 2:
            raise WrongUsage(f"batches is {batches}: the last is not trained, so at least 2")
        seen = recipe.seen if settings.seen is None else settings.seen
        size, shares = settings.batch_size, {"peak": settings.peak, "seen": seen}
        if size is None:
            size = min(recipe.batch_size, largest_batch(data.counts, batches=batches, **shares))
        offline = settings.offline
        plan = plan_split(data.counts, batch_size=size, batches=batches, offline=offline, **shares)
        return cls(data, recipe, plan, epochs, settings.seed, label)

    @cached_property
    def drift(self) -> Drift:
        """The rows of every batch."""
        return divide(self.data.labels, self.label, self.plan, self.seed + self.label)

    @property
    def parameters(self) -> dict[str, Any]:
        """Everything that the training depends on, as plain values."""
        plan = self.plan
        return {
            "data": self.data.name,
            "samples": list(self.data.counts),
            "classes": list(self.data.classes),
            "model": self.recipe.name,
            "label": self.label,
            "seed": self.seed,
            "epochs": self.epochs,
            "batch_size": plan.batch_size,
            "batches": plan.batches,
            **{
                name: "/".join(map(str, getattr(plan, name).as_integer_ratio()))
                for name in ("peak", "seen", "offline")
            },
        }

    @property
    def name(self) -> str:
        """A folder's name: network, data, label and a digest of all parameters."""
        content = hashlib.sha256(self.data.inputs.tobytes() + self.data.labels.tobytes())
        name = digest([self.parameters, content.hexdigest()], 8)
        return f"{self.recipe.name}-{self.data.name}-{self.label}-{name}"


def experiments(data: Dataset, settings: Settings, labels: Sequence[int]) -> tuple[Experiment, ...]:
    """The same experiment for several labels: cross-validation over labels (section 4.2.1)."""
    if not labels or len(set(labels)) != len(labels):
        raise WrongUsage("labels must be named, each once")
    return tuple(Experiment.of(data, settings, label) for label in labels)


def plan_split(
    counts: Sequence[int],
    *,
    batch_size: int,
    batches: int = 150,
    peak: Share = "0.5",
    seen: Share = "0.0001",
    offline: Share | None = None,
) -> Plan:
    """The split of a data set that has ``counts`` samples of each label.

    ``batches`` of ``batch_size`` come online; the drifting label reaches the share ``peak``
    in the last. ``seen`` is how much of it is in the offline part, and ``offline`` how
    large that part is (default: what is left), both as shares of all data. Raises
    WrongUsage that names the parameter and its range.
    """
    if len(counts) < 2 or min(counts) < 1:
        raise WrongUsage("a drift needs at least two labels with at least one sample each")
    total, smallest, largest = sum(counts), min(counts), max(counts)
    top, part = share_of("peak", peak), share_of("seen", seen)
    if batch_size < 1:
        raise WrongUsage(f"batch_size is {batch_size}: it must be at least 1")
    if top == 0:
        raise WrongUsage("peak is 0: it must be above 0 and at most 1")
    fewer = "fewer batches" if batch_size == 1 else "smaller batches or fewer of them"
    max_batches = math.floor(Fraction(smallest * 2, batch_size) / top)
    if not 1 <= batches <= max_batches:
        raise WrongUsage(
            f"batches is {batches}: it must be from 1 to {max_batches}, since the scarcest label "
            f"has {smallest} samples, a batch {batch_size} and peak is {float(top):g}",
            hint=f"take {fewer} or a lower peak",
        )
    drifting = math.ceil(batches * top / 2 * batch_size)
    others = batches * batch_size - drifting
    max_seen = Fraction(smallest - drifting, total)
    if part > max_seen:
        raise WrongUsage(
            f"seen is {_text(part)}: it must be from 0 to {_text(max_seen)}, since {drifting} "
            f"of the {smallest} samples of the scarcest label come online",
            hint=f"take {fewer} or a lower peak",
        )
    fullest = max(_per_batch(drifting, batches))
    if fullest > batch_size:  # whole samples: for small batches and a high peak one too many
        raise WrongUsage(
            f"peak is {float(top):g}: a batch of {batch_size} would have to hold {fullest} "
            "samples of the label",
            hint="take a lower peak or larger batches",
        )
    before = math.floor(part * total)
    most = total - largest - others
    if most < 1:
        raise WrongUsage(
            f"batches is {batches}: no data is left to train with before, since {others} of the "
            f"{total - largest} samples of other labels come online",
            hint=f"take {fewer}",
        )
    max_offline, least = Fraction(most + before, total), Fraction(before + 1, total)
    whole = max_offline if offline is None else share_of("offline", offline)
    if not least <= whole <= max_offline:
        raise WrongUsage(
            f"offline is {_text(whole)}: it must be from {_text(least)} to {_text(max_offline)}"
        )
    return Plan(
        *(batch_size, batches, top, part, whole, max_batches, max_seen, max_offline),
        *(drifting, others, before, math.floor(whole * total) - before),
    )


def _per_batch(count: int, batches: int) -> tuple[int, ...]:
    sums = [n * n * count // batches**2 for n in range(batches + 1)]
    return tuple(after - before for before, after in pairwise(sums))


def largest_batch(
    counts: Sequence[int], *, batches: int = 150, peak: Share = "0.5", seen: Share = "0.0001"
) -> int:
    """The largest batch size for which there is a split; WrongUsage if there is none."""
    top = share_of("peak", peak) or Fraction(1)
    most = math.floor(min(counts) * 2 / (max(batches, 1) * top)) if counts else 0
    for size in range(most, 1, -1):
        try:
            plan_split(counts, batch_size=size, batches=batches, peak=peak, seen=seen)
        except WrongUsage:
            continue
        return size
    plan_split(counts, batch_size=1, batches=batches, peak=peak, seen=seen)
    return 1


def divide(labels: NDArray[np.integer], label: int, plan: Plan, seed: int) -> Drift:
    """Draws the rows of a split; the same ones for the same seed.

    Offline are the first samples of the shuffled data, shuffled again; online the next.
    """
    generator = np.random.default_rng(seed)
    shuffled = generator.permutation(len(labels))
    is_label = labels[shuffled] == label
    drifting, others = shuffled[is_label], shuffled[~is_label]
    if not len(drifting):
        raise WrongUsage(f"no sample has label {label}")
    own, other = plan.drifting_offline, plan.others_offline
    offline = generator.permutation(np.concatenate([drifting[:own], others[:other]]))
    online = []
    for count in plan.per_batch:
        rest = plan.batch_size - count
        online.append(np.concatenate([drifting[own : own + count], others[other : other + rest]]))
        own, other = own + count, other + rest
    return Drift(offline, tuple(online))


def share_of(name: str, value: Share) -> Fraction:
    """A share as an exact number; WrongUsage unless it lies between 0 and 1."""
    try:
        share = value if isinstance(value, Fraction) else Fraction(Decimal(str(value)))
    except (InvalidOperation, ValueError, OverflowError):
        raise WrongUsage(f"{name} is {value!s:.40}: it must be a number from 0 to 1") from None
    if not 0 <= share <= 1:
        raise WrongUsage(f"{name} is {float(share):g}: it must be from 0 to 1")
    return share


def _text(share: Fraction) -> str:
    """Six digits, rounded down so that what is printed as a limit is within it."""
    return f"{math.floor(share * 10**6) / 10**6:.6f}"
