"""The public entry: a repository of model versions.

Opens and wires; every verb is a function in a module of its own.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, nullcontext, suppress
from dataclasses import replace
from datetime import datetime, timedelta
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeAlias, cast

from mvc.errors import DamagedData, WrongUsage
from mvc.ids import CommitId
from mvc.io.clock import Clock
from mvc.io.files import FileSystem
from mvc.model.names import DEFAULT_STATE, check_path
from mvc.repo import deployments, refs, times
from mvc.repo.config import load_config
from mvc.repo.context import Context, Progress
from mvc.repo.deployments import Deployed
from mvc.repo.lookup import manifests, revisions
from mvc.repo.opening import Configure, check_absent, open_context
from mvc.store.store import create

if TYPE_CHECKING:
    from types import TracebackType

    from mvc.model.manifest import Manifest
    from mvc.repo.checkout.checkout import Restored
    from mvc.repo.checkout.versions import Version
    from mvc.repo.commit.base_cache import BaseCache
    from mvc.repo.commit.request import Change
    from mvc.repo.commit.result import CommitResult
    from mvc.repo.diff.diff import Diff
    from mvc.repo.display import Log
    from mvc.repo.fsck.fsck import FsckReport
    from mvc.repo.gc.gc import Collection as Collected
    from mvc.repo.importing.importing import Imported
    from mvc.repo.lookup.refs import Ref
    from mvc.repo.maintenance.report import Repaired
    from mvc.repo.oplog.oplog import Operation
    from mvc.repo.oplog.undo import Undoing
    from mvc.repo.repack.repack import Repacked
    from mvc.repo.retention.forget import Chosen
    from mvc.repo.stats import Stats
    from mvc.repo.worktree.identify import Identified
    from mvc.repo.worktree.status import Status

__all__ = ["Repository", "Time"]

Time: TypeAlias = int | str | datetime
"""Nanoseconds since 1970, a text such as ``2026-11-20T10:00Z`` or ``2 hours ago``, or a datetime.

A ``datetime`` without a zone is in local time.
"""

Paths: TypeAlias = str | PathLike[str] | Sequence[str | PathLike[str]]
_FIRST_CONFIG = b"# See docs/commands/config.md\n"


class Repository:
    """An open repository; close it, or use it as a context manager.

    Safe across threads and after a fork. Raises subclasses of ``mvc.MvcError``.
    """

    def __init__(self, context: Context) -> None:
        self.context = context
        self._lock = threading.RLock()
        self._last: dict[str, BaseCache] = {}
        self._closing: list[Callable[[], object]] = []
        self.closed = False

    # -- opening -------------------------------------------------------------------------

    @classmethod
    def init(
        cls,
        path: str | PathLike[str] = ".",
        *,
        branch: str | None = None,
        config: Configure | None = None,
        fs: FileSystem | None = None,
        clock: Clock | None = None,
    ) -> Self:
        """Makes an empty repository in a folder, which is created if need be, and opens it.

        ``config`` as for ``open``; it is given None, because there is no file yet.
        Raises AlreadyARepository, InvalidName, InvalidConfig.
        """
        from mvc.repo.checkout.folders import remove_if_failed

        files, time = fs or FileSystem(), clock or Clock()
        root = files.realpath(Path(path))
        settings = config(None) if config else load_config(files, None, None, {}, {})
        name = branch or str(settings.get("init.branch"))
        refs.check_branch(name)
        check_absent(files, root)
        with remove_if_failed(files, root):
            files.make_dirs(root)
            create(files, time, root, name, _FIRST_CONFIG)
        return cls.open(root, config=config, fs=fs, clock=clock)

    @classmethod
    def open(
        cls,
        path: str | PathLike[str] = ".",
        *,
        discover: bool = True,
        config: Configure | None = None,
        fs: FileSystem | None = None,
        clock: Clock | None = None,
    ) -> Self:
        """Opens the repository of a folder, or with ``discover`` of the nearest one above it.

        ``config`` makes the configuration from the path of the repository's own file.
        Raises NotARepository, UnsupportedFormat, DamagedData, InvalidConfig.
        """
        return cls(open_context(path, discover=discover, config=config, fs=fs, clock=clock))

    @property
    def root(self) -> Path:
        """The folder that holds ``.mvc``."""
        return self.context.root

    def close(self) -> None:
        """Lets go of files and memory. Everything acknowledged is durable already."""
        with ExitStack() as after:
            after.callback(self.context.store.close)
            after.callback(self._last.clear)
            for act in self._closing:
                after.callback(act)
            self._closing = []
            self.closed = True

    def before_close(self, act: Callable[[], object]) -> Callable[[], None]:
        """Has ``close`` call ``act`` first, so that what still writes can end.

        What is returned takes that back.
        """
        self._closing.append(act)

        def take_back() -> None:
            with suppress(ValueError):  # close is calling it
                self._closing.remove(act)

        return take_back

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # -- keeping versions ----------------------------------------------------------------

    def commit(
        self,
        state: Mapping[str, Any] | Paths | None = None,
        *,
        message: str = "",
        metrics: Mapping[str, Any] | None = None,
        deploy: str | None = None,
        at: Time | None = None,
        pipeline: str | None = None,
        reset_point: bool = False,
        name: str = DEFAULT_STATE,
        beside: Mapping[str, Mapping[str, Any]] | None = None,
        all: bool = False,
        allow_empty: bool | None = None,
        opaque: bool = False,
        author: str | None = None,
        time: Time | None = None,
        cwd: Path | None = None,
        progress: Progress | None = None,
        exact: Sequence[str] = (),
        output: str | PathLike[str] | None = None,
        in_place: bool = False,
        produced_by: str | None = None,
    ) -> CommitResult:
        """Keeps a version; when it returns, no crash loses it.

        ``state`` is a mapping of tensors (torch or numpy, any nesting) that becomes the
        path ``name``, or paths of files and folders. ``all`` adds every tracked path that
        changed. ``beside`` holds further mappings of the same version by their paths.
        ``deploy`` names the target that goes live, ``at`` when (default: now).
        A mapping is committed even if nothing changed; files are not, unless
        ``allow_empty``. A model file that is cut off raises BadModelFile, unless
        ``opaque`` says to keep it as it is.

        With a lossy ``pipeline`` production weights are made of ``state`` and of what HEAD
        holds at its path; they are what is kept, and what ``state`` of the result is. Tensors
        that ``exact`` names stay as they are, and so does ``beside``; a stage that goes by
        the loss takes it from ``metrics``. Of a file the production weights are written to
        ``output``, or ``in_place``. ``produced_by`` says that ``state`` are the production
        weights of this pipeline already.
        """
        from mvc.repo.commit import inputs
        from mvc.repo.commit.commit import commit
        from mvc.repo.commit.request import CommitRequest, check_author, metrics_from

        with self._lock:
            python = isinstance(state, Mapping)
            dead: set[str] = set()
            wanted = self._changes(state, name, all, cwd, opaque, dead)
            numbers = metrics_from(metrics or {})
            producing = None
            if produced_by is None and self._lossy(pipeline):
                from mvc.repo.lossy.commit import LossyCommit

                producing = LossyCommit.of(
                    self.context, pipeline, exact, numbers.get("loss"), None if python else wanted
                )
            place = None if output is None else Path(output)
            if producing is not None:
                if not python:
                    producing.check_places(wanted, place, in_place=in_place)
                wanted = producing.changes(wanted, given_back=python)
            elif place or in_place or exact:
                raise WrongUsage("output, in_place and exact are for lossy pipelines")
            for path, more in (beside or {}).items():
                last = self._last_version(path)
                wanted.append(inputs.of_state(more, check_path(path), last))
            request = CommitRequest(
                wanted,
                message,
                numbers,
                deploy,
                None if at is None else self.time(at),
                pipeline,
                reset_point,
                python or deploy is not None if allow_empty is None else allow_empty,
                None if author is None else check_author(author),
                None if time is None else self.time(time),
                produced_by or (producing.text if producing else None),
            )
            try:
                with producing.explained() if producing and not python else nullcontext():
                    kept = commit(self.context, request, progress)
            except BaseException:
                self._last.clear()
                raise
            if producing is not None and not python:
                producing.write(kept, place)
            elif producing is not None:
                state = producing.state(kept.entries[name])
            return replace(kept, state=state if python else None, dead_links=tuple(sorted(dead)))

    def _lossy(self, pipeline: str | None) -> bool:
        """Whether this pipeline, or that of the settings, does more than code."""
        from mvc.codecs.pipeline import Pipeline

        parsed = Pipeline.parse(pipeline or str(self.context.config.get("commit.pipeline")))
        return bool(parsed.decisions or parsed.lossy)

    def _changes(
        self,
        state: Mapping[str, Any] | Paths | None,
        name: str,
        all_: bool,
        cwd: Path | None,
        opaque: bool,
        dead: set[str],
    ) -> list[Change]:
        from mvc.repo.commit import inputs

        if isinstance(state, Mapping):
            return [inputs.of_state(state, check_path(name), self._last_version(name))]
        listed = None if state is None else inputs.paths_of(state)
        return inputs.of_files(self.context, listed, all_, cwd, opaque, dead)

    def _last_version(self, name: str) -> BaseCache | None:
        """What is kept in memory of the version before; a forked child begins anew."""
        from mvc.repo.commit.base_cache import BaseCache

        if not self.context.config.get("python.keep_base"):
            return None
        graph = self.context.store.graph
        last = self._last.get(name)
        if last is None or last.graph is not graph:
            last = self._last[name] = BaseCache(graph)
        return last

    # -- getting versions back -------------------------------------------------------------

    def checkout(
        self,
        rev: str | CommitId | None = None,
        *,
        at: Time | None = None,
        target: str | None = None,
        path: str | None = None,
    ) -> Any:
        """A version's state in memory, verified.

        By revision (default HEAD), or as it was live on ``target`` at the moment ``at``.
        Values are torch tensors where torch tensors went in, else numpy arrays.
        """
        from mvc.repo.checkout import checkout

        return checkout.load_state(self.context, self.find(rev, at=at, target=target), path)

    def restore(
        self,
        rev: str | CommitId | None = None,
        *,
        at: Time | None = None,
        target: str | None = None,
        paths: Sequence[str] = (),
        output: str | PathLike[str] | None = None,
        force: bool = False,
        progress: Progress | None = None,
    ) -> Restored:
        """Writes files. Without ``paths`` and ``output`` the whole set, and HEAD moves there."""
        from mvc.repo.checkout import checkout
        from mvc.repo.checkout.checkout import Restored
        from mvc.repo.checkout.folders import remove_if_failed

        commit_id = self.find(rev, at=at, target=target)
        if list(paths) == ["."] and not manifests.of_commit(self.context, commit_id).entries:
            return Restored(commit_id, (), (), (), refs.head(self.context).branch, False)
        if output is not None:
            where = Path(output)
            with remove_if_failed(self.context.store.fs, where):
                return checkout.export(
                    self.context, commit_id, paths, where, force=force, progress=progress
                )
        if paths:
            return checkout.restore_paths(
                self.context, commit_id, paths, force=force, progress=progress
            )
        branch = None
        if isinstance(rev, str) and at is None:
            _, branch = revisions.resolve_ref(self.context, rev)
        to = branch if branch is not None else commit_id
        return checkout.restore_all(self.context, commit_id, to, force=force, progress=progress)

    def switch(
        self,
        branch: str,
        *,
        create: bool = False,
        start: str | CommitId | None = None,
        force: bool = False,
        progress: Progress | None = None,
    ) -> Restored | None:
        """Makes a branch the current one and writes its files."""
        from mvc.repo.checkout import switch

        return switch.switch(
            self.context, branch, create=create, start=start, force=force, progress=progress
        )

    # -- the working folder, existing checkpoints ------------------------------------------

    def remove(
        self, paths: Sequence[str], *, cached: bool = False, force: bool = False
    ) -> tuple[str, ...]:
        """Takes paths out of the next commit, and off the disk unless ``cached``."""
        from mvc.repo import remove

        return remove.remove(self.context, paths, cached=cached, force=force)

    def import_checkpoints(
        self,
        sources: Sequence[str | PathLike[str]],
        *,
        time: str = "mtime",
        deploy: str | None = None,
        path: str | None = None,
        message: str | None = None,
        progress: Progress | None = None,
        taken: Callable[[Imported], object] | None = None,
    ) -> list[Imported]:
        """Commits existing checkpoints, files or folders, each with its own time.

        ``time`` is ``mtime`` or ``name:FORMAT`` (strptime on the file's name, in local time if
        it names no zone). ``deploy`` records that each went live on that target at its time.
        ``path`` is the tracked path of files (default ``model`` and the extension), and the
        tracked folder of checkpoints that are folders. ``taken`` is called with each version
        once it is durable. Raises WrongUsage, InvalidTime and UnknownPath, before anything
        is committed.
        """
        from mvc.repo.importing.importing import import_checkpoints

        return import_checkpoints(
            self.context,
            [Path(source) for source in sources],
            time=time,
            deploy=deploy,
            path=path,
            message=message,
            progress=progress,
            taken=taken,
        )

    # -- finding versions --------------------------------------------------------------------

    def find(
        self,
        rev: str | CommitId | None = None,
        *,
        at: Time | None = None,
        target: str | None = None,
    ) -> CommitId:
        """The commit of a revision, or the one that was live."""
        if at is not None or target is not None:
            if rev is not None:
                raise WrongUsage("name a revision or a moment, not both")
            return self.live(at, target).commit
        return revisions.resolve(self.context, "HEAD" if rev is None else rev)

    def manifest(self, rev: str | CommitId = "HEAD") -> Manifest:
        """The paths of a version with their tensors."""
        return manifests.of_commit(self.context, self.find(rev))

    def iter_versions(
        self,
        since: Time | None = None,
        until: Time | None = None,
        target: str | None = None,
        *,
        rev: str | CommitId = "HEAD",
        path: str | None = None,
        keys: Collection[str] | None = None,
        on_error: str = "raise",
    ) -> Iterator[tuple[Version, Any]]:
        """Versions and their states, oldest first; each is decoded once, from the one before.

        With ``target`` what went live there, as ``(Deployed, state)``, by the time of the
        deployment; without it ``rev`` and its ancestors, as ``(Commit, state)``, by commit time.
        Both bounds are included. ``path`` as for ``checkout``; with ``keys`` only these tensors
        are decoded, as a flat dictionary. A version that was forgotten, is damaged or lacks
        what was asked for raises its error; ``on_error="skip"`` passes it over, ``"yield"``
        gives the error in place of the state. While a state is looked at, the next is decoded.
        """
        from mvc.repo.checkout import versions

        return versions.iter_versions(
            self.context,
            since=None if since is None else self.time(since),
            until=None if until is None else self.time(until),
            target=target,
            rev=rev,
            path=path,
            keys=keys,
            on_error=on_error,
        )

    # -- asking ------------------------------------------------------------------------------

    def time(self, value: Time) -> int:
        """Nanoseconds since 1970 of a moment given as such, as text or as a ``datetime``."""
        return times.moment_of(value, now_ns=self.context.store.clock.now_ns())

    def log(
        self,
        rev: str | CommitId = "HEAD",
        *,
        limit: int | None = None,
        since: Time | None = None,
        until: Time | None = None,
        target: str | None = None,
        reset_points: bool = False,
        incomplete: list[DamagedData] | None = None,
    ) -> Log:
        """A version and its ancestors by commit time, newest first, read as far as looked at.

        ``since`` and ``until`` (both included) bound the commit time. With ``target`` only
        versions that a deployment there made live and that was not retracted, by the time of
        the newest such deployment, which the bounds then mean. ``reset_points`` has every
        entry say whether it is stored in full. Raises UnknownRevision, UnknownTarget and
        WrongUsage at once, and DamagedData where the history goes on with entries that are
        lost; with ``incomplete`` the error is appended there, and what is left follows.
        """
        from mvc.repo.display import Log
        from mvc.repo.history.log import log

        entries = log(
            self.context,
            rev,
            limit=limit,
            target=target,
            since=None if since is None else self.time(since),
            until=None if until is None else self.time(until),
            reset_points=reset_points,
            incomplete=incomplete,
        )
        return Log(entries)

    def status(self, *, untracked: bool = True) -> Status:
        """Which tracked files differ from HEAD, and how."""
        from mvc.repo.worktree import status

        return status.status(self.context, untracked=untracked)

    def diff(
        self,
        a: str | CommitId | None = None,
        b: str | CommitId | None = None,
        paths: Sequence[str] = (),
    ) -> Diff:
        """Compares two versions, or a version and files on disk, tensor by tensor."""
        from mvc.repo.diff import diff

        return diff.diff(self.context, a, b, paths)

    def identify(self, path: str | PathLike[str]) -> list[Identified]:
        """Which versions have the state of this file; from hashes alone."""
        from mvc.repo.worktree import identify

        return identify.identify(self.context, Path(path))

    # -- deployments, refs, paths --------------------------------------------------------------

    def deploy(self, rev: str | CommitId, target: str, *, at: Time | None = None) -> Deployed:
        """Records that a version went live on a target, now or at a given moment."""
        moment = None if at is None else self.time(at)
        return deployments.deploy(self.context, self.find(rev), target, moment)

    def retract(
        self, rev: str | CommitId | None, target: str, *, at: Time | None = None
    ) -> Deployed:
        """Records that a deployment did not happen; its first record stays.

        That of version ``rev``, or with None the newest on ``target``; ``at`` picks the one
        that is recorded for this moment.
        """
        moment = None if at is None else self.time(at)
        commit_id = None if rev is None else self.find(rev)
        return deployments.retract(self.context, target, commit_id, moment)

    def live(self, at: Time | None = None, target: str | None = None) -> Deployed:
        """The deployment that was live on a target at a moment; now if none is given."""
        moment = None if at is None else self.time(at)
        return deployments.live_at(self.context, moment, target)

    def deployments(
        self, target: str | None = None, *, incomplete: list[DamagedData] | None = None
    ) -> list[Deployed]:
        """Every deployment, retracted ones included, of one target or all.

        Raises DamagedData where entries of the journal are lost that may have recorded more;
        with ``incomplete`` that is noted there, and what can be read is returned.
        """
        return deployments.list_deployments(self.context, target, incomplete=incomplete)

    def branches(self) -> list[Ref]:
        """All branches with their newest commits."""
        return refs.branches(self.context)

    def tags(self) -> list[Ref]:
        """All tags with their commits."""
        return refs.tags(self.context)

    def branch(self, name: str, rev: str | CommitId = "HEAD", *, force: bool = False) -> Ref:
        """Makes a branch at a version."""
        return refs.create_branch(self.context, name, rev, force=force)

    def tag(self, name: str, rev: str | CommitId = "HEAD", *, force: bool = False) -> Ref:
        """Names a version for ever."""
        return refs.create_tag(self.context, name, rev, force=force)

    # -- maintenance ---------------------------------------------------------------------------

    def stats(self) -> Stats:
        """Versions, reset points, chains, bytes by kind, recovery times."""
        from mvc.repo import stats

        return stats.stats(self.context)

    def fsck(self, *, full: bool = False, progress: Progress | None = None) -> FsckReport:
        """Checks every byte; with ``full`` every object is recovered and hashed as well."""
        from mvc.repo.fsck import fsck

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
    ) -> Collected:
        """Deletes what nothing reaches and gives the space back; ids do not change.

        ``grace``: how long operations still count (default: the setting ``gc.grace_days``).
        """
        from mvc.repo.gc import gc
        from mvc.repo.gc.gc import grace_of

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
        from mvc.repo.retention import forget
        from mvc.repo.retention.rules import Best, Retention

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
        from mvc.repo.repack import repack

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
        from mvc.repo.oplog import oplog

        return oplog.oplog(self.context, limit)

    def undo(self, number: int | None = None, *, dry_run: bool = False) -> Undoing:
        """Sets back what an operation moved: the newest that did, or the one with ``number``."""
        from mvc.repo.oplog import undo

        return (undo.plan if dry_run else undo.undo)(self.context, number)
