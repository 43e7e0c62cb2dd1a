"""The guard: production weights may lose at most a share E of the accuracy of the training weights.

What is compared, and when the level rises and goes back: docs/production.md, "Decisions". The
*accounts* are over all batches and over those since the level changed; the *reservoir* has the K
newest samples of every label, of earlier batches. Level 0 are the stages as written; every level
changes weights about half as much as the one before, and the last one is exact.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import suppress
from decimal import Decimal
from typing import Any, TypeAlias, TypeGuard

import numpy as np
from msgspec import Struct
from msgspec.structs import astuple
from numpy.typing import NDArray

from mvc.codecs.stage import Stage, number, plain, read_options, whole
from mvc.errors import WrongUsage
from mvc.lossy.accuracy import Arrays, Evaluate, LabelledBatch, right_of
from mvc.lossy.decisions import OnNewWeights

_KEEP = 8
_MOST_LABELS = 256
"""Labels with an account and a place in the reservoir; others count in the sum alone."""
_PATIENCE, _MOST_PATIENCE = 10, 1_000_000  # versions with room before a way back
_ERRORS = 1.5  # standard errors by which the drop of an account exceeds a bound
_ERRORS_ONCE = 2.0  # and that of one version on the reservoir
_TOGETHER, _LABEL = "all", "label "
_MOST_COUNT = 1 << 53
_COLUMNS = 6  # of the accounts of a label, kept as numbers

Right: TypeAlias = NDArray[np.bool_]


class GuardStage(OnNewWeights, frozen=True):
    """decision: stores versions finer while they lose more than E of the accuracy

    ``bound`` is a share of accuracy (0.001 is a tenth of a per cent), ``keep`` the samples of
    every label in the reservoir.
    """

    bound: Decimal
    keep: int
    usage = "guard:E[,keep=K]"

    @classmethod
    def read(cls, name: str, parameter: str) -> Stage:
        first, options = read_options(name, parameter, ("keep",), ())
        bound = number(name, "E", first, low="0", high="1")
        keep = whole(name, "keep", options.get("keep", str(_KEEP)), low=1, high=4096)
        shown = "" if keep == _KEEP else f",keep={keep}"
        return cls(f"{name}:{plain(bound)}{shown}", bound, keep)


class Paired(Struct):
    """Samples on which two sets of weights were compared: those lost and those won."""

    samples: int = 0
    lost: int = 0
    won: int = 0

    def add(self, before: Right, after: Right) -> None:
        """``before`` are the answers of training weights, ``after`` of production weights."""
        self.samples += len(before)
        self.lost += int(np.count_nonzero(before & ~after))
        self.won += int(np.count_nonzero(after & ~before))

    @property
    def drop(self) -> float:
        """The mean drop, a share of the samples."""
        return (self.lost - self.won) / self.samples if self.samples else 0.0

    def exceeds(self, bound: float, errors: float) -> bool:
        """Whether the drop is above ``bound`` by more than so many standard errors."""
        spread = errors * math.sqrt(self.lost + self.won)
        return self.lost - self.won - spread > bound * self.samples


class Reservoir:
    """The ``keep`` newest samples of every label."""

    def __init__(self, keep: int) -> None:
        self.keep = keep
        self._held: LabelledBatch | None = None

    def add(self, batch: LabelledBatch) -> None:
        """Takes the samples over. Batches of another form than those before empty it first."""
        if not len(batch):
            return
        if self._held is not None and self._held.like(batch):
            batch = self._held.beside(batch).followed_by(batch)
        labels = list(batch.by_label().values())[:_MOST_LABELS]
        self._held = batch.take(np.concatenate([rows[-self.keep :] for rows in labels]))

    def samples(self, beside: LabelledBatch | None = None) -> LabelledBatch | None:
        """All of them, on the device of ``beside``; None while there are none."""
        if self._held is not None and beside is not None and len(beside):
            self._held = self._held.beside(beside)
        return self._held


class AccuracyGuard:
    """Compares production with training weights, and says how fine versions must be.

    Level 0 is the pipeline as it was written, ``finest`` the exact training weights. Raises
    WrongUsage without ``evaluate``.
    """

    def __init__(self, stage: GuardStage, finest: int, evaluate: Evaluate | None) -> None:
        if evaluate is None:
            raise WrongUsage(
                f"stage {stage.text} compares accuracies",
                hint="pass evaluate=(state, data) -> accuracy",
            )
        self.text = stage.text
        self.level = 0
        self._bound = float(stage.bound)
        self._finest = finest
        self._evaluate = evaluate
        self._reservoir = Reservoir(stage.keep)
        self._accounts: dict[str, Paired] = {}
        self._recent: dict[str, Paired] = {}  # since the level changed
        self._calm, self._patience = 0, _PATIENCE
        self._refined = False  # in this offer
        self._trained: Arrays | None = None  # the training weights of the offer before
        self._judged: _Judged | None = None  # what versions of this offer are compared on

    def saw(self, live: Arrays | None, training: Arrays, data: Any) -> None:
        """An offer: a new batch, and training weights that have learned from it."""
        batch = None if data is None else LabelledBatch.of(data)
        self._refined = False
        if batch is not None and live is not None and self._trained is not None:
            before = right_of(self._evaluate, self._trained, batch)
            self._count(batch, before, right_of(self._evaluate, live, batch))
            self._adjust()
        earlier = self._reservoir.samples(batch)
        if batch is not None:
            self._reservoir.add(batch)
        samples = batch if earlier is None else earlier
        self._judged = None
        if samples is not None and self._finest:
            self._judged = _Judged(samples, right_of(self._evaluate, training, samples))
        self._trained = {name: np.array(array) for name, array in training.items()}

    def refuses(self, weights: Arrays) -> bool:
        """Whether these production weights lose too much."""
        if self._judged is None:
            return False
        after = right_of(self._evaluate, weights, self._judged.samples)
        for rows in _groups(self._judged.samples).values():
            here = Paired()
            here.add(self._judged.right[rows], after[rows])
            if here.exceeds(self._bound, _ERRORS_ONCE):
                return True
        return False

    def allows(self, live: Arrays) -> bool:
        """Whether a version may be skipped, so that these weights stay live."""
        return not self._refined and not self.refuses(live)

    def refine(self) -> bool:
        """Goes one level finer; False if the weights are exact already."""
        if self.level == self._finest:
            return False
        if not self._refined:
            self._patience = min(2 * self._patience, _MOST_PATIENCE)
        self._refined = True
        self._change(1)
        return True

    def _count(self, batch: LabelledBatch, before: Right, after: Right) -> None:
        for key, rows in _groups(batch).items():
            if key in self._accounts or len(self._accounts) <= _MOST_LABELS:
                for accounts in (self._accounts, self._recent):
                    accounts.setdefault(key, Paired()).add(before[rows], after[rows])

    def _adjust(self) -> None:
        """Goes one level finer, or back, as the accounts say."""
        if any(
            account.exceeds(self._bound, _ERRORS)
            and self._accounts[key].exceeds(self._bound, _ERRORS)
            for key, account in self._recent.items()
        ):
            self.refine()
            return
        room = all(account.drop <= self._bound / 2 for account in self._accounts.values())
        self._calm = self._calm + 1 if room else 0
        if self.level and self._calm >= self._patience:
            self._change(-1)

    def _change(self, levels: int) -> None:
        self.level += levels
        self._calm, self._recent = 0, {}

    def memory(self, *, samples: bool) -> dict[str, Any]:
        """What ``restore`` takes, in another process; with the reservoir if ``samples``."""
        rows = [
            [*astuple(account), *astuple(self._recent.get(key, Paired()))]
            for key, account in self._accounts.items()
        ]
        told: dict[str, Any] = {
            "guard.labels": list(self._accounts),
            "guard.accounts": np.array(rows, np.int64).reshape(-1, _COLUMNS),
            "guard.level": [self.level, self._calm, self._patience],
        }
        held = self._reservoir.samples() if samples else None
        return told if held is None else {**told, "guard.samples": [held.inputs, held.labels]}

    def restore(self, kept: Mapping[str, Any]) -> None:
        """Remembers what ``memory`` returned; ignores anything else."""
        labels, level = kept.get("guard.labels"), kept.get("guard.level")
        table = np.asarray(kept.get("guard.accounts", ()))
        if (
            not isinstance(labels, list)
            or not _counts(level, 3)
            or level[0] > self._finest
            or not 0 < level[2] <= _MOST_PATIENCE
            or level[1] > _MOST_COUNT
            or not all(isinstance(label, str) for label in labels)
            or len(labels) > _MOST_LABELS + 1
            or table.dtype != np.int64
            or table.shape != (len(labels), _COLUMNS)
        ):
            return
        parts = table.reshape(-1, 3)
        if not ((parts >= 0) & (parts <= parts[:, :1]) & (parts <= _MOST_COUNT)).all():
            return
        self.level, self._calm, self._patience = level
        rows = dict(zip(labels, table.tolist(), strict=True))
        self._accounts = {label: Paired(*row[:3]) for label, row in rows.items()}
        self._recent = {label: Paired(*row[3:]) for label, row in rows.items()}
        held = kept.get("guard.samples")
        if isinstance(held, list | tuple) and len(held) == 2:
            with suppress(WrongUsage):
                self._reservoir.add(LabelledBatch(*held))


class _Judged(Struct):
    """Samples, and which of them the training weights have right."""

    samples: LabelledBatch
    right: Right


def _groups(batch: LabelledBatch) -> dict[str, NDArray[np.int64]]:
    """The rows of each label, and all rows."""
    found = {_LABEL + key: rows for key, rows in batch.by_label().items()}
    return {_TOGETHER: np.arange(len(batch)), **found}


def _counts(values: object, length: int) -> TypeGuard[list[int]]:
    return (
        isinstance(values, list)
        and len(values) == length
        and all(type(value) is int and value >= 0 for value in values)
    )
