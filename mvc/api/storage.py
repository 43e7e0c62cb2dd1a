"""``repo.storage``: statistics, check, repair and layout of a repository."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Unpack, cast

from msgspec.structs import replace

from mvc.api import lazy
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
    """Maintenance of a repository: ``repo.storage``."""

    def __init__(self, handle: Handle) -> None:
        self._store, self._config = handle.store, handle.config

    def stats(self, *, calibrate: bool = False, progress: Progress | None = None) -> Stats:
        """Counts versions, reset points, deltas and bytes by kind, and estimates recovery times.

        ``calibrate``: first measure how fast this machine decodes, and save the rates in the user's
        cache. Only statistics and reports use these rates, so they do not change what is stored.
        """
        if calibrate:
            lazy.rates.calibrate(self._store.fs)
        return lazy.stats.stats(self._store, self._config, progress)

    def by_version(
        self, *, progress: Progress | None = None
    ) -> tuple[Stats, dict[CommitId, VersionStats]]:
        """The result of ``stats``, and how each version that is not forgotten is stored."""
        return lazy.stats.by_version(self._store, self._config, progress)

    def predicted(self, rev: Rev = "HEAD") -> dict[str, tuple[str, ...]]:
        """Maps each path of a version to the names of tensors that are stored as an optimizer step.

        To decode such a tensor, mvc computes the step from the tensor of another version.
        """
        return lazy.log.predicted_tensors(self._store, resolve(self._store, rev))

    def fsck(self, *, full: bool = False, progress: Progress | None = None) -> FsckReport:
        """Checks all stored bytes. With ``full``, decodes and hashes every tensor, too."""
        return lazy.fsck.fsck(self._store, full=full, progress=progress)

    def rebuild_index(self) -> None:
        """Rebuilds the index from the stored operations and data. Raises ReadOnly, DamagedData."""
        lazy.fsck.rebuild_index(self._store)

    def backup(self, folder: PathName, *, progress: Progress | None = None) -> BackedUp:
        """Copies the repository to a folder, or updates the copy there.

        Other processes may commit meanwhile. The copy becomes valid after its new bytes were read
        back and verified. After an interruption, the same call continues the copy.
        ``mvc.api.restore`` turns a copy into a repository. Raises WouldOverwrite, DamagedData,
        StorageFull, Busy.
        """
        return lazy.backup.backup(self._store, Path(folder), progress=progress)

    def repair(
        self, *, full: bool = False, other: PathName | None = None, progress: Progress | None = None
    ) -> Repaired:
        """Replaces damaged data by intact data with the same content.

        The intact data come from other deltas of this repository, from the repository ``other``,
        and from the files of the working folder.
        """
        source = None if other is None else lazy.repair.folder_of(self._store.fs, Path(other))
        return lazy.repair.repair(
            self._store, self._config, full=full, other=source, progress=progress
        )

    def gc(
        self,
        *,
        grace: timedelta | str | None = None,
        dry_run: bool = False,
        reason: Reason = "",
        progress: Progress | None = None,
    ) -> Collected:
        """Deletes unreachable data, and the bytes of forgotten states. Ids do not change.

        ``grace``: versions of operations that are not older than this are retained (default: the
        setting ``gc.grace_days``). ``reason``: recorded in the operation log.
        """
        span = lazy.gc.grace_of(self._config, grace)
        if dry_run:
            done = lazy.gc.plan_collection(self._store, self._config, grace=span, progress=progress)
        else:
            # An unfinished checkout may move HEAD to a version that gc would delete.
            lazy.interrupted.finish_checkouts(self._store)
            lazy.leftovers.clear_leftovers(self._store)
            done = lazy.gc.collect(
                self._store, self._config, grace=span, reason=reason, progress=progress
            )
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
        """Forgets the states of versions permanently. The next ``gc`` deletes the stored bytes.

        ``revs``: versions, ranges (``A..B``), or the ``Chosen`` of a dry run. If ``revs`` is empty,
        the arguments ``unused`` to ``keep_best`` choose the versions (docs/commands/forget.md).
        Commits, ids and history remain, and ``receipts`` lists the forgotten states. ``dry_run``:
        return the choice, but forget nothing.
        """
        if isinstance(revs, lazy.forget.Chosen):
            chosen = revs
        else:
            one = isinstance(revs, str | bytes) or not isinstance(revs, Iterable)
            named = cast(Sequence[Rev], (revs,) if one else revs)
            best = tuple(lazy.retention.Best.parse(text) for text in keep_best)
            rules = lazy.retention.Retention(
                last=keep_last,
                hourly=keep_hourly,
                daily=keep_daily,
                best=best,
                unused=unused,
                unqueried=unqueried,
            )
            chosen = lazy.forget.choose(self._store, named, rules or None)
        if not dry_run:
            done = lazy.forget.forget(self._store, self._config, chosen, reason=reason)
            chosen = replace(chosen, number=None if done is None else done.sequence)
        return chosen

    def preview(self, chosen: Chosen, *, progress: Progress | None = None) -> ForgetPreview:
        """What ``forget`` would delete and keep, and how much the next ``gc`` would free."""
        return lazy.forget.preview(
            self._store,
            self._config,
            chosen,
            grace=lazy.gc.grace_of(self._config),
            progress=progress,
        )

    def receipts(self) -> list[Receipt]:
        """Receipts of forgotten states, oldest first.

        A receipt says who forgot a state, why, and when its last byte was deleted (if it was).
        """
        return lazy.receipts.receipts(self._store.fresh())

    def work_folder(self) -> AbstractContextManager[Path]:
        """A ``with`` block with a new folder in ``.mvc``, which is deleted after the block.

        If the process is killed, the next call or the next ``gc`` deletes the folder.
        """
        return lazy.leftovers.work_folder(self._store)

    def proofs(self, versions: Iterable[CommitId] | None = None) -> dict[CommitId, ReplayProof]:
        """Maps versions to proofs. A proof says that a replay here computed the same weights.

        ``versions``: only these versions (default: all).
        """
        return availability.proven_here(self._store, versions)

    def prove(self, proofs: Sequence[Proof], *, where: str) -> None:
        """Records proofs of replays that were made in the environment ``where``.

        Each proof names a version and a path. Raises DamagedData if the version has another state
        at this path than the replay.
        """
        lazy.weights.prove(self._store, self._config, proofs, where=where)

    def cost(self, rev: Rev, path: str | None = None, *, besides: CommitId | None = None) -> Cost:
        """The bytes and the recovery time of a version, or of its file ``path``, as stored now.

        Tensors that the version ``besides`` has, too, do not count.
        """
        return lazy.weights.cost(self._store, resolve(self._store, rev), path, besides)

    def drop_weights(
        self, alternatives: Mapping[CommitId, Alternative], *, reason: Reason = ""
    ) -> None:
        """Drops weights that a replay can compute again. The change is durable on return.

        First reads and hashes everything that the replay needs. Raises CannotRetrain if a version
        has no recipe, or if this repository has no proof of the version's replay (``prove``);
        DamagedData. If an error is raised, nothing is dropped.
        """
        lazy.weights.drop(self._store, self._config, alternatives, reason=reason)

    def store_weights(self, rev: Rev, file: StateFile | None = None) -> None:
        """Stores the dropped weights of a version again.

        The weights come from ``file``, or from equal contents of other versions. Raises
        WeightsDropped if neither ``file`` nor another version has the weights; DamagedData if
        ``file`` has another state.
        """
        lazy.weights.store(self._store, self._config, resolve(self._store, rev), file)

    def curve(self, *, progress: Progress | None = None) -> RepackCurve:
        """For several limits of the recovery time, the smallest possible size of all packs.

        The result contains the size and the recovery time of the present layout, too.
        """
        return lazy.repack.draw_curve(self._store, self._config, progress)

    def queries(self) -> Queries:
        """How often each version was read (``checkout``, ``restore``, ...), and the newest time.

        Raises IoFailed if the query log cannot be read.
        """
        return queries.queries(self._store)

    def join_steps(self, step: int = 8, *, since: int = 0) -> int:
        """Joins consecutive approximate deltas (``lc``) into super-steps, which take less space.

        A super-step is one delta for several commits. ``step``: commits per super-step. ``since``:
        consider only versions that operation ``since`` or a later operation committed. Returns
        the number of the newest operation. Pass this number as ``since`` in the next call.
        """
        newest = self._store.fresh().position.sequence
        lazy.super_steps.join(self._store, self._config, step, since=since)
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

        ``aims``: at most one of ``interval``, ``max_recovery``, ``max_size``, ``add``, ``remove``,
        ``add_queried`` (default: the settings). ``alternatives``: recipes that can replace stored
        weights (``mvc.recipes.alternatives``). With the setting ``store.storage_weight``, weights
        are dropped if a replay is cheaper. ``dry_run``: only plan. Raises WeightsDropped if the
        weights of a version to ``add`` are dropped.
        """
        goal = lazy.goal.goal_of(self._store, self._config, **aims)
        if goal.weight is not None:
            goal = replace(goal, alternatives=alternatives or {})
        return lazy.repack.repack(
            self._store, self._config, goal, dry_run=dry_run, reason=reason, progress=progress
        )
