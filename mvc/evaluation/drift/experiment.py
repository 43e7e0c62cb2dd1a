"""An experiment: data, network, split and seed, all of which name its folder."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any

from mvc.errors import WrongUsage
from mvc.evaluation.common.data import Dataset
from mvc.evaluation.common.models import Recipe, recipe_for
from mvc.evaluation.drift import split
from mvc.evaluation.drift.split import Drift, Plan, Share

__all__ = ["SEED", "Experiment", "Settings", "experiments"]

SEED = 2
"""The thesis's; the number of the label is added to it (section 4.2.1)."""

_MAX_SEED = 2**32 - 1


@dataclass(frozen=True)
class Settings:
    """What differs from the defaults of a network; None stands for the default."""

    model: str | None = None
    batch_size: int | None = None
    batches: int | None = None
    peak: Share = "0.5"
    seen: Share | None = None
    offline: Share | None = None
    epochs: int | None = None
    seed: int = SEED


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
        size = settings.batch_size
        if size is None:
            fitting = split.largest_batch(
                data.counts, batches=batches, peak=settings.peak, seen=seen
            )
            size = min(recipe.batch_size, fitting)
        plan = split.plan(
            data.counts,
            batch_size=size,
            batches=batches,
            peak=settings.peak,
            seen=seen,
            offline=settings.offline,
        )
        return cls(data, recipe, plan, epochs, settings.seed, label)

    @cached_property
    def drift(self) -> Drift:
        """The rows of every batch."""
        return split.divide(self.data.labels, self.label, self.plan, self.seed + self.label)

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
            "peak": _text(plan.peak),
            "seen": _text(plan.seen),
            "offline": _text(plan.offline),
        }

    @property
    def name(self) -> str:
        """A folder's name: network, data, label and a digest of all parameters."""
        content = hashlib.sha256(self.data.inputs.tobytes() + self.data.labels.tobytes())
        all_of_it = json.dumps([self.parameters, content.hexdigest()], sort_keys=True)
        digest = hashlib.sha256(all_of_it.encode()).hexdigest()[:8]
        return f"{self.recipe.name}-{self.data.name}-{self.label}-{digest}"


def experiments(data: Dataset, settings: Settings, labels: Sequence[int]) -> tuple[Experiment, ...]:
    """The same experiment for several labels: cross-validation over labels (section 4.2.1)."""
    if not labels or len(set(labels)) != len(labels):
        raise WrongUsage("labels must be named, each once")
    return tuple(Experiment.of(data, settings, label) for label in labels)


def _text(share: Fraction) -> str:
    return f"{share.numerator}/{share.denominator}"
