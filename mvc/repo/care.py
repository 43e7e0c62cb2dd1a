"""Caring for a repository: the verbs that check, heal, collect, forget, store otherwise, undo.

The part of ``Repository`` that changes how versions are stored, and looks at it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from datetime import timedelta
from os import PathLike
from pathlib import Path
from typing import cast

from mvc.ids import CommitId
from mvc.repo import stats
from mvc.repo.context import Context, Progress
from mvc.repo.fsck import fsck
from mvc.repo.fsck.fsck import FsckReport
from mvc.repo.gc import gc
from mvc.repo.gc.gc import Collection, grace_of
from mvc.repo.maintenance.report import Repaired
from mvc.repo.oplog import oplog, undo
from mvc.repo.oplog.oplog import Operation
from mvc.repo.oplog.undo import Undoing
from mvc.repo.repack import repack
from mvc.repo.repack.repack import Repacked
from mvc.repo.retention import forget
from mvc.repo.retention.forget import Chosen
from mvc.repo.retention.rules import Best, Retention
from mvc.repo.stats import Stats

__all__ = ["Care"]


class Care(ABC):
    """Needs an open context, and a way to find a version."""

    context: Context

    @abstractmethod
    def find(self, rev: str | CommitId | None = None) -> CommitId:
        """The commit of a revision."""

    def stats(self) -> Stats:
        """Versions, reset points, chains, bytes by kind, recovery times."""
        return stats.stats(self.context)

    def fsck(self, *, full: bool = False, progress: Progress | None = None) -> FsckReport:
        """Checks every byte; with ``full`` every object is recovered and hashed as well."""
        return fsck.fsck(self.context, full=full, progress=progress)

    def repair(
        self,
        *,
        full: bool = False,
        other: str | PathLike[str] | None = None,
        progress: Progress | None = None,
    ) -> Repaired:
        """Heals what another path, the repository in ``other`` or a working file gives back."""
        from mvc.repo.repair.repair import folder_of, repair

        source = None if other is None else folder_of(self.context.store.fs, Path(other))
        return repair(self.context, full=full, other=source, progress=progress)

    def gc(
        self,
        *,
        grace: timedelta | str | None = None,
        dry_run: bool = False,
        progress: Progress | None = None,
    ) -> Collection:
        """Deletes what nothing reaches and gives the space back; ids do not change.

        ``grace``: how long operations still count (default: the setting ``gc.grace_days``).
        """
        act = gc.plan_collection if dry_run else gc.collect
        return act(self.context, grace=grace_of(self.context, grace), progress=progress)

    def forget(
        self,
        revs: str | CommitId | Sequence[str | CommitId] = (),
        *,
        unused: str | None = None,
        keep_last: int | None = None,
        keep_hourly: int | None = None,
        keep_daily: int | None = None,
        keep_best: Sequence[str] = (),
        dry_run: bool = False,
    ) -> Chosen:
        """Gives up the states of versions, for good; the next ``gc`` takes their bytes away.

        Either of those that are named, or of those that the rules give up (see
        docs/commands/forget.md). Commits, ids and history stay. Returns what was chosen.
        """
        one = isinstance(revs, str | bytes) or not isinstance(revs, Iterable)
        named = cast(Sequence[str | CommitId], (revs,) if one else revs)
        best = tuple(Best.parse(text) for text in keep_best)
        rules = Retention(keep_last, keep_hourly, keep_daily, best, unused)
        chosen = forget.choose(self.context, named, rules or None)
        if not dry_run:
            forget.forget(self.context, chosen)
        return chosen

    def repack(
        self,
        *,
        interval: int | None = None,
        max_recovery: float | None = None,
        max_size: int | None = None,
        add: Sequence[str | CommitId] = (),
        remove: Sequence[str | CommitId] = (),
        super_step: int | None = None,
        dry_run: bool = False,
        progress: Progress | None = None,
    ) -> Repacked:
        """Stores the same versions with other reset points and deltas; see ``mvc.repo.repack``.

        Without a goal as the settings say. With ``dry_run`` only the plan is made.
        """
        goal = repack.goal_of(
            self.context,
            interval=interval,
            max_recovery=max_recovery,
            max_size=max_size,
            add=tuple(self.find(rev) for rev in add),
            remove=tuple(self.find(rev) for rev in remove),
            super_step=super_step,
        )
        return repack.repack(self.context, goal, dry_run=dry_run, progress=progress)

    def oplog(self, limit: int | None = None) -> Iterator[Operation]:
        """Operations on the repository from the newest back."""
        return oplog.oplog(self.context, limit)

    def undo(self, number: int | None = None, *, dry_run: bool = False) -> Undoing:
        """Sets back what an operation moved: the newest that did, or the one with ``number``."""
        return (undo.plan if dry_run else undo.undo)(self.context, number)
