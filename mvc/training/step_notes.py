"""What a Recorder asks about a training whose every step can be repeated."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Protocol

from msgspec import Struct

from mvc.api import Repository
from mvc.ids import CommitId


class ProofReport(Struct, frozen=True):
    """What replays have shown: ``proven`` versions were made again, ``dropped`` lost their weights.

    ``unproven``: the steps of the versions that no replay reproduced; they keep their weights.
    ``why`` says what went wrong last.
    """

    proven: int = 0
    dropped: int = 0
    unproven: tuple[int, ...] = ()
    why: str = ""


class StepNotes(Protocol):
    """Notes of what led from each version to the next one.

    ``train``, ``begin`` and ``restart`` are called by the thread that trains, ``carried`` and
    ``committed`` by the one that commits. A ``position`` counts the steps trained before a version.
    """

    def open(self, repo: Repository, pipeline: str | None) -> None:
        """Stores the data. Raises CannotRecord for a training that cannot be repeated."""

    def train(self, rows: Sequence[int], batch: Any) -> Any:
        """Makes a step; returns what its function returns. Raises WrongUsage for other rows."""

    def begin(self) -> tuple[int, bool]:
        """The position of the version that comes now, and whether it is a full state."""

    def restart(self) -> None:
        """The model was set to another state: the next version is a full one."""

    def carried(self, position: int) -> tuple[Mapping[str, Any], Collection[CommitId]]:
        """What a version carries beside its files, and the versions that it needs."""

    def committed(self, position: int, step: int, commit: CommitId) -> None:
        """The version of a position and a step is durable."""

    def finish(self) -> None:
        """Proves what is left, if that was asked for."""

    @property
    def report(self) -> ProofReport: ...
