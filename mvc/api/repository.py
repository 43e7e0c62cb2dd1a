"""The public entry: a repository of model versions.

Opens and wires; every verb is a function in a module of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, suppress
from functools import cached_property, partial
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Literal, Self, TypeAlias, overload

from msgspec.structs import replace

from mvc.api.absent import fetch_absent, way_to, with_states
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
    """An open repository; close it, or use it as a context manager.

    Safe across threads and after a fork. Raises subclasses of ``mvc.MvcError``. ``storage`` has
    maintenance, ``recipes`` how versions were trained.
    """

    def __init__(self, handle: Handle) -> None:
        if not isinstance(handle, Handle):
            raise WrongUsage(
                "a repository is not opened by its constructor",
                hint="mvc.Repository.open(PATH) opens one, mvc.Repository.init(PATH) makes one",
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
        """Makes an empty repository in a folder, which is created if need be, and opens it.

        ``bare``: without working files, for others to push to. ``shared``: all that is ever made
        in ``.mvc`` may be written by its ``group``, and with ``all`` read by everyone, whatever
        the umask.
        ``config`` as for ``open``; it is given None, because there is no file yet.
        Raises AlreadyARepository, DubiousOwnership, InvalidName, InvalidConfig.
        """
        from mvc.io.replacement import removing_if_failed

        files, time = fs or FileSystem(), clock or Clock()
        root = files.realpath(Path(path))
        settings = config(None) if config else load_config(files, None, None, {}, flags={})
        name = branch or str(settings.get("init.branch"))
        check_ref("branch", name)
        check_absent(files, root)
        with removing_if_failed(files) as made:
            files.make_dirs(root, made=made)
            if root in made and shared is not None:
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
        """Opens the repository of a folder, or with ``discover`` of the nearest one above it.

        Of an open repository this is another handle, with the same settings.
        ``config`` makes the configuration from the path of the repository's own file.
        Raises NotARepository, DubiousOwnership, UnsupportedFormat, DamagedData, InvalidConfig.
        """
        if isinstance(path, Repository):
            of, discover = path.handle, False
            path, config, fs, clock = (
                of.store.root,
                lambda _: of.config,
                of.store.fs,
                of.store.clock,
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
        """Opens the repository of a folder, or makes an empty one there if there is none.

        Arguments as for ``init``; ``branch`` only names the first branch of a new repository.
        Raises UnsupportedFormat, DamagedData, InvalidName, InvalidConfig.
        """
        with suppress(NotARepository):
            return cls.open(path, discover=False, config=config, fs=fs, clock=clock)
        with suppress(AlreadyARepository):  # another process has made it since
            return cls.init(path, branch=branch, config=config, fs=fs, clock=clock)
        return cls.open(path, discover=False, config=config, fs=fs, clock=clock)

    @property
    def closed(self) -> bool:
        """Whether it was closed; what is asked of it then raises WrongUsage."""
        return self._store.closed

    @property
    def root(self) -> Path:
        """The folder that holds ``.mvc``."""
        return self._store.root

    @property
    def config(self) -> Config:
        """The settings in force, with the origin of each."""
        return self._config

    @property
    def interrupted(self) -> Interrupted:
        """What became of checkouts whose process was killed, once this repository was opened."""
        return self.handle.interrupted

    @cached_property
    def storage(self) -> Storage:
        """Figures, check, repair, gc, forget, repack."""
        from mvc.api.storage import Storage

        return Storage(self.handle)

    @cached_property
    def remotes(self) -> Remotes[Self]:
        """The repositories that this one pushes to and fetches from."""
        from mvc.api.remotes import Remotes

        return Remotes(self.handle, type(self))

    @property
    def gaps(self) -> Sequence[Gap]:
        """Entries of the journal that are lost; refs, history and deployments may lack them."""
        return self._store.snapshot.gaps

    def close(self) -> None:
        """Lets go of files and memory. Everything acknowledged is durable already."""
        with ExitStack() as after:
            after.callback(self._store.close)
            after.callback(self._recent.caches.clear)
            for act in self._closing:  # may commit
                after.callback(act)
            self._closing = {}

    def scratch(self, name: str) -> Scratch:
        """``.mvc/NAME``, a folder for work that is no version yet, such as uploads and parts."""
        from mvc.repo.scratch import scratch

        return scratch(self._store, name)

    def before_close(self, act: Callable[[], object]) -> Callable[[], None]:
        """Has ``close`` call ``act`` first, so that what still writes can end.

        What is returned takes that back.
        """
        self._closing[act] = None
        return partial(self._closing.pop, act, None)

    def __repr__(self) -> str:
        state = " (closed)" if self.closed else ""
        return f"<mvc repository {printable(str(self.root))}{state}>"

    # -- keeping versions ----------------------------------------------------------------

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
        """Keeps a version; when it returns, no crash loses it.

        ``state`` is a mapping of tensors (torch or numpy, any nesting), kept under ``path``, or
        paths of files and folders; a folder means its content, and what is gone from it leaves the
        version. A ``path`` that ends in ``/`` is a folder with one model: tensors by name go to its
        shards as its index says, and its other files stay. ``states`` are further mappings of the
        same version by their paths, a ``Path`` for the file that is there, None for one that
        leaves; they may also stand alone. Instead of a mapping there may be a
        ``mvc.state.StateFile``, which is stored as it is, or a ``FileEntry`` of a manifest, whose
        content is stored already; ``state`` with such values is one of files by path. ``metrics``
        are numbers; ``params`` are texts or plain data (hyper-parameters, the name of a data set),
        kept as texts. ``attachments`` are what the version carries beside its files, by name, such
        as what ``mvc.describe_model`` returns. ``deploy`` names the target on which the version
        goes live. ``pipeline`` is text, or Requirements, whose ``max_recovery`` then bounds the
        recovery of this version. ``files`` says how paths are read, ``options`` has the rarer
        arguments. A mapping is committed even if nothing changed.

        A lossy ``pipeline`` reduces the state at ``path``, or the files, against what the branch
        holds; these production weights are stored, and are the result's ``state``. All other
        ``states`` stay exact. A stage that goes by the loss takes it from ``metrics``. A pipeline
        such as ``lc`` stores an approximation of that state, which is the result's ``state``
        (docs/lc.md); files that were read stay as they are. Without
        ``pipeline`` everything is stored as given, coded as the setting ``commit.pipeline`` says,
        and approximated only if that is ``lc`` or its kind.

        Raises WrongUsage, InvalidName, InvalidTime, InvalidPipeline, UnsupportedTensor,
        CannotRecord and BadModelFile for what cannot be committed, NothingToCommit,
        SourceChanged if a file or tensor changed meanwhile, StateForgotten, Busy.
        """
        from mvc.pipelines.requirements import pipeline_and_bound
        from mvc.repo.commit.commit import commit
        from mvc.repo.commit.request import CommitOptions, CommitRequest, with_files

        chosen = options or CommitOptions()
        text, bound = pipeline_and_bound(pipeline)
        request = CommitRequest(
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
        request = with_files(request, state, states, files)
        self._sending(chosen.push)  # refuses a remote that there is not
        announce = announcing(self._store, None if chosen.detached else request.target)
        act = partial(commit, self._store, self._config, self._recent, request=request)
        done = with_states(self._store, self._config, act)
        if done.deployment is not None:
            announce("deploy", done.deployment)
        return done if not chosen.push or deploy is None else self._deployed(done, deploy, chosen)

    def _deployed(self, done: CommitResult, target: str, options: CommitOptions) -> CommitResult:
        try:
            made = self.deploy(  # the target and the files were checked before the commit
                done.id, target, at=options.at, sign=options.sign, anyway=True, push=options.push
            )
        except MvcError as error:
            raise type(error)(
                f"{done.id.short} is committed, its deployment to {target} is not: {error.message}",
                hint=error.hint,
            ) from error
        return replace(done, deployment=made)

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
        """Commits the weighted mean of versions, or with ``to`` writes it to a file or folder.

        Each float is the sum of weight times value, in float64 and in the order of ``revs``, and
        rounded once to its dtype, to nearest even; docs/guides/merging.md has the formula. The
        weights are divided by their sum; they are equal by default, and those of an exponential
        moving average are ``mvc.api.ema_weights``. Tensors must have the same names, dtypes and
        shapes; integers and files without tensors are those of the last version. All of them are
        parents of the new version, and its params have their ids and weights. ``branch`` gets it,
        and is made if there is none; without it the current one, with the files in the working
        folder, which must hold no changes. ``force`` overwrites files at ``to``.

        Raises WrongUsage for versions without a mean, WouldOverwrite, and as ``commit``.
        """
        from mvc.repo.average import average

        if to is not None and (branch or deploy or to == "-"):
            raise WrongUsage(
                "an average is written to a file or folder, not to stdout"
                if to == "-"
                else "to= writes files: nothing is committed or deployed"
            )
        ids = [self.find(rev) for rev in revs]
        message = message or f"average of {len(ids)} versions"
        commit = partial(self.commit, message=message, deploy=deploy)
        act = partial(average, self._store, ids, weights, commit=commit, branch=branch, to=to)
        return with_states(self._store, self._config, partial(act, force=force, progress=progress))

    # -- getting versions back -------------------------------------------------------------

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
        """A version's state in memory, or with ``to`` its files; both verified.

        By revision (default HEAD), or as it was live on ``target`` at the moment ``at``.
        ``path`` is a file of the version, or a folder with one model, whose shards are one state.
        Values are torch tensors where torch tensors went in, and numpy arrays else and where torch
        is not installed.

        ``to`` is a file if its name has a suffix, else, or if it is a text that ends in ``/``, a
        folder; what is there already stays what it is. An open binary stream takes one file. If it
        is ``root``, HEAD moves to the version, unless ``path`` names files or folders. ``path`` may
        be a list. All files are written and verified under temporary names before the first is
        renamed. A training state beside its model is left out unless ``path`` or ``everything``
        ask for it. ``force`` overwrites and deletes files that hold uncommitted work or stand at
        ``to``. ``atomic_dir`` writes a new folder and makes the symbolic link ``to`` lead to it in
        one step. ``delete`` removes from the folder ``to`` the files that the version lacks.
        ``delta_from`` makes a new folder with what changed since that version, as inference engines
        exchange it.

        Raises UnknownRevision, UnknownPath, WouldOverwrite, WrongUsage, DamagedData, StorageFull,
        and Busy if another checkout into the same place takes longer than a minute.
        """
        from mvc.repo.checkout.export import WriteOptions

        commit_id = self.find(rev, at=at, target=target)
        options = WriteOptions(
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
        elif options != WriteOptions():
            raise WrongUsage(
                "force, everything, atomic_dir, delete, delta_from and progress are for files",
                hint="say where they go with to=",
            )
        elif not isinstance(path, str | None):
            raise WrongUsage("a state has one path", hint="name one file, or one folder of shards")
        else:
            from mvc.repo.checkout import states

            act = partial(states.load_state, self._store, commit_id, path)
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
        from mvc.repo.checkout import checkout
        from mvc.repo.checkout.export import WriteOptions, export, export_to

        paths = (path,) if isinstance(path, str) else (path or ())
        force, progress = options.force, options.progress
        if to == "":
            raise WrongUsage("to is empty", hint="name a file or a folder; . is this one")
        if not isinstance(to, str | PathLike):
            return export_to(self._store, commit, paths, to, options=options)
        if self._store.fs.realpath(Path(to)) != self.root:
            return export(self._store, commit, paths, to, options=options)
        if options != WriteOptions(force=force, progress=progress):
            raise WrongUsage(
                "everything, atomic_dir, delete and delta_from are for another folder than the "
                "repository's"
            )
        if paths:
            return checkout.restore(self._store, commit, paths, force=force, progress=progress)
        _, branch = revisions.resolve_ref(self._store, rev) if isinstance(rev, str) else ("", None)
        to_ = commit if branch is None else branch
        return checkout.restore_all(self._store, commit, to_, force=force, progress=progress)

    def switch(
        self,
        branch: str,
        *,
        create: bool = False,
        start: Rev | None = None,
        force: bool = False,
        progress: Progress | None = None,
    ) -> Restored | None:
        """Makes a branch the current one and writes its files."""
        from mvc.repo.checkout import checkout

        done = with_states(self._store, self._config, lambda: checkout.switch(
            self._store, branch, create=create, start=start, force=force, progress=progress
        ))  # fmt: skip
        queries.note(self._store, [] if done is None else [done.commit])
        return done

    # -- finding versions --------------------------------------------------------------------

    def find(
        self, rev: Rev | None = None, *, at: Time | None = None, target: str | None = None
    ) -> CommitId:
        """The commit of a revision, or the one that was live."""
        if at is not None or target is not None:
            if rev is not None:
                raise WrongUsage("name a revision or a moment, not both")
            return live.live_at(self._store, self._moment(at), target).commit
        return revisions.resolve(self._store, "HEAD" if rev is None else rev)

    def version(self, rev: Rev = "HEAD") -> Commit:
        """A version's commit: author, time, message, metrics, params, parents, Merkle root."""
        return commits.get(self._store.snapshot, self.find(rev))

    def manifest(self, rev: Rev = "HEAD") -> Manifest:
        """The paths of a version with their tensors."""
        load = partial(manifests.of_commit, self._store, self.find(rev))
        return with_states(self._store, self._config, load)

    def open_file(self, rev: Rev, path: str, *, counted: bool = True) -> VersionFile:
        """A file of a version, open to read as a binary file; ``tensors`` gives some by key.

        ``counted``: whether the version counts as asked for (``storage.queries``).
        Raises UnknownPath, StateForgotten, WeightsDropped; reading raises DamagedData.
        """
        from mvc.repo.checkout.reader import open_file

        commit = self.find(rev)
        file = with_states(self._store, self._config, lambda: open_file(self._store, commit, path))
        if counted:
            queries.note(self._store, [commit])
        return file

    def attachment(self, rev: Rev, name: str) -> Any:
        """What a version carries beside its files under a name: bytes, or a state.

        Raises UnknownPath if it carries nothing of this name, DamagedData.
        """
        from mvc.repo import attached

        commit = self.find(rev)
        return with_states(
            self._store, self._config, lambda: attached.read(self._store, commit, name)
        )

    def providing(self, rev: Rev, path: str, file: StateFile) -> AbstractContextManager[None]:
        """While the block runs, the file at ``path`` of a version is read from ``file``.

        Raises DamagedData if that has another state.
        """
        from mvc.maintenance.weights import providing

        return providing(self._store, self.find(rev), path, file)

    def availability(self, rev: Rev = "HEAD") -> Availability:
        """Whether the state of a version is here, was dropped for a recipe, or is gone."""
        found = availability.resolve(self._store, self.find(rev))
        return (
            replace(found, way=way_to(self._store, found.commit))
            if isinstance(found, Gone)
            else found
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
        """Versions and their states, oldest first; each is decoded once, from the one before.

        With ``target`` what went live there, as ``(Deployed, state)``, by the time of the
        deployment; without it ``rev`` and its ancestors, as ``(Commit, state)``, by commit time.
        Both bounds are included. ``path`` as for ``checkout``; with ``keys`` only these tensors
        are decoded, as a flat dictionary. A version that was forgotten, is damaged or lacks
        what was asked for raises its error; ``on_error="skip"`` passes it over, ``"yield"``
        gives the error in place of the state. While a state is looked at, the next is decoded.
        """
        from mvc.repo.checkout import versions

        found = versions.iter_versions(
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
        return queries.counted(self._store, found)

    # -- asking ------------------------------------------------------------------------------

    def time(self, value: Time | None = None) -> int:
        """Nanoseconds since 1970 of a moment given as such, as text or as a ``datetime``.

        Without one it is now.
        """
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
    ) -> Log:
        """A version and its ancestors by commit time, newest first, read as far as looked at.

        ``A..B`` means B and its ancestors without those of A. ``limit`` counts the first. Raises
        UnknownRevision, UnknownTarget and WrongUsage at once, and DamagedData where the history
        goes on with entries that are lost; with ``incomplete`` the error is appended there, and
        what is left follows.
        """
        from mvc.repo.history.log import LogOptions, log

        chosen = options or LogOptions()
        storage = self.storage.by_version()[1] if chosen.prices else None
        return log(self._store, rev, chosen, limit=limit, incomplete=incomplete, storage=storage)

    def history(self, since: Time | None = None, until: Time | None = None) -> History:
        """All versions, their names, and what was live from ``since`` to ``until``, read at once.

        Raises DamagedData if entries of the journal are lost.
        """
        from mvc.maintenance.overview import history

        return history(self._store, self._moment(since), self._moment(until))

    def status(self) -> Status:
        """Which tracked files differ from HEAD, and how."""
        from mvc.repo.worktree import status

        return status.status(self._store)

    def diff(
        self,
        a: Rev | None = None,
        b: Rev | None = None,
        paths: Sequence[str] = (),
        *,
        progress: Progress | None = None,
    ) -> Diff:
        """Compares two versions, or a version and files on disk, tensor by tensor."""
        from mvc.repo.diff import diff

        return with_states(
            self._store,
            self._config,
            lambda: diff.diff(self._store, a, b, paths, progress=progress),
        )

    def identify(self, file: PathName | FileEntry) -> list[Identified]:
        """Which versions have the state of this file, newest first; from hashes alone."""
        from mvc.repo.worktree import identify

        given = Path(file) if isinstance(file, str | PathLike) else file
        return identify.identify(self._store, given)

    def nearest(self, path: PathName) -> Nearest | None:
        """The version with most tensors of this file, for a file that no version has.

        Among versions with as many, the one whose values are closest. The work is bounded to a few
        seconds; ``complete`` says whether it sufficed. None if nothing is alike.
        """
        from mvc.repo.diff.nearest import nearest

        return nearest(self._store, Path(path))

    def tracked_name(self, path: PathName, *, cwd: Path | None = None) -> str:
        """The name under which a path of the disk is tracked; empty for the root itself.

        Raises InvalidName for a path outside of the repository.
        """
        from mvc.repo.worktree.worktree import tracked_name

        fs = self._store.fs
        return tracked_name(self.root, Path(path), cwd or fs.cwd(), fs=fs)

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
        """Records that a version went live on a target, now or at a given moment; who, and why.

        ``sign``: whether your SSH key signs it, by default as your settings say. Raises CannotSign.
        ``anyway``: also if the setting ``deploy.protect`` names the target, or if a model lacks a
        file or has one that ``opaque`` kept; else that raises TargetProtected or BadModelFile.
        ``push``: sends it to this remote, or the default one, first; nothing is recorded if the
        remote refuses it. Raises RefConflict if others deployed there meanwhile.
        """
        from mvc.remote.unsent import against
        from mvc.repo.statements import record

        announce, moment = announcing(self._store, target), self._moment(at)
        done = with_states(self._store, self._config, lambda: record.deploy(
            self._store, self._config, self.find(rev), target, time_ns=moment, reason=reason,
            sign=sign, anyway=anyway, against=against(self._store, target),
            send=self._sending(push),
        ))  # fmt: skip
        return announce("deploy", done)

    def _sending(self, push: str | bool) -> Send | None:
        if not push:
            return None
        from mvc.remote.push import send_first

        return send_first(
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
        """Deploys what was live on a target before: one step back, and the next time one further.

        ``to`` names the version instead, which must have been live there. Never goes to a version
        that the rollbacks directly before it have left, unless ``to`` names it. ``sign``,
        ``anyway`` and ``push`` are as for ``deploy``. ``remote``: goes by this remote's
        record, and sends the rollback there.
        Raises UnknownTarget, UnknownRevision, StateForgotten, and NoDeployment if there is
        nothing to go back to.
        """
        from mvc.remote.unsent import against, apart_from
        from mvc.repo.statements.rollback import rollback

        announce = announcing(self._store, target)
        if remote is not None:
            self.fetch(remote)
            there = apart_from(self._store, self.remotes.find(remote), target)
        else:
            there = against(self._store, target)
        chosen = None if to is None else self.find(to)
        done = with_states(self._store, self._config, lambda: rollback(
            self._store, self._config, target, steps=steps, to=chosen, reason=reason, sign=sign,
            anyway=anyway, against=there, send=self._sending(push if remote is None else remote),
        ))  # fmt: skip
        announce("rollback", done)
        return done

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
        """Records that a deployment did not happen; its first record stays.

        That of version ``rev``, or with None the newest on ``target``; ``at`` picks the one
        that is recorded for this moment. ``sign``, ``anyway`` and ``push`` are as for
        ``deploy``.
        """
        from mvc.remote.unsent import against
        from mvc.repo.statements import record

        announce, moment = announcing(self._store, target), self._moment(at)
        chosen = None if rev is None else self.find(rev)
        done = record.retract(
            self._store, self._config, chosen, target, time_ns=moment, reason=reason, sign=sign,
            anyway=anyway, against=against(self._store, target), send=self._sending(push),
        )  # fmt: skip
        return announce("retract", done)

    @overload
    def verify(
        self, of: str | None = None, *, since: Time | None = None
    ) -> tuple[Vouched, ...]: ...
    @overload
    def verify(self, of: CommitId | Deployed) -> Checked: ...
    def verify(
        self, of: str | CommitId | Deployed | None = None, *, since: Time | None = None
    ) -> tuple[Vouched, ...] | Checked:
        """Who vouches for each deployment on a target, or on any; ``problems`` where nobody does.

        Or who vouches for a version, given by its id, or for a deployment by itself. ``since``:
        only those recorded or gone live from that moment on. Raises UnknownTarget,
        NotInstalled, and InvalidConfig where your settings do not say whose signatures count.
        """
        from mvc.repo.statements import signatures

        if isinstance(of, Deployed):
            return signatures.of_deployment(self._store, of)
        if isinstance(of, CommitId):
            return signatures.of_version(self._store, of)
        return signatures.verify(self._store, of, since=self._moment(since))

    @overload
    def live(self, target: None = None, *, at: Time | None = None) -> tuple[Live, ...]: ...
    @overload
    def live(self, target: str, *, at: Time | None = None) -> Live: ...
    def live(self, target: str | None = None, *, at: Time | None = None) -> Live | tuple[Live, ...]:
        """What was live on a target at a moment, by default now: since when, and until when.

        Without ``target`` that of every target on which something was. ``until_ns`` is the first
        moment at which something else is live, as far as that is on record; None if nothing is.
        Raises UnknownTarget, and NoDeployment if nothing was live there.
        """
        if target is None:
            return live.all_live(self._store, self._moment(at))
        if not isinstance(target, str):
            raise WrongUsage("a target is a text", hint="the moment is at=...")
        return live.live(self._store, target, self._moment(at))

    def live_between(self, since: Time, until: Time, target: str | None = None) -> tuple[Live, ...]:
        """Everything that was live on a target, or on any, in an interval, oldest first.

        What was live at ``since`` already is the first. Both ends belong to the interval. Raises
        UnknownTarget, and WrongUsage if ``until`` is before ``since``.
        """
        return live.live_between(self._store.fresh(), self.time(since), self.time(until), target)

    def deployments(
        self,
        target: str | None = None,
        *,
        rev: Rev | None = None,
        incomplete: list[DamagedData] | None = None,
    ) -> list[Deployed]:
        """Every deployment, retracted ones included, of one target or all, of a version or all.

        Raises DamagedData where entries of the journal are lost that may have recorded more;
        with ``incomplete`` that is noted there, and what can be read is returned.
        """
        if rev is not None:
            found = live.of_commit(self._store.fresh(), self.find(rev), incomplete)
            return [each for each in found if target in {None, each.target}]
        return live.list_deployments(self._store.fresh(), target, incomplete=incomplete)

    def annotate(
        self,
        rev: Rev,
        *,
        metrics: Mapping[str, Any] | None = None,
        params: Mapping[str, Any] | None = None,
        note: str = "",
    ) -> Annotation:
        """Adds what was found out about a version later; its id stays, and ``undo`` takes it back.

        ``metrics`` and ``params`` are as for ``commit``; of several with one name the last counts.
        Raises UnknownRevision, InvalidName, WrongUsage.
        """
        given = {"metrics": metrics or {}, "params": params or {}}
        return annotate(self._store, self._config, self.find(rev), **given, note=note)

    def annotations(self, rev: Rev = "HEAD") -> tuple[Annotation, ...]:
        """What was found out about a version later, in order, without what was undone."""
        return Annotations(self._store.fresh()).of(self.find(rev))

    def targets(self) -> list[str]:
        """Every deployment target, by name; not those on which nodes report (``nodes``)."""
        return self._store.fresh().targets()

    def head(self, branch: str | None = None, *, if_known: bool = False) -> Head:
        """The current branch, None if HEAD is detached, and its commit, None before the first.

        ``branch``: of this one instead; raises UnknownRevision if it has no version and is not the
        current one. Raises DamagedData if the entry that moved HEAD is lost; with ``if_known`` both
        are None.
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
        """A block in which a training records on a branch (default: the current one).

        Others see that. Commits that name it (``CommitOptions.recording``) are deployed to
        ``target`` until somebody else deploys there or protects it; ``alone``: no other training
        may. The branch must have a version or be the current one, unless ``new_branch``. Raises
        UnknownRevision, TargetProtected, and Busy if another training is there.
        """
        from mvc.repo.statements.protection import RecordingNotice

        at = lookup_refs.tip(self._store.fresh(), branch, new=new_branch)
        return RecordingNotice(self._store, self._config, at.branch, target, alone=alone)

    def recorder(self, branch: str | None = None, *, target: str | None = None) -> str | None:
        """The process of a training on this machine; None without one.

        It records on ``branch`` now, or on a detached HEAD, or it deploys to ``target``.
        """
        return recording.recorder(self._store, branch, target)

    def refs(self, kind: RefKind = "branch", *, remote: str = "") -> list[Ref]:
        """All branches, or tags, with their versions, by name.

        Of the kind ``remote``: where the branches and tags of a remote, or of all, were at the last
        fetch or push, as ``REMOTE/NAME``.
        """
        return lookup_refs.of_kind(self._store.fresh(), kind, remote)

    def branch(self, name: str, rev: Rev = "HEAD", *, force: bool = False) -> Ref:
        """Makes a branch at a version."""
        return refs.create_branch(self._store, name, rev, force=force)

    def tag(self, name: str, rev: Rev = "HEAD", *, force: bool = False) -> Ref:
        """Names a version for ever."""
        return refs.create_tag(self._store, name, rev, force=force)

    def rename_branch(self, old: str, new: str, *, force: bool = False) -> None:
        """Renames a branch, HEAD with it; with ``force`` in place of another one."""
        refs.rename_branch(self._store, old, new, force)

    def advance(
        self,
        moves: Mapping[str | None, tuple[CommitId | None, CommitId]],
        operation: str,
        *,
        first: str | None = None,
    ) -> None:
        """Moves branches by one operation: each by its name, from one version to another.

        None names a detached HEAD; a new branch comes from None. ``first``: the branch that
        becomes the current one if HEAD has no version yet. Raises RefConflict if a branch is
        elsewhere by now, or a tag has its name, InvalidName, UnknownRevision: then none moves.
        """
        refs.advance(self._store, moves, operation, first=first)

    def delete_ref(self, kind: Literal["branch", "tag"], name: str, *, force: bool = False) -> Ref:
        """Deletes a branch or tag; its versions stay until ``gc``.

        A branch is refused where no other name leads to its tip, unless ``force``.
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
        """Merges a version into the current branch, tensor by tensor against the common ancestor.

        What both sides changed is a conflict, which a strategy settles: ``mean``, ``ours``,
        ``theirs``, or ``sum``, the base plus ``scale`` times both changes. ``PATTERN=STRATEGY`` is
        for tensors of such names, or ``PATH:NAME``, and for files; the last match counts. With
        conflicts that are left nothing is stored, and the result names them. Raises WouldOverwrite
        for work that is not committed, RefConflict for a version without a common ancestor, or if
        a training records on the branch, WrongUsage, UnknownRevision, StateForgotten.
        """
        from mvc.repo.merge.merge import merge
        from mvc.repo.merge.plan import Strategy

        how = Strategy((strategy,) if isinstance(strategy, str) else tuple(strategy), scale)
        act = partial(merge, self._store, self._config, self._recent, rev=rev, strategy=how)
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
        """Brings the versions that a remote has, and where its branches and tags are.

        By default from ``origin``, or the only remote. ``states``: whose states come along
        (``all``, ``none``, ``live``, ``last:N``), by default as the remote is set. ``prune``
        forgets branches that are gone there. ``nodes`` brings what nodes report there, by default
        as the remote is set. With ``versions`` only the states of these come, which are here
        without them. Raises StateForgotten for one that the remote lacks as well, UnknownRevision
        for an unknown remote, RemoteUnreachable, RemoteRefused, and HistoryMissing for one that was
        rewound or exchanged.
        """
        from mvc.remote.fetch import fetch, fetch_states

        found = self.remotes.find(remote)
        if versions:
            if states is not None or prune or nodes:
                raise WrongUsage("the states of some versions are fetched by themselves")
            wanted = [self.find(rev) for rev in versions]
            return fetch_states(self._store, self._config, found, wanted, progress=progress)
        return fetch(
            self._store,
            self._config,
            found,
            states=states,
            prune=prune,
            nodes=nodes,
            progress=progress,
        )

    def pull(self, remote: str | None = None, *, progress: Progress | None = None) -> Pulled:
        """Fetches, and moves the current branch forward with its files.

        Raises RefConflict if the branch has gone another way here, or a training records on it, and
        WouldOverwrite for work that is not committed.
        """
        from mvc.remote.pull import pull

        return pull(self._store, self._config, self.remotes.find(remote), progress=progress)

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
        """Sends branches and tags with what they need, by default the current branch.

        Tags, data sets, deployments and annotations of these versions go along. All refs move, or
        none. ``every``: all branches and tags. ``force``: refs may move back, from where the last
        fetch or push saw them. ``delete``: branches and tags to delete there. ``dry_run``: only say
        what would go. ``states``: versions that are there without their states, which go alone.
        ``partial``: also versions whose states neither side has. Raises RefConflict for what is not
        fast-forward or has moved there meanwhile, UnknownRevision, StateForgotten, WeightsDropped,
        RemoteUnreachable, RemoteRefused.
        """
        from mvc.remote.push import push, push_states
        from mvc.remote.refs import PushOptions

        found = self.remotes.find(remote)
        if states:
            if refs or every or force or delete or partial or dry_run:
                raise WrongUsage("the states of some versions are pushed by themselves")
            given = [self.find(rev) for rev in states]
            return push_states(self._store, self._config, found, given, progress=progress)
        chosen = PushOptions(
            every=every, force=force, delete=tuple(delete), dry_run=dry_run, partial=partial
        )
        return push(self._store, self._config, found, refs, options=chosen, progress=progress)

    # -- operations ----------------------------------------------------------------------------

    def operations(self, limit: int | None = None) -> Iterator[Operation]:
        """Operations on the repository from the newest back."""
        from mvc.repo.oplog import oplog

        return oplog.oplog(self._store, limit)

    def undo(
        self, number: int | None = None, *, dry_run: bool = False, reason: Reason = ""
    ) -> Undoing:
        """Sets back what an operation moved: the newest that did, or the one with ``number``."""
        from mvc.repo.oplog import undo

        return (undo.plan if dry_run else undo.undo)(
            self._store, self._config, number, reason=reason
        )
