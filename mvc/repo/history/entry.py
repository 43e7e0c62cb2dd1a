"""One entry of a log: a commit with what it is known by."""

from __future__ import annotations

from dataclasses import dataclass

from mvc.ids import CommitId
from mvc.model.commit import Commit
from mvc.repo.deployments import Deployed

__all__ = ["LogEntry"]


@dataclass(frozen=True, slots=True)
class LogEntry:
    """A commit with what it is known by.

    ``refs``: ``HEAD``, branches, tags as ``tag: NAME``. ``deployments``: all of it, retracted
    ones included, as they were recorded. ``reset_point`` is None where it was not asked for,
    ``forgotten_ns`` unless the state was given up, at that moment.
    """

    id: CommitId
    commit: Commit
    refs: tuple[str, ...]
    deployments: tuple[Deployed, ...]
    reset_point: bool | None = None
    forgotten_ns: int | None = None
