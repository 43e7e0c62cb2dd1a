"""``Repository``: a repository of model versions, the main class of the public API.

Most methods only call a function of another module, which does the work.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, suppress
from functools import cached_property, partial
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Literal, Self, TypeAlias, overload

from msgspec.structs import replace

from mvc.api import lazy
from mvc.api.absent import fetch_absent, fetch_hint, with_states
from mvc.errors import (
    AlreadyARepository,
    DamagedData,
    MvcError,
    NotARepository,
    WrongUsage,
)
from mvc.ids import CommitId
from mvc.io.clock import Clock
from mvc.io.files import FileSystem
from mvc.names import DEFAULT_STATE, check_ref, printable
from mvc.repo import queries, recording, refs, revisions
from mvc.repo.config import Config, load_config
from mvc.repo.handle import Configure, Handle, Tuning, check_absent, open_handle
from mvc.repo.hook import announcing
from mvc.repo.killed import Interrupted
from mvc.repo.lookup import availability, commits, manifests
from mvc.repo.lookup import refs as lookup_refs
from mvc.repo.lookup.availability import Gone
from mvc.repo.lookup.refs import RefKind
from mvc.repo.revisions import Rev
from mvc.repo.statements import live
from mvc.repo.statements.annotations import Annotation, Annotations, annotate
from mvc.repo.statements.live import Deployed, Live
from mvc.repo.values import metrics_from, params_from
from mvc.store.store import BARE_CONFIG, FIRST_CONFIG, SharedBy, create, share_new
from mvc.times import Time, moment_of
from mvc.types import Closing, PathName, Progress, Reason, Unpicklable

if TYPE_CHECKING:
    from mvc.adapters.state_file import StateFile
    from mvc.api.remotes import Remotes
    from mvc.api.storage import Storage
    from mvc.io.ssh_keygen import Checked
    from mvc.maintenance.overview import History
    from mvc.model.commit import Commit
    from mvc.model.manifest import FileEntry, Manifest
    from mvc.pipelines.requirements import Requirements
    from mvc.remote.pull import Pulled
    from mvc.remote.push import Pushed
    from mvc.remote.transfer import Transferred
    from mvc.repo.average import Averaged
    from mvc.repo.checkout.checkout import Restored
    from mvc.repo.checkout.export import WriteOptions
    from mvc.repo.checkout.reader import VersionFile
    from mvc.repo.checkout.versions import Version
    from mvc.repo.commit.request import Attachment, CommitOptions, FileContent, FileOptions
    from mvc.repo.commit.result import CommitResult
    from mvc.repo.diff.diff import Diff
    from mvc.repo.diff.nearest import Nearest
    from mvc.repo.history.log import Log, LogOptions
    from mvc.repo.lookup.availability import Availability
    from mvc.repo.lookup.refs import Head, Ref
    from mvc.repo.merge.merge import Merged
    from mvc.repo.oplog.oplog import Operation
    from mvc.repo.oplog.undo import Undoing
    from mvc.repo.scratch import Scratch
    from mvc.repo.statements.protection import RecordingNotice
    from mvc.repo.statements.record import Send
    from mvc.repo.statements.rollback import RolledBack
    from mvc.repo.statements.signatures import Vouched
    from mvc.repo.worktree.identify import Identified
    from mvc.repo.worktree.status import Status
    from mvc.store.journal.frames import Gap


Paths: TypeAlias = PathName | Sequence[PathName]


class Repository(Closing, Unpicklable):
    """An open repository. Call ``close`` at the end, or use the object as a context manager.

    Several threads can use the object, and a child process can use it after a fork. Methods raise
    subclasses of ``mvc.MvcError``. The attribute ``storage`` has methods for maintenance. The
    attribute ``remotes`` has methods for remote repositories.
    """

    def __init__(self, handle: Handle) -> None:
        if not isinstance(handle, Handle):
            raise WrongUsage(
                "Repository(...) does not open a repository",
                hint="open one with mvc.Repository.open(PATH), or create one with "
                "mvc.Repository.init(PATH)",
            )
        self.handle = handle
        self._store, self._config, self._recent = handle.store, handle.config, handle.recent
        self._closing: dict[Callable[[], object], None] = {}

    # -- opening -------------------------------------------------------------------------

    @classmethod
    def init(
        cls,
        path: PathName = ".",
        *,
        branch: str | None = None,
        bare: bool = False,
        shared: SharedBy | None = None,
        config: Configure | None = None,
        fs: FileSystem | None = None,
        clock: Clock | None = None,
    ) -> Self:
        """Creates an empty repository in a folder and opens it. Creates a missing folder.

        ``bare``: the repository has no working files and serves as a remote. ``shared``: ``group``
        permits the Unix group to write files in ``.mvc``, whatever the umask. ``all`` permits this,
        too, and permits all other users to read the files. ``config``: as for ``open``, but called
        with None, because no settings file exists yet. Raises AlreadyARepository, DubiousOwnership,
        InvalidName, InvalidConfig.
        """
        from mvc.io.replacement import removing_if_failed

        files, time = fs or FileSystem(), clock or Clock()
        root = files.realpath(Path(path))
        settings = config(None) if config else load_config(files, None, None, {}, flags={})
        name = branch or str(settings.get("init.branch"))
        check_ref("branch", name)
        check_absent(files, root)
        with removing_if_failed(files) as created:
            files.make_dirs(root, created=created)
            if root in created and shared is not None:
                share_new(files, root, shared)
            first = BARE_CONFIG if bare else FIRST_CONFIG
            create(files, time, root, name, config=first, shared=shared)

        repo = cls.open(root, config=config, fs=fs, clock=clock)
        queries.note(repo.handle.store, ())
        return repo

    @classmethod
    def open(
        cls,
        path: PathName | Repository = ".",
        *,
        discover: bool = True,
        config: Configure | None = None,
        fs: FileSystem | None = None,
        clock: Clock | None = None,
        tuning: Tuning | None = None,
    ) -> Self:
        """Opens the repository of a folder. ``discover``: search the folder's parents, too.

        If ``path`` is an open repository, opens this repository a second time, with the same
        settings. ``config``: a function that is called with the path of the repository's settings
        file and returns the configuration. Raises NotARepository, DubiousOwnership,
        UnsupportedFormat, DamagedData, InvalidConfig.
        """
        if isinstance(path, Repository):
            opened, discover = path.handle, False
            path, config, fs, clock = (
                opened.store.root,
                lambda _: opened.config,
                opened.store.fs,
                opened.store.clock,
            )
        return cls(
            open_handle(path, discover=discover, config=config, fs=fs, clock=clock, tuning=tuning)
        )

    @classmethod
    def open_or_init(
        cls,
        path: PathName = ".",
        *,
        branch: str | None = None,
        config: Configure | None = None,
        fs: FileSystem | None = None,
        clock: Clock | None = None,
    ) -> Self:
        """Opens the repository of a folder. If the folder has no repository, creates one.

        The arguments are those of ``init``. ``branch``: the first branch of a new repository.
        Raises UnsupportedFormat, DamagedData, InvalidName, InvalidConfig.
        """
        with suppress(NotARepository):
            return cls.open(path, discover=False, config=config, fs=fs, clock=clock)
        with suppress(AlreadyARepository):  # created by another process meanwhile
            return cls.init(path, branch=branch, config=config, fs=fs, clock=clock)
        return cls.open(path, discover=False, config=config, fs=fs, clock=clock)

    @property
    def closed(self) -> bool:
        """Whether ``close`` was called. If so, other methods raise WrongUsage."""
        return self._store.closed

    @property
    def root(self) -> Path:
        """The folder that contains ``.mvc``."""
        return self._store.root

    @property
    def config(self) -> Config:
        """The settings, each with its source, such as a settings file."""
        return self._config

    @property
    def interrupted(self) -> Interrupted:
        """What ``open`` did about checkouts that were interrupted because a process was killed.

        ``open`` completes or undoes such checkouts.
        """
        return self.handle.interrupted

    @cached_property
    def storage(self) -> Storage:
        """Methods for maintenance: statistics, check, repair, gc, forget and repack."""
        from mvc.api.storage import Storage

        return Storage(self.handle)

    @cached_property
    def remotes(self) -> Remotes[Self]:
        """The remote repositories of this repository."""
        from mvc.api.remotes import Remotes

        return Remotes(self.handle, type(self))

    @property
    def gaps(self) -> Sequence[Gap]:
        """Ranges of entries of the operation log that are lost, because the log is damaged."""
        return self._store.snapshot.gaps

    def close(self) -> None:
        """Closes all files and frees memory. Operations that have returned are durable already."""
        with ExitStack() as after:
            after.callback(self._store.close)
            after.callback(self._recent.caches.clear)
            for act in self._closing:  # may commit
                after.callback(act)
            self._closing = {}

    def scratch(self, name: str) -> Scratch:
        """The folder ``.mvc/NAME`` for unfinished work, such as uploads."""
        return lazy.scratch.scratch(self._store, name)

    def before_close(self, act: Callable[[], object]) -> Callable[[], None]:
        """Makes ``close`` call ``act`` first, so that a background writer can finish.

        Returns a function that cancels the call of ``act``.
        """
        self._closing[act] = None
        return partial(self._closing.pop, act, None)

    def __repr__(self) -> str:
        state = " (closed)" if self.closed else ""
        return f"<mvc repository {printable(str(self.root))}{state}>"

    # -- committing ----------------------------------------------------------------------

    def commit(
        self,
        state: Mapping[str, Any] | Paths | None = None,
        *,
        path: str = DEFAULT_STATE,
        states: Mapping[str, FileContent | None] | None = None,
        message: str = "",
        metrics: Mapping[str, Any] | None = None,
        params: Mapping[str, Any] | None = None,
        deploy: str | None = None,
        pipeline: str | Requirements | None = None,
        attachments: Mapping[str, Attachment] | None = None,
        files: FileOptions | None = None,
        options: CommitOptions | None = None,
    ) -> CommitResult:
        """Stores a version. The version is durable when the call returns.

        ``state`` is a mapping of torch or numpy tensors, in any nesting. It is stored at ``path``,
        even if nothing changed. If ``path`` ends in ``/``, the state is stored in the folder
        ``path`` as a sharded model: several files, and an index that names the file of each tensor.
        Instead, ``state`` may be paths of files and folders. If a file is missing from such a
        folder, the new version does not have the file. ``state`` may also map paths to
        ``mvc.state.StateFile`` or ``FileEntry`` values, which are stored unchanged.

        ``states``: maps additional paths to mappings of tensors, to a ``Path`` (a file on disk),
        or to None, which removes the path from the version. ``metrics``: numbers. ``params``: texts
        or plain data, which is stored as text. ``attachments``: maps names to bytes or states. A
        version contains its attachments, but a checkout does not write attachments to files.
        ``deploy``: the target to which the version is deployed. ``files``: options for reading
        files. ``options``: rarely used arguments.

        ``pipeline``: the text of a pipeline, or ``Requirements`` by which mvc chooses a pipeline.
        By default, the setting ``commit.pipeline`` selects the pipeline, without lossy stages
        (except for a pipeline such as ``lc``, or if ``files`` has ``output`` or ``in_place``). A
        lossy pipeline changes the state at ``path``, or the files, so that the delta from the
        branch's newest version becomes small. The changed weights (production weights) are stored,
        and the result has them in ``state``. The files in ``states`` remain exact. If a stage of
        the pipeline needs the loss, it reads the metric ``loss``. A pipeline such as ``lc`` stores
        an approximation of the state (docs/lc.md), and leaves files on disk unchanged.

        Raises WrongUsage, InvalidName, InvalidTime, InvalidPipeline, UnsupportedTensor,
        CannotRecord or BadModelFile if the input is invalid. Raises SourceChanged if a file or
        tensor changed during the call. Raises NothingToCommit, StateForgotten, Busy.
        """
        from mvc.pipelines.requirements import pipeline_and_bound

        chosen = options or lazy.request.CommitOptions()
        text, bound = pipeline_and_bound(pipeline)
        request = lazy.request.CommitRequest(
            path=path,
            message=message,
            metrics=metrics_from(metrics or {}),
            params=params_from(params or {}),
            deploy=deploy,
            deploy_time_ns=self._moment(chosen.at),
            pipeline=text,
            time_ns=self._moment(chosen.time),
            attachments=attachments or {},
            options=chosen if bound is None else replace(chosen, max_recovery=bound),
        )
        request = lazy.request.with_files(request, state, states, files)
        self._sending(chosen.push)  # raises for an unknown remote
        announce = announcing(self._store, None if chosen.detached else request.target)
        act = partial(lazy.commit.commit, self._store, self._config, self._recent, request=request)
        result = with_states(self._store, self._config, act)
        if result.deployment is not None:
            live.warned_if_older(self._store, announce("deploy", result.deployment))
        return (
            self._deployed(result, deploy, chosen) if chosen.push and deploy is not None else result
        )

    def _deployed(self, result: CommitResult, target: str, options: CommitOptions) -> CommitResult:
        try:
            deployment = self.deploy(  # the target and the files were checked before the commit
                result.id, target, at=options.at, sign=options.sign, anyway=True, push=options.push
            )
        except MvcError as error:
            raise type(error)(
                f"committed {result.id.short}, but did not deploy it to {target}: {error.message}",
                hint=error.hint,
            ) from error
        return replace(result, deployment=deployment)

    def average(
        self,
        revs: Sequence[Rev],
        *,
        weights: Sequence[float] | None = None,
        message: str = "",
        branch: str | None = None,
        deploy: str | None = None,
        to: PathName | None = None,
        force: bool = False,
        progress: Progress | None = None,
    ) -> Averaged:
        """Commits the weighted mean of versions. With ``to``, writes the mean to files instead.

        Each float of the mean is the sum of weight times value over all ``revs``, computed in
        float64 in the order of ``revs``, and rounded once to the tensor's dtype
        (docs/guides/merging.md). Weights are divided by their sum. By default all weights are
        equal. ``mvc.api.ema_weights`` returns the weights of an exponential moving average. A
        tensor must have the same name, dtype and shape in all versions. Integers and files without
        tensors are copied from the last of ``revs``.

        The new version has all ``revs`` as parents, and the ids and weights of ``revs`` as params.
        ``branch``: the branch to advance or create. Without ``branch``, the current branch and the
        files in the working folder are updated. These files must have no uncommitted changes.
        ``to``: a file or folder. ``force``: overwrite files at ``to``.

        Raises WrongUsage if the mean cannot be computed, WouldOverwrite, and the errors of
        ``commit``.
        """
        if to is not None and (branch or deploy or to == "-"):
            raise WrongUsage(
                "an average cannot be written to stdout: name a file or folder"
                if to == "-"
                else "to= only writes files: it does not combine with branch= and deploy="
            )
        ids = [self.find(rev) for rev in revs]
        message = message or f"average of {len(ids)} versions"
        commit = partial(self.commit, message=message, deploy=deploy)
        act = partial(
            lazy.average.average, self._store, ids, weights, commit=commit, branch=branch, to=to
        )
        return with_states(self._store, self._config, partial(act, force=force, progress=progress))

    # -- reading versions ------------------------------------------------------------------

    @overload
    def checkout(
        self,
        rev: Rev | None = None,
        *,
        at: Time | None = None,
        target: str | None = None,
        path: str | None = None,
        to: None = None,
    ) -> Any: ...

    @overload
    def checkout(
        self,
        rev: Rev | None = None,
        *,
        at: Time | None = None,
        target: str | None = None,
        path: str | Sequence[str] | None = None,
        to: PathName | BinaryIO,
        force: bool = False,
        everything: bool = False,
        atomic_dir: bool = False,
        delete: bool = False,
        delta_from: Rev | None = None,
        progress: Progress | None = None,
    ) -> Restored: ...

    def checkout(
        self,
        rev: Rev | None = None,
        *,
        at: Time | None = None,
        target: str | None = None,
        path: str | Sequence[str] | None = None,
        to: PathName | BinaryIO | None = None,
        force: bool = False,
        everything: bool = False,
        atomic_dir: bool = False,
        delete: bool = False,
        delta_from: Rev | None = None,
        progress: Progress | None = None,
    ) -> Any:
        """Returns a version's state. With ``to``, writes the version's files instead.

        The hashes of all tensors and files are verified. The version is ``rev`` (default HEAD), or
        the version that was live on ``target`` at the moment ``at``. ``path``: a file of the
        version, or the folder of one sharded model. Torch tensors are returned as torch tensors if
        torch is installed. All other tensors are returned as numpy arrays.

        ``to``: an existing or new file or folder. A new path is a file if the last part has a
        suffix. It is a folder if the last part has no suffix, or if ``to`` ends in ``/``. A binary
        stream as ``to`` receives one file. If ``to`` is ``root`` and ``path`` is None, HEAD moves
        to the version. With ``to``, ``path`` may be a list. All files are written and verified
        under temporary names, then renamed. Training states are omitted unless ``path`` names them
        or ``everything`` is true. ``force``: overwrite and delete uncommitted work and files at
        ``to``. ``atomic_dir``: write a new folder, then replace the symbolic link ``to`` by a link
        to this folder in one step. ``delete``: if the version lacks a file of the folder ``to``,
        delete this file. ``delta_from``: write a new folder that contains only the changes since
        this version, for inference engines.

        Raises UnknownRevision, UnknownPath, WouldOverwrite, WrongUsage, DamagedData, StorageFull;
        Busy if another checkout into the same folder takes longer than a minute.
        """
        commit_id = self.find(rev, at=at, target=target)
        options = lazy.export.WriteOptions(
            force=force,
            everything=everything,
            atomic_dir=atomic_dir,
            delete=delete,
            delta_from=None if delta_from is None else self.find(delta_from),
            progress=progress,
        )
        if to is not None:
            act: Callable[[], Any] = partial(
                self._write, commit_id, rev if at is None else None,
                path=path, to=to, options=options,
            )  # fmt: skip
        elif options != lazy.export.WriteOptions():
            raise WrongUsage(
                "force, everything, atomic_dir, delete, delta_from and progress need to=",
                hint="name a file or folder with to=",
            )
        elif not isinstance(path, str | None):
            raise WrongUsage("a state in memory has one path", hint="name one file or model folder")
        else:
            act = partial(lazy.states.load_state, self._store, commit_id, path)
        done = with_states(self._store, self._config, act)
        queries.note(self._store, [commit_id])
        return done

    def _write(
        self,
        commit: CommitId,
        rev: Rev | None,
        path: str | Sequence[str] | None,
        to: PathName | BinaryIO,
        options: WriteOptions,
    ) -> Restored:
        paths = (path,) if isinstance(path, str) else (path or ())
        force, progress = options.force, options.progress
        if to == "":
            raise WrongUsage(
                "the argument 'to' is empty", hint="name a file or a folder; . is the current one"
            )
        if not isinstance(to, str | PathLike):
            return lazy.export.export_to(self._store, commit, paths, to, options=options)
        if self._store.fs.realpath(Path(to)) != self.root:
            return lazy.export.export(self._store, commit, paths, to, options=options)
        if options != lazy.export.WriteOptions(force=force, progress=progress):
            raise WrongUsage(
                "everything, atomic_dir, delete and delta_from do not work on the repository's own "
                "folder"
            )
        if paths:
            return lazy.checkout.restore(self._store, commit, paths, force=force, progress=progress)
        _, branch = revisions.resolve_ref(self._store, rev) if isinstance(rev, str) else ("", None)
        new_head = commit if branch is None else branch
        return lazy.checkout.restore_all(
            self._store, commit, new_head, force=force, progress=progress
        )

    def switch(
        self,
        branch: str,
        *,
        create: bool = False,
        start: Rev | None = None,
        force: bool = False,
        progress: Progress | None = None,
    ) -> Restored | None:
        """Makes a branch the current branch and checks out the files of the branch."""
        restored = with_states(self._store, self._config, lambda: lazy.checkout.switch(
            self._store, branch, create=create, start=start, force=force, progress=progress
        ))  # fmt: skip
        queries.note(self._store, [] if restored is None else [restored.commit])
        return restored

    # -- finding versions --------------------------------------------------------------------

    def find(
        self, rev: Rev | None = None, *, at: Time | None = None, target: str | None = None
    ) -> CommitId:
        """The commit of ``rev`` (default HEAD), or the commit that was live on ``target``.

        ``at``: the moment at which the commit was live (default: now).
        """
        if at is not None or target is not None:
            if rev is not None:
                raise WrongUsage("name a revision or a moment, not both")
            return live.live_at(self._store, self._moment(at), target).commit
        return revisions.resolve(self._store, "HEAD" if rev is None else rev)

    def version(self, rev: Rev = "HEAD") -> Commit:
        """A version's commit: author, time, message, metrics, params, parents, Merkle root."""
        return commits.get(self._store.snapshot, self.find(rev))

    def manifest(self, rev: Rev = "HEAD") -> Manifest:
        """The list of a version's files, and of the tensors in each file."""
        load = partial(manifests.of_commit, self._store, self.find(rev))
        return with_states(self._store, self._config, load)

    def open_file(self, rev: Rev, path: str, *, counted: bool = True) -> VersionFile:
        """Opens a file of a version as a binary file. The attribute ``tensors`` reads tensors.

        ``counted``: count this as a read of the version (``storage.queries``). Raises UnknownPath,
        StateForgotten, WeightsDropped. Reading from the file raises DamagedData.
        """
        commit = self.find(rev)
        file = with_states(
            self._store, self._config, lambda: lazy.reader.open_file(self._store, commit, path)
        )
        if counted:
            queries.note(self._store, [commit])
        return file

    def attachment(self, rev: Rev, name: str) -> Any:
        """An attachment of a version: bytes, or a state.

        Raises DamagedData, and UnknownPath if the version has no attachment of this name.
        """
        commit = self.find(rev)
        return with_states(
            self._store, self._config, lambda: lazy.attached.read(self._store, commit, name)
        )

    def providing(self, rev: Rev, path: str, file: StateFile) -> AbstractContextManager[None]:
        """A ``with`` block in which mvc reads a file of a version from ``file``, not from storage.

        ``path``: the path of the file in the version. Raises DamagedData if the tensors of ``file``
        are not those of the version.
        """
        return lazy.weights.providing(self._store, self.find(rev), path, file)

    def availability(self, rev: Rev = "HEAD") -> Availability:
        """Whether a version's state is stored here, is absent, forgotten, or dropped."""
        state = availability.resolve(self._store, self.find(rev))
        return (
            replace(state, hint=fetch_hint(self._store, state.commit))
            if isinstance(state, Gone)
            else state
        )

    def iter_versions(
        self,
        since: Time | None = None,
        until: Time | None = None,
        target: str | None = None,
        *,
        rev: Rev = "HEAD",
        path: str | None = None,
        keys: Collection[str] | None = None,
        on_error: str = "raise",
    ) -> Iterator[tuple[Version, Any]]:
        """Yields versions and their states, oldest first. Each state is decoded only once.

        With ``target``, yields ``(Deployed, state)`` for each deployment on the target, sorted by
        deployment time. Otherwise yields ``(Commit, state)`` for ``rev`` and its ancestors, sorted
        by commit time. ``since`` and ``until`` are inclusive. ``path``: as for ``checkout``.
        ``keys``: decode only these tensors, into a flat dictionary. ``on_error``: if a version is
        forgotten, damaged or incomplete, ``"raise"`` the error, ``"skip"`` the version, or
        ``"yield"`` the error in place of the state. While the caller uses a state, a thread decodes
        the next state.
        """
        pairs = lazy.versions.iter_versions(
            self._store,
            since=self._moment(since),
            until=self._moment(until),
            target=target,
            rev=rev,
            path=path,
            keys=keys,
            on_error=on_error,
            absent=partial(fetch_absent, self._store, self._config),
        )
        return queries.counted(self._store, pairs)

    # -- queries ----------------------------------------------------------------------------

    def time(self, value: Time | None = None) -> int:
        """A moment in nanoseconds since 1970; default: now."""
        now = self._store.clock.now_ns()
        return now if value is None else moment_of(value, now_ns=now)

    def _moment(self, value: Time | None) -> int | None:
        return None if value is None else self.time(value)

    def log(
        self,
        rev: Rev = "HEAD",
        options: LogOptions | None = None,
        *,
        limit: int | None = None,
        incomplete: list[DamagedData] | None = None,
        progress: Progress | None = None,
    ) -> Log:
        """A version and its ancestors as a lazy sequence, sorted by commit time, newest first.

        ``rev`` may be ``A..B``, as in git. ``limit``: the largest number of versions. This call
        raises UnknownRevision, UnknownTarget and WrongUsage. Iteration raises DamagedData if an
        entry of the operation log is lost. With ``incomplete``, the error is appended to this list
        instead, and the iteration continues. ``progress``: is called while the storage costs of the
        versions (``LogOptions.prices``) are computed.
        """
        chosen = options or lazy.log.LogOptions()
        storage = self.storage.by_version(progress=progress)[1] if chosen.prices else None
        return lazy.log.log(
            self._store, rev, chosen, limit=limit, incomplete=incomplete, storage=storage
        )

    def history(self, since: Time | None = None, until: Time | None = None) -> History:
        """All versions, their refs, and the deployments from ``since`` to ``until``.

        Raises DamagedData if entries of the journal are lost.
        """
        return lazy.overview.history(self._store, self._moment(since), self._moment(until))

    def status(self) -> Status:
        """Changes of tracked files since HEAD."""
        return lazy.status.status(self._store)

    def diff(
        self,
        a: Rev | None = None,
        b: Rev | None = None,
        paths: Sequence[str] = (),
        *,
        progress: Progress | None = None,
    ) -> Diff:
        """Compares two versions, or a version and files on disk, tensor by tensor."""
        return with_states(
            self._store,
            self._config,
            lambda: lazy.diff.diff(self._store, a, b, paths, progress=progress),
        )

    def identify(
        self, file: PathName | FileEntry, *, progress: Progress | None = None
    ) -> list[Identified]:
        """The versions that introduced the state of this file, newest first. Compares only hashes.

        A version that has the file unchanged from its parent is not listed.
        """
        source = Path(file) if isinstance(file, str | PathLike) else file
        return lazy.identify.identify(self._store, source, progress)

    def nearest(self, path: PathName, *, progress: Progress | None = None) -> Nearest | None:
        """The version that is most similar to a file. None if no version is similar.

        The most similar version has the most tensors that equal tensors of the file. If several
        versions have equally many, the distances of values decide. The search ends after a few
        seconds. If the search was not finished by then, ``complete`` is False.
        """
        return lazy.nearest.nearest(self._store, Path(path), progress)

    def tracked_name(self, path: PathName, *, cwd: Path | None = None) -> str:
        """The path under which a file on disk is tracked. The folder ``root`` has an empty path.

        Raises InvalidName if the file is outside the repository.
        """
        fs = self._store.fs
        return lazy.worktree.tracked_name(self.root, Path(path), cwd or fs.cwd(), fs=fs)

    # -- deployments, refs, paths --------------------------------------------------------------

    def deploy(
        self,
        rev: Rev,
        target: str,
        *,
        at: Time | None = None,
        reason: Reason = "",
        sign: bool | None = None,
        anyway: bool = False,
        push: str | bool = False,
    ) -> Deployed:
        """Records that a version went live on a target, now or at the moment ``at``.

        ``sign``: sign with your SSH key (default: the settings). ``anyway``: deploy even if
        ``deploy.protect`` protects the target, or if a file of the model is missing or cannot be
        parsed. ``push``: first send the deployment to this remote (True: to the default remote). If
        the remote refuses the deployment, nothing is recorded here. Raises CannotSign,
        TargetProtected, BadModelFile. Raises RefConflict if the remote has a deployment that this
        repository has not fetched.
        """
        announce, moment = announcing(self._store, target), self._moment(at)
        deployed = with_states(self._store, self._config, lambda: lazy.record.deploy(
            self._store, self._config, self.find(rev), target, time_ns=moment, reason=reason,
            sign=sign, anyway=anyway, against=lazy.unsent.against(self._store, target),
            send=self._sending(push),
        ))  # fmt: skip
        return live.warned_if_older(self._store, announce("deploy", deployed))

    def _sending(self, push: str | bool) -> Send | None:
        if not push:
            return None
        return lazy.push.send_first(
            self._store, self._config, self.remotes.find(None if push is True else push)
        )

    def rollback(
        self,
        target: str,
        to: Rev | None = None,
        *,
        steps: int = 1,
        reason: Reason = "",
        sign: bool | None = None,
        anyway: bool = False,
        push: str | bool = False,
        remote: str | None = None,
    ) -> RolledBack:
        """Deploys the version that was live before on a target. A second call goes back further.

        ``steps``: how many versions to go back. ``to``: deploy this version instead, which must
        have been live on the target. ``sign``, ``anyway``, ``push``: as for ``deploy``. ``remote``:
        fetch the deployments of this remote first, and send the rollback to this remote. Raises
        UnknownTarget, UnknownRevision, StateForgotten; NoDeployment if no earlier version was live.
        """
        announce = announcing(self._store, target)
        if remote is not None:
            self.fetch(remote)
            difference = lazy.unsent.apart_from(self._store, self.remotes.find(remote), target)
        else:
            difference = lazy.unsent.against(self._store, target)
        chosen = None if to is None else self.find(to)
        deployed = with_states(self._store, self._config, lambda: lazy.rollback.rollback(
            self._store, self._config, target, steps=steps, to=chosen, reason=reason, sign=sign,
            anyway=anyway, against=difference,
            send=self._sending(push if remote is None else remote),
        ))  # fmt: skip
        announce("rollback", deployed)
        return deployed

    def retract(
        self,
        rev: Rev | None,
        target: str,
        *,
        at: Time | None = None,
        reason: Reason = "",
        sign: bool | None = None,
        anyway: bool = False,
        push: str | bool = False,
    ) -> Deployed:
        """Records that a deployment did not happen. The deployment stays in the history.

        ``rev``: the deployed version; None means the newest deployment on ``target``. ``at``: when
        the deployment went live, if ``rev`` was deployed several times. ``sign``, ``anyway``,
        ``push``: as for ``deploy``.
        """
        announce, moment = announcing(self._store, target), self._moment(at)
        chosen = None if rev is None else self.find(rev)
        retracted = lazy.record.retract(
            self._store, self._config, chosen, target, time_ns=moment, reason=reason, sign=sign,
            anyway=anyway, against=lazy.unsent.against(self._store, target),
            send=self._sending(push),
        )  # fmt: skip
        return announce("retract", retracted)

    @overload
    def verify(
        self,
        of: str | None = None,
        *,
        since: Time | None = None,
        progress: Progress | None = None,
    ) -> tuple[Vouched, ...]: ...
    @overload
    def verify(self, of: CommitId | Deployed) -> Checked: ...
    def verify(
        self,
        of: str | CommitId | Deployed | None = None,
        *,
        since: Time | None = None,
        progress: Progress | None = None,
    ) -> tuple[Vouched, ...] | Checked:
        """Checks the signatures of all deployments. ``problems`` of a result lists what failed.

        ``of``: check only the deployments on this target, only this deployment, or only the version
        with this id. ``since``: check only deployments that were recorded or went live at this
        moment or later. Raises UnknownTarget, NotInstalled; InvalidConfig if the settings name no
        allowed signers.
        """
        if isinstance(of, Deployed):
            return lazy.signatures.of_deployment(self._store, of)
        if isinstance(of, CommitId):
            return lazy.signatures.of_version(self._store, of)
        return lazy.signatures.verify(self._store, of, since=self._moment(since), progress=progress)

    @overload
    def live(self, target: None = None, *, at: Time | None = None) -> tuple[Live, ...]: ...
    @overload
    def live(self, target: str, *, at: Time | None = None) -> Live: ...
    def live(self, target: str | None = None, *, at: Time | None = None) -> Live | tuple[Live, ...]:
        """The version that was live on a target at a moment (default: now).

        Without ``target``, returns a tuple with the live version of each target. Raises
        UnknownTarget; NoDeployment if no version was live.
        """
        if target is None:
            return live.all_live(self._store, self._moment(at))
        if not isinstance(target, str):
            raise WrongUsage("a target is a text", hint="the moment is at=...")
        return live.live(self._store, target, self._moment(at))

    def live_between(self, since: Time, until: Time, target: str | None = None) -> tuple[Live, ...]:
        """All versions that were live on a target at any time from ``since`` to ``until``.

        Both ends are inclusive. Without ``target``, the versions of all targets. The result is
        sorted by target, then by time. Raises UnknownTarget; WrongUsage if ``until`` is before
        ``since``.
        """
        return live.live_between(self._store.fresh(), self.time(since), self.time(until), target)

    def deployments(
        self,
        target: str | None = None,
        *,
        rev: Rev | None = None,
        incomplete: list[DamagedData] | None = None,
    ) -> list[Deployed]:
        """All deployments, including retracted ones.

        ``target``, ``rev``: only deployments on this target, or of this version. Raises DamagedData
        if lost journal entries may contain deployments. With ``incomplete``, the error is appended
        to this list instead, and the readable deployments are returned.
        """
        if rev is not None:
            every = live.of_commit(self._store.fresh(), self.find(rev), incomplete)
            return [deployed for deployed in every if target in {None, deployed.target}]
        return live.list_deployments(self._store.fresh(), target, incomplete=incomplete)

    def annotate(
        self,
        rev: Rev,
        *,
        metrics: Mapping[str, Any] | None = None,
        params: Mapping[str, Any] | None = None,
        note: str = "",
    ) -> Annotation:
        """Adds metrics, params or a note to an existing version, whose id does not change.

        ``metrics``, ``params``: as for ``commit``. If a name has several values, the newest value
        counts. ``undo`` retracts the annotation. Raises UnknownRevision, InvalidName, WrongUsage.
        """
        values = {"metrics": metrics or {}, "params": params or {}}
        return annotate(self._store, self._config, self.find(rev), **values, note=note)

    def annotations(self, rev: Rev = "HEAD") -> tuple[Annotation, ...]:
        """A version's annotations, oldest first. Undone annotations are omitted."""
        return Annotations(self._store.fresh()).of(self.find(rev))

    def targets(self) -> list[str]:
        """All deployment targets, sorted. Targets of node reports (``mvc.nodes``) are omitted."""
        return self._store.fresh().targets()

    def head(self, branch: str | None = None, *, if_known: bool = False) -> Head:
        """The current branch and its commit.

        The branch is None if HEAD is detached. The commit is None if the branch has no version yet.
        ``branch``: return this branch instead of the current one. Raises UnknownRevision if
        ``branch`` does not exist. Raises DamagedData if the journal entry that moved HEAD is lost.
        With ``if_known``, returns None for branch and commit instead of raising DamagedData.
        """
        if if_known:
            return lookup_refs.head_if_known(self._store.fresh())
        return lookup_refs.tip(self._store.fresh(), branch)

    def recording(
        self,
        branch: str | None = None,
        *,
        target: str | None = None,
        alone: bool = False,
        new_branch: bool = False,
    ) -> RecordingNotice:
        """A ``with`` block in which a training records versions on a branch.

        ``branch``: by default the current branch. Other trainings cannot record on the branch, and
        other processes see that a training records. Commits with the result of this method as
        ``CommitOptions.recording`` are deployed to ``target``, until another user deploys to
        ``target`` or protects ``target``. ``alone``: no other training can deploy to ``target``.
        ``new_branch``: the branch need not exist. Raises UnknownRevision, TargetProtected; Busy if
        another training records on the branch, or deploys to ``target`` and one of the two is
        ``alone``.
        """
        at = lookup_refs.tip(self._store.fresh(), branch, new=new_branch)
        return lazy.protection.RecordingNotice(
            self._store, self._config, at.branch, target, alone=alone
        )

    def recorder(self, branch: str | None = None, *, target: str | None = None) -> str | None:
        """The process on this machine whose training records on ``branch`` now, or None.

        If ``branch`` is None, the training records on a detached HEAD. With ``target``, the process
        whose training deploys to ``target``.
        """
        return recording.recorder(self._store, branch, target)

    def refs(self, kind: RefKind = "branch", *, remote: str = "") -> list[Ref]:
        """All branches or tags with their versions, sorted by name.

        With kind ``remote``, all tracking refs of ``remote``, or of all remotes, as
        ``REMOTE/NAME``.
        """
        return lookup_refs.of_kind(self._store.fresh(), kind, remote)

    def branch(self, name: str, rev: Rev = "HEAD", *, force: bool = False) -> Ref:
        """Creates a branch at a version."""
        return refs.create_branch(self._store, name, rev, force=force)

    def tag(self, name: str, rev: Rev = "HEAD", *, force: bool = False) -> Ref:
        """Creates a tag at a version."""
        return refs.create_tag(self._store, name, rev, force=force)

    def rename_branch(self, old: str, new: str, *, force: bool = False) -> None:
        """Renames a branch, even the current one. ``force``: replace an existing branch."""
        refs.rename_branch(self._store, old, new, force)

    def advance(
        self,
        moves: Mapping[str | None, tuple[CommitId | None, CommitId]],
        operation: str,
        *,
        first: str | None = None,
    ) -> None:
        """Moves branches in one operation, each from one version to another.

        ``moves`` maps the name of a branch to its old and its new version. The name None means a
        detached HEAD. The old version of a new branch is None. ``first``: this branch becomes the
        current branch if HEAD has no version. Raises RefConflict if a branch is no longer at its
        old version, or a tag has the name of a new branch; InvalidName; UnknownRevision. If an
        error is raised, no branch moves.
        """
        refs.advance(self._store, moves, operation, first=first)

    def delete_ref(self, kind: Literal["branch", "tag"], name: str, *, force: bool = False) -> Ref:
        """Deletes a branch or tag. ``gc`` later deletes versions that no ref reaches.

        Without ``force``, refuses to delete a branch if no other ref reaches the newest version of
        the branch.
        """
        if kind == "branch":
            return refs.delete_branch(self._store, name, force)
        return refs.delete_tag(self._store, name)

    def merge(
        self,
        rev: Rev,
        *,
        strategy: str | Sequence[str] = (),
        scale: float = 1.0,
        progress: Progress | None = None,
    ) -> Merged:
        """Merges a version into the current branch, by tensor, relative to the common ancestor.

        A tensor that changed on both sides is a conflict. ``strategy`` resolves conflicts:
        ``mean``, ``ours``, ``theirs``, or ``sum`` (base plus ``scale`` times the changes of both
        sides). ``PATTERN=STRATEGY`` applies to tensors whose name or ``PATH:NAME`` matches, and to
        files whose path matches. If several patterns match, the last one counts. If conflicts
        remain, nothing is stored, and the result lists the conflicts.

        Raises WouldOverwrite if there is uncommitted work; RefConflict if there is no common
        ancestor or a training records on the branch; WrongUsage, UnknownRevision, StateForgotten.
        """
        rules = lazy.plan.Strategy(
            (strategy,) if isinstance(strategy, str) else tuple(strategy), scale
        )
        act = partial(
            lazy.merge.merge, self._store, self._config, self._recent, rev=rev, strategy=rules
        )
        return with_states(self._store, self._config, partial(act, progress=progress))

    # -- other repositories --------------------------------------------------------------------

    def fetch(
        self,
        remote: str | None = None,
        versions: Sequence[Rev] = (),
        *,
        states: str | None = None,
        prune: bool = False,
        nodes: bool = False,
        progress: Progress | None = None,
    ) -> Transferred:
        """Fetches a remote's versions, deployments and refs.

        ``remote``: by default ``origin``, or the only remote. ``versions``: fetch only the model
        files of these versions, whose commits are already here. ``states``: the versions whose
        model files are fetched (``all``, ``none``, ``live``, ``last:N``). ``prune``: delete the
        tracking refs of branches that the remote has deleted. ``nodes``: fetch node reports, too.
        The settings of the remote contain the defaults of ``states`` and ``nodes``.

        Raises StateForgotten if the remote lacks a state; UnknownRevision if there is no such
        remote; RemoteUnreachable; RemoteRefused; HistoryMissing if the remote was replaced by
        another repository or by an older copy.
        """
        source = self.remotes.find(remote)
        if versions:
            if states is not None or prune or nodes:
                raise WrongUsage(
                    "a fetch of named versions does not combine with states, prune and nodes"
                )
            wanted = [self.find(rev) for rev in versions]
            return lazy.fetch.fetch_states(
                self._store, self._config, source, wanted, progress=progress
            )
        return lazy.fetch.fetch(
            self._store,
            self._config,
            source,
            states=states,
            prune=prune,
            nodes=nodes,
            progress=progress,
        )

    def pull(self, remote: str | None = None, *, progress: Progress | None = None) -> Pulled:
        """Fetches from a remote, then fast-forwards the current branch and its files.

        Raises RefConflict if the branch has diverged or a training records on the branch;
        WouldOverwrite if there is uncommitted work.
        """
        return lazy.pull.pull(
            self._store, self._config, self.remotes.find(remote), progress=progress
        )

    def push(
        self,
        remote: str | None = None,
        refs: Sequence[str] = (),
        *,
        every: bool = False,
        force: bool = False,
        delete: Sequence[str] = (),
        states: Sequence[Rev] = (),
        partial: bool = False,
        dry_run: bool = False,
        progress: Progress | None = None,
    ) -> Pushed:
        """Sends branches and tags with their versions. By default, sends the current branch.

        Tags, data sets, deployments and annotations of these versions are sent, too. In the remote,
        either all refs move or no ref moves. ``every``: send all branches and tags. ``force``: as
        ``git push --force-with-lease``. ``delete``: refs to delete in the remote. ``states``: send
        only the model files of these versions. ``partial``: send a version even if neither
        repository has its model files. ``dry_run``: send nothing. Raises RefConflict if a ref
        cannot be fast-forwarded or has moved in the remote; UnknownRevision, StateForgotten,
        WeightsDropped, RemoteUnreachable, RemoteRefused.
        """
        destination = self.remotes.find(remote)
        if states:
            if refs or every or force or delete or partial or dry_run:
                raise WrongUsage(
                    "a push of the states of named versions does not combine with other options"
                )
            ids = [self.find(rev) for rev in states]
            return lazy.push.push_states(
                self._store, self._config, destination, ids, progress=progress
            )
        chosen = lazy.refs.PushOptions(
            every=every, force=force, delete=tuple(delete), dry_run=dry_run, partial=partial
        )
        return lazy.push.push(
            self._store, self._config, destination, refs, options=chosen, progress=progress
        )

    # -- operations ----------------------------------------------------------------------------

    def operations(self, limit: int | None = None) -> Iterator[Operation]:
        """The operations on this repository, newest first, such as commits and merges."""
        return lazy.oplog.oplog(self._store, limit)

    def undo(
        self, number: int | None = None, *, dry_run: bool = False, reason: Reason = ""
    ) -> Undoing:
        """Reverts the newest operation, or the operation ``number``. Deployments stay unchanged."""
        return (lazy.undo.plan if dry_run else lazy.undo.undo)(
            self._store, self._config, number, reason=reason
        )
