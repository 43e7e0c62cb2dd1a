"""The guard: production weights may lose at most a share E of the accuracy of the training weights.

*Training weights* are the weights that the optimizer computes. *Production weights* are the weights
that the lossy stages of a pipeline make from training weights. The guard evaluates training and
production weights on the same samples (docs/production.md, "Decisions"). An *account* counts the
samples that only the training weights classify correctly (lost), and the samples that only the
production weights classify correctly (won). There is an account of all samples, and an account of
each label. Each account exists twice: over all batches, and over the batches since the level
changed. The *level* says how much the stages change weights. Level 0 uses the stages as written.
Each finer level changes weights about half as much as the level before. The finest level stores the
training weights exactly. The *reservoir* has the K newest samples of every label.

If an account shows a loss above E, the guard goes one level finer. A loss is tested by betting,
because such a test stays valid although it is repeated with each batch (Waudby-Smith and Ramdas,
"Estimating means of bounded random variables by betting", J. R. Stat. Soc. B 86, 2024). A gambler
bets that the mean drop of the accuracy is above E. If the mean drop is at most E, the gambler's
capital ever grows to x times its start with a probability of at most 1 / x (Ville's inequality). So
a large capital is evidence of a loss. A level is tested only after all coarser levels were
rejected. So the tests of all levels together have the error probability of one test. Every return
to a coarser level starts another test.
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

from mvc.codecs.stage import Stage, number, plain, read_options, whole_number
from mvc.errors import WrongUsage
from mvc.lossy.accuracy import Arrays, Evaluate, LabelledBatch, right_of
from mvc.lossy.decisions import OnNewWeights

_KEEP = 8
_MOST_LABELS = 256
"""Maximum number of labels with an account, and of labels in the reservoir.

The account of all samples counts all labels.
"""
_PATIENCE, _MOST_PATIENCE = 10, 1_000_000  # versions with small drops before a coarser level
_ERROR = 0.0475  # probability that the accounts ever lead to a finer level by mistake
_ERROR_ONCE = 0.0025  # probability that a comparison on the reservoir ever refuses by mistake
_DESCENTS = 1.0824  # at least the sum of all n^-4; test n has the error _ERROR n^-4 / _DESCENTS
_ALL = 0.6  # share of the capital bet on all samples together
_MOST_SHARE = 0.1  # share of the rest of the capital, bet on each of the first ten labels
_STEPS = np.arange(20)
_STAKES = 0.99 * 2.0 ** (-_STEPS / 2)  # shares of the largest stake
_WEIGHTS = 1 / (_STEPS + 8) - 1 / (_STEPS + 9)
_TOGETHER, _LABEL = "all", "label "
_MOST_COUNT = 1 << 53
_COLUMNS = 6  # how many numbers the accounts of a label have

Right: TypeAlias = NDArray[np.bool_]


class GuardStage(OnNewWeights, frozen=True):
    """decision: while production weights lose more than E of accuracy, makes new versions finer

    ``bound``: E, a share of accuracy (0.001 is a tenth of a per cent). ``keep``: how many samples
    of every label are in the reservoir (samples of earlier batches).
    """

    bound: Decimal
    keep: int
    usage = "guard:E[,keep=K]"

    @classmethod
    def read(cls, name: str, parameter: str) -> Stage:
        first, options = read_options(name, parameter, ("keep",), ())
        bound = number(name, "E", first, low="0", high="1")
        keep = whole_number(name, "keep", options.get("keep", str(_KEEP)), low=1, high=4096)
        shown = "" if keep == _KEEP else f",keep={keep}"
        return cls(f"{name}:{plain(bound)}{shown}", bound, keep)


class Paired(Struct):
    """How many samples were compared, and on how many the production weights lost or won."""

    samples: int = 0
    lost: int = 0
    won: int = 0

    def add(self, before: Right, after: Right) -> None:
        """Adds the results of one batch.

        ``before``: which samples the training weights classify correctly. ``after``: the same for
        the production weights.
        """
        self.samples += len(before)
        self.lost += int(np.count_nonzero(before & ~after))
        self.won += int(np.count_nonzero(after & ~before))

    @property
    def drop(self) -> float:
        """The mean drop of the accuracy: (lost - won) / samples."""
        return (self.lost - self.won) / self.samples if self.samples else 0.0

    def evidence(self, bound: float) -> float:
        """The logarithm of the capital of a gambler who bets on a mean drop above ``bound``.

        The capital is an e-value: its expectation is at most 1 if the mean drop is at most
        ``bound``.
        """
        stakes = _STAKES / (1 + bound)
        capital = (
            self.lost * np.log1p(stakes * (1 - bound))
            + self.won * np.log1p(-stakes * (1 + bound))
            + (self.samples - self.lost - self.won) * np.log1p(-stakes * bound)
        )
        return float(np.logaddexp.reduce(capital + np.log(_WEIGHTS / _WEIGHTS.sum())))


class Reservoir:
    """The ``keep`` newest samples of every label."""

    def __init__(self, keep: int) -> None:
        self.keep = keep
        self._samples: LabelledBatch | None = None

    def add(self, batch: LabelledBatch) -> None:
        """Adds samples. If the stored samples have another form, deletes the stored samples."""
        if not len(batch):
            return
        if self._samples is not None and self._samples.like(batch):
            batch = self._samples.on_device_of(batch).followed_by(batch)
        labels = list(batch.by_label().values())[:_MOST_LABELS]
        self._samples = batch.rows(np.concatenate([rows[-self.keep :] for rows in labels]))

    def samples(self, like: LabelledBatch | None = None) -> LabelledBatch | None:
        """All samples, on the device of ``like``; None if the reservoir is empty."""
        if self._samples is not None and like is not None and len(like):
            self._samples = self._samples.on_device_of(like)
        return self._samples


class AccuracyGuard:
    """Compares the accuracies of production and training weights, and chooses the level.

    Level 0 is the pipeline as written. The level ``finest`` stores the exact training weights.
    Raises WrongUsage if ``evaluate`` is None.
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
        self._calm, self._patience, self._descent = 0, _PATIENCE, 1
        self._versions = 0  # versions that were compared on the reservoir
        # Whether the level became finer, or coarser, since the last ``add_batch`` began.
        self._refined = self._returned = False
        self._trained: Arrays | None = None  # training weights of the newest ``add_batch``
        self._compared: _ReservoirResult | None = (
            None  # samples for comparisons until the next ``add_batch``
        )

    def add_batch(self, live: Arrays | None, training: Arrays, data: Any) -> None:
        """Counts the results of a new batch, and may change the level.

        ``live``: the deployed production weights. ``training``: training weights that have learned
        from the batch. All comparisons until the next call use these training weights.
        """
        batch = None if data is None else LabelledBatch.of(data)
        self._refined = self._returned = False
        if batch is not None and live is not None and self._trained is not None:
            before = right_of(self._evaluate, self._trained, batch)
            self._count(batch, before, right_of(self._evaluate, live, batch, last=True))
            self._adjust()
        earlier = self._reservoir.samples(batch)
        if batch is not None:
            self._reservoir.add(batch)
        samples = batch if earlier is None else earlier
        self._compared = None
        if samples is not None and self._finest:
            self._compared = _ReservoirResult(samples, right_of(self._evaluate, training, samples))
            self._versions += 1
        self._trained = {name: np.array(array) for name, array in training.items()}

    def refuses(self, weights: Arrays) -> bool:
        """Whether these production weights lose too much.

        Directly after a return to a coarser level, weaker evidence is enough, because a wrong
        refusal only delays the return.
        """
        error_ = _ERROR_ONCE / max(1, self._versions * (self._versions + 1))
        return self._loses(weights, _ERROR if self._returned else error_)

    def allows(self, live: Arrays) -> bool:
        """Whether a version may be skipped, so that the weights ``live`` stay deployed."""
        return not self._refined and not self._loses(live, _ERROR)

    def _loses(self, weights: Arrays, error: float) -> bool:
        """Whether ``weights`` lose too much on the reservoir.

        If ``weights`` do not lose too much, the result is True with a probability of at most
        ``error``.
        """
        if self._compared is None:
            return False
        samples, before = self._compared.samples, self._compared.right
        after = right_of(self._evaluate, weights, samples, last=True)
        accounts: dict[str, Paired] = {}
        for key, rows in _groups(samples).items():
            accounts.setdefault(key, Paired()).add(before[rows], after[rows])
        return _evidence(accounts, self._bound) >= -math.log(error)

    def refine(self) -> bool:
        """Goes one level finer. Returns False if the weights are exact already."""
        if self.level == self._finest:
            return False
        if not self._refined:
            self._patience = min(2 * self._patience, _MOST_PATIENCE)
        self._refined, self._returned = True, False
        self._change(1)
        return True

    def _count(self, batch: LabelledBatch, before: Right, after: Right) -> None:
        for key, rows in _groups(batch).items():
            if key in self._accounts or len(self._accounts) <= _MOST_LABELS:
                for accounts in (self._accounts, self._recent):
                    accounts.setdefault(key, Paired()).add(before[rows], after[rows])

    def _adjust(self) -> None:
        """Goes one level finer, returns to the next coarser level, or stays, depending on the
        accounts.
        """
        error = _ERROR / (_DESCENTS * self._descent**4)
        if _evidence(self._recent, self._bound) >= -math.log(error):
            self.refine()
            return
        is_calm = all(account.drop <= self._bound / 2 for account in self._accounts.values())
        self._calm = self._calm + 1 if is_calm else 0
        if self.level and self._calm >= self._patience:
            self._change(-1)
            self._descent += 1
            self._returned = True

    def _change(self, levels: int) -> None:
        self.level += levels
        self._calm, self._recent = 0, {key: Paired() for key in self._accounts}

    def memory(self, *, samples: bool) -> dict[str, Any]:
        """The state of the guard, which ``restore`` accepts in another process.

        ``samples``: whether to include the reservoir.
        """
        rows = [
            [*astuple(account), *astuple(self._recent[key])]
            for key, account in self._accounts.items()
        ]
        state: dict[str, Any] = {
            "guard.labels": list(self._accounts),
            "guard.accounts": np.array(rows, np.int64).reshape(-1, _COLUMNS),
            "guard.level": [self.level, self._calm, self._patience, self._descent, self._versions],
        }
        samples_ = self._reservoir.samples() if samples else None
        return (
            state
            if samples_ is None
            else {**state, "guard.samples": [samples_.inputs, samples_.labels]}
        )

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restores the result of ``memory``. Ignores a value that is not such a result."""
        labels, level = state.get("guard.labels"), state.get("guard.level")
        table = np.asarray(state.get("guard.accounts", ()))
        if (
            not isinstance(labels, list)
            or not _counts(level, 5)
            or level[0] > self._finest
            or not 0 < level[2] <= _MOST_PATIENCE
            or not level[3]
            or max(level) > _MOST_COUNT
            or not all(isinstance(label, str) for label in labels)
            or len(labels) > _MOST_LABELS + (_TOGETHER in labels)
            or table.dtype != np.int64
            or table.shape != (len(labels), _COLUMNS)
        ):
            return
        parts = table.reshape(-1, 3)
        if not ((parts >= 0) & (parts <= parts[:, :1]) & (parts <= _MOST_COUNT)).all():
            return
        self.level, self._calm, self._patience, self._descent, self._versions = level
        rows = dict(zip(labels, table.tolist(), strict=True))
        self._accounts = {label: Paired(*row[:3]) for label, row in rows.items()}
        self._recent = {label: Paired(*row[3:]) for label, row in rows.items()}
        samples = state.get("guard.samples")
        if isinstance(samples, list | tuple) and len(samples) == 2:
            with suppress(WrongUsage):
                self._reservoir.add(LabelledBatch(*samples))


class _ReservoirResult(Struct):
    """The samples of the reservoir, and which of these the training weights classify correctly."""

    samples: LabelledBatch
    right: Right


def _evidence(accounts: Mapping[str, Paired], bound: float) -> float:
    """The logarithm of an e-value: evidence that an account has a mean drop above ``bound``.

    The gambler bets a part of the capital on all samples together, and the other part on the
    labels, one after another: on each label, a share of the capital that is left after the bets on
    the labels before it. This is valid because the samples of different labels are disjoint.
    """
    labels = [account.evidence(bound) for key, account in accounts.items() if key != _TOGETHER]
    shares = np.minimum(_MOST_SHARE, 1 / np.arange(1, len(labels) + 1))
    by_label = np.logaddexp(np.log1p(-shares), np.log(shares) + labels).sum()
    together = accounts[_TOGETHER].evidence(bound)
    return float(np.logaddexp(math.log(_ALL) + together, math.log(1 - _ALL) + by_label))


def _groups(batch: LabelledBatch) -> dict[str, NDArray[np.int64]]:
    """Maps each label to the positions of its samples, and "all" to all positions."""
    by_label = {_LABEL + key: rows for key, rows in batch.by_label().items()}
    return {_TOGETHER: np.arange(len(batch)), **by_label}


def _counts(values: object, length: int) -> TypeGuard[list[int]]:
    return (
        isinstance(values, list)
        and len(values) == length
        and all(type(value) is int and value >= 0 for value in values)
    )
