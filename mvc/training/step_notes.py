"""The interface between a Recorder and a training by steps, whose versions can be replayed.

A training by steps has a recipe: a function for one step, and data with numbered samples (rows). A
replay runs the steps again from a full state, a version that stores the whole training state.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Protocol

from msgspec import Struct

from mvc.api import Repository
from mvc.ids import CommitId


class ProofReport(Struct, frozen=True):
    """Results of replays. ``proven``: number of versions that a replay reproduced bit for bit.

    ``dropped``: number of versions whose stored weights were dropped. ``unproven``: the step
    numbers of versions that no replay reproduced. The weights of these versions stay stored.
    ``why``: the newest failure; empty if there was none.
    """

    proven: int = 0
    dropped: int = 0
    unproven: tuple[int, ...] = ()
    why: str = ""


class StepNotes(Protocol):
    """Records how each version follows from the preceding version.

    The training's thread calls ``train``, ``begin`` and ``restart``. The writer thread calls
    ``attachments`` and ``committed``. The ``position`` of a version is the number of steps trained
    before the version was recorded.
    """

    def open(self, repo: Repository, pipeline: str | None) -> None:
        """Stores the data. Raises CannotRecord for a training that cannot be replayed."""

    def train(self, rows: Sequence[int], batch: Any) -> Any:
        """Runs one step, and returns the result of the recipe's function.

        Raises WrongUsage for invalid rows.
        """

    def begin(self) -> tuple[int, bool]:
        """The next version's position, and whether this version must be a full state."""

    def restart(self) -> None:
        """Called when the model was set to another state. The next version will be a full state."""

    def attachments(self, position: int) -> tuple[Mapping[str, Any], Collection[CommitId]]:
        """A version's attachments, and the versions that a replay of this version needs."""

    def committed(self, position: int, step: int, commit: CommitId) -> None:
        """Called when the version at this position is durable."""

    def finish(self) -> None:
        """Waits until the remaining versions are proven, if proofs are enabled."""

    @property
    def report(self) -> ProofReport: ...
