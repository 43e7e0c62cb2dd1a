"""``repo.storage``: what a repository holds, its check and repair, and how it is stored."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Unpack, cast

from msgspec.structs import replace

from mvc.ids import CommitId
from mvc.model.statement import ReplayProof
from mvc.repo import queries
from mvc.repo.handle import Handle
from mvc.repo.lookup import availability
from mvc.repo.revisions import Rev, resolve
from mvc.types import PathName, Progress, Reason

if TYPE_CHECKING:
    from mvc.adapters.state_file import StateFile
    from mvc.maintenance.backup import BackedUp
    from mvc.maintenance.forget import Chosen, ForgetPreview
    from mvc.maintenance.fsck.fsck import FsckReport
    from mvc.maintenance.gc import Collection as Collected
    from mvc.maintenance.receipts import Receipt
    from mvc.maintenance.repack.goal import Aims
    from mvc.maintenance.repack.plan import RepackCurve
    from mvc.maintenance.repack.repack import Repacked
    from mvc.maintenance.report import Repaired
    from mvc.maintenance.stats import Stats
    from mvc.maintenance.weights import Alternative, Cost, Proof
    from mvc.repo.queries import Queries
    from mvc.repo.version_stats import VersionStats


class Storage:
    """What keeps a repository small, fast and sound; ``repo.storage``."""

    def __init__(self, handle: Handle) -> None:
        self._store, self._config = handle.store, handle.config

    def stats(self, *, calibrate: bool = False) -> Stats:
        """Versions, reset points, chains, bytes by kind, recovery times.

        ``calibrate``: measure how fast this machine decodes, and keep that in a file of the user's
        cache. Stats and reports count with it; what is stored never depends on it.
        """
        from mvc.maintenance import stats

        if calibrate:
            from mvc.store.recovery import rates

            rates.calibrate(self._store.fs)
        return stats.stats(self._store, self._config)

    def by_version(self) -> tuple[Stats, dict[CommitId, VersionStats]]:
        """As ``stats``, and how each version that is not forgotten is stored, and its price."""
        from mvc.maintenance import stats

        return stats.by_version(self._store, self._config)

    def predicted(self, rev: Rev = "HEAD") -> dict[str, tuple[str, ...]]:
        """By path the tensors of a version that are stored as an optimizer's step from another."""
        from mvc.repo.history.log import predicted_tensors

        return predicted_tensors(self._store, resolve(self._store, rev))

    def fsck(self, *, full: bool = False, progress: Progress | None = None) -> FsckReport:
        """Checks every byte; with ``full`` every object is recovered and hashed as well."""
        from mvc.maintenance.fsck import fsck

        return fsck.fsck(self._store, full=full, progress=progress)

    def rebuild_index(self) -> None:
        """Makes the index anew from journal and packs. Raises ReadOnly, DamagedData."""
        from mvc.maintenance.fsck.fsck import rebuild_index

        rebuild_index(self._store)

    def backup(self, folder: PathName, *, progress: Progress | None = None) -> BackedUp:
        """Makes a folder a copy of the repository, or brings the copy there up to date.

        Others may commit meanwhile. Every byte that is new is read back and checked before the
        copy counts; a run that was interrupted is gone on with. ``mvc.api.restore`` makes
        a repository of a copy. Raises WouldOverwrite, DamagedData, StorageFull, Busy.
        """
        from mvc.maintenance.backup import backup

        return backup(self._store, Path(folder), progress=progress)

    def repair(
        self, *, full: bool = False, other: PathName | None = None, progress: Progress | None = None
    ) -> Repaired:
        """Heals what another path, the repository in ``other`` or a working file gives back."""
        from mvc.maintenance.repair.repair import folder_of, repair

        source = None if other is None else folder_of(self._store.fs, Path(other))
        return repair(self._store, self._config, full=full, other=source, progress=progress)

    def gc(
        self,
        *,
        grace: timedelta | str | None = None,
        dry_run: bool = False,
        reason: Reason = "",
        progress: Progress | None = None,
    ) -> Collected:
        """Deletes what nothing reaches and gives the space back; ids do not change.

        ``grace``: how long operations still count (default: the setting ``gc.grace_days``).
        ``reason``: why, for the log of operations.
        """
        from mvc.maintenance.gc import collect, grace_of, plan_collection
        from mvc.maintenance.leftovers import clear_leftovers
        from mvc.repo.interrupted import finish_checkouts

        span = grace_of(self._config, grace)
        if dry_run:
            done = plan_collection(self._store, self._config, grace=span, progress=progress)
        else:
            finish_checkouts(
                self._store
            )  # one may be about to move HEAD to what would be collected
            clear_leftovers(self._store)
            done = collect(self._store, self._config, grace=span, reason=reason, progress=progress)
        return replace(done, grace_seconds=span.total_seconds())

    def forget(
        self,
        revs: Rev | Sequence[Rev] | Chosen = (),
        *,
        unused: str | None = None,
        unqueried: bool = False,
        keep_last: int | None = None,
        keep_hourly: int | None = None,
        keep_daily: int | None = None,
        keep_best: Sequence[str] = (),
        dry_run: bool = False,
        reason: Reason = "",
    ) -> Chosen:
        """Gives up the states of versions, for good; the next ``gc`` takes their bytes away.

        Either of those that are named (also as a range, ``A..B``), or of those that the rules give
        up (see docs/commands/forget.md). Commits, ids and history stay, and a receipt
        (``receipts``). Returns what was chosen, with ``dry_run`` only that, which may be given as
        ``revs`` then.
        """
        from mvc.maintenance import forget
        from mvc.maintenance.retention import Best, Retention

        if isinstance(revs, forget.Chosen):
            chosen = revs
        else:
            one = isinstance(revs, str | bytes) or not isinstance(revs, Iterable)
            named = cast(Sequence[Rev], (revs,) if one else revs)
            best = tuple(Best.parse(text) for text in keep_best)
            rules = Retention(
                last=keep_last,
                hourly=keep_hourly,
                daily=keep_daily,
                best=best,
                unused=unused,
                unqueried=unqueried,
            )
            chosen = forget.choose(self._store, named, rules or None)
        if not dry_run:
            done = forget.forget(self._store, self._config, chosen, reason=reason)
            chosen = replace(chosen, number=None if done is None else done.sequence)
        return chosen

    def preview(self, chosen: Chosen, *, progress: Progress | None = None) -> ForgetPreview:
        """What ``forget`` of these deletes and keeps, and what the next ``gc`` then frees."""
        from mvc.maintenance.forget import preview
        from mvc.maintenance.gc import grace_of

        return preview(
            self._store, self._config, chosen, grace=grace_of(self._config), progress=progress
        )

    def receipts(self) -> list[Receipt]:
        """What was forgotten, oldest first: by whom, why, and since when no byte is left of it."""
        from mvc.maintenance.receipts import receipts

        return receipts(self._store.fresh())

    def work_folder(self) -> AbstractContextManager[Path]:
        """A new folder in ``.mvc``, for the length of a block.

        The next one, and ``gc``, delete what killed processes left.
        """
        from mvc.maintenance.leftovers import work_folder

        return work_folder(self._store)

    def proofs(self, versions: Iterable[CommitId] | None = None) -> dict[CommitId, ReplayProof]:
        """The versions, all or of these, whose weights a replay on this repository has made."""
        return availability.proven_here(self._store, versions)

    def prove(self, proofs: Sequence[Proof], *, where: str) -> None:
        """Records that replays here made these states, in the environment ``where``.

        Raises DamagedData if one of the versions has another state there.
        """
        from mvc.maintenance.weights import prove

        prove(self._store, self._config, proofs, where=where)

    def cost(self, rev: Rev, path: str | None = None, *, besides: CommitId | None = None) -> Cost:
        """What a version, or its file ``path``, costs as it is stored.

        Bytes that the version ``besides`` has as well do not count.
        """
        from mvc.maintenance.weights import cost

        return cost(self._store, resolve(self._store, rev), path, besides)

    def drop_weights(
        self, alternatives: Mapping[CommitId, Alternative], *, reason: Reason = ""
    ) -> None:
        """Drops the weights of versions that can be made again; durable on return.

        All that is needed for that is read and hashed before. Raises CannotRetrain where no replay
        on this repository has proven it (``prove``), or that carries no recipe, and DamagedData;
        then nothing is dropped.
        """
        from mvc.maintenance.weights import drop

        drop(self._store, self._config, alternatives, reason=reason)

    def store_weights(self, rev: Rev, file: StateFile | None = None) -> None:
        """Stores weights again that a version dropped: ``file``, or what other versions have.

        Raises WeightsDropped if there is neither, DamagedData if the file has another state.
        """
        from mvc.maintenance.weights import store

        store(self._store, self._config, resolve(self._store, rev), file)

    def curve(self, *, progress: Progress | None = None) -> RepackCurve:
        """The bytes of all packs that each recovery bound would take, and the stored layout."""
        from mvc.maintenance.repack.repack import draw_curve

        return draw_curve(self._store, self._config, progress)

    def queries(self) -> Queries:
        """Which versions were asked for (``checkout``, ``restore``, ...), how often and when last.

        Raises IoFailed if the notes cannot be read.
        """
        return queries.queries(self._store)

    def join_steps(self, step: int = 8, *, since: int = 0) -> int:
        """Stores runs of approximate steps (``lc``) together, in less space.

        ``step``: the commits of a run. ``since``: of versions that this operation or a later one
        published. Returns the number of the newest operation, to go on from there.
        """
        from mvc.maintenance.repack.super_steps import join

        newest = self._store.fresh().position.sequence
        join(self._store, self._config, step, since=since)
        return newest

    def repack(
        self,
        *,
        alternatives: Mapping[CommitId, Alternative] | None = None,
        dry_run: bool = False,
        reason: Reason = "",
        progress: Progress | None = None,
        **aims: Unpack[Aims],
    ) -> Repacked:
        """Stores the same versions with other reset points and deltas (``mvc.maintenance.repack``).

        At most one of the ``aims`` is given: ``interval``, ``max_recovery``, ``max_size``, ``add``,
        ``remove``, ``add_queried``; without one the settings count. With the setting
        ``store.storage_weight`` weights of versions with ``alternatives``
        (``mvc.recipes.alternatives``) are then dropped where that is cheaper. ``dry_run``: only
        the plan is made. Raises WeightsDropped for a version to ``add`` that has none.
        """
        from mvc.maintenance.repack.goal import goal_of
        from mvc.maintenance.repack.repack import repack

        goal = goal_of(self._store, self._config, **aims)
        if goal.weight is not None:
            goal = replace(goal, alternatives=alternatives or {})
        return repack(
            self._store, self._config, goal, dry_run=dry_run, reason=reason, progress=progress
        )
