"""The interface by which a Recorder records the single steps of a training.

The versions of such a training can be replayed. The training has a recipe: a function for one step,
and data with numbered samples (rows). A replay starts from a full state (a version that stores the
whole training state), and runs the steps after this version again.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Protocol

from msgspec import Struct

from mvc.api import Repository
from mvc.ids import CommitId


class ProofReport(Struct, frozen=True):
    """Results of replays. ``proven``: number of versions that a replay reproduced bit for bit.

    ``dropped``: number of versions whose weights were deleted, because a replay computes them.
    ``unproven``: the step numbers of versions that no replay reproduced. Their weights stay stored.
    ``why``: the newest error of a replay or deletion; empty if there was none.
    """

    proven: int = 0
    dropped: int = 0
    unproven: tuple[int, ...] = ()
    why: str = ""


class StepNotes(Protocol):
    """Records the steps that lead from each version to the next version.

    The thread of the training calls ``train``, ``begin`` and ``restart``. The thread that commits
    calls ``attachments`` and ``committed``. The ``position`` of a version is the number of steps
    that were trained before the version was recorded.
    """

    def open(self, repo: Repository, pipeline: str | None) -> None:
        """Stores the training data. Raises CannotRecord if the training cannot be replayed."""

    def train(self, rows: Sequence[int], batch: Any) -> Any:
        """Runs one step, and returns the result of the recipe's function.

        Raises WrongUsage for invalid rows.
        """

    def begin(self) -> tuple[int, bool]:
        """The position of the next version, and whether the next version must be a full state."""

    def restart(self) -> None:
        """Called when the model was set to another state. The next version is a full state then."""

    def attachments(self, position: int) -> tuple[Mapping[str, Any], Collection[CommitId]]:
        """The attachments of a version, and the versions that a replay of the version needs."""

    def committed(self, position: int, step: int, commit: CommitId) -> None:
        """Called when the version at ``position`` is durable."""

    def finish(self) -> None:
        """If proofs are enabled, waits until the replays of all versions have ended."""

    @property
    def report(self) -> ProofReport: ...
