"""The interface between a Recorder and a recipe, whose steps can all be replayed."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Protocol

from msgspec import Struct

from mvc.api import Repository
from mvc.ids import CommitId


class ProofReport(Struct, frozen=True):
    """Results of replays: ``proven`` versions were reproduced; ``dropped`` lost their stored
    weights.

    ``unproven``: steps of versions that no replay reproduced; their weights stay stored. ``why``:
    the last failure.
    """

    proven: int = 0
    dropped: int = 0
    unproven: tuple[int, ...] = ()
    why: str = ""


class StepNotes(Protocol):
    """Records how each version follows from the one before.

    The training's thread calls ``train``, ``begin`` and ``restart``; the writer thread calls
    ``attachments`` and ``committed``. A ``position`` is the number of steps trained before a
    version.
    """

    def open(self, repo: Repository, pipeline: str | None) -> None:
        """Stores the data. Raises CannotRecord for a training that cannot be replayed."""

    def train(self, rows: Sequence[int], batch: Any) -> Any:
        """Runs one step and returns its function's result. Raises WrongUsage for invalid rows."""

    def begin(self) -> tuple[int, bool]:
        """The next version's position, and whether it must be a full state."""

    def restart(self) -> None:
        """The model was set to another state: the next version must be full."""

    def attachments(self, position: int) -> tuple[Mapping[str, Any], Collection[CommitId]]:
        """A version's attachments, and the versions that it depends on."""

    def committed(self, position: int, step: int, commit: CommitId) -> None:
        """The version of this position and step is durable."""

    def finish(self) -> None:
        """Proves the remaining versions, if proofs are enabled."""

    @property
    def report(self) -> ProofReport: ...
