"""The public entry: a repository of model versions.

Opens and wires; every verb is a function in a module of its own.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, suppress
from datetime import datetime, timedelta
from os import PathLike
from pathlib import Path
from typing import (
    TYPE_CHECKING,
    Any,
    BinaryIO,
    ClassVar,
    Self,
    TypeAlias,
    TypedDict,
    Unpack,
    cast,
)

from msgspec.structs import replace

from mvc.errors import (
    AlreadyARepository,
    DamagedData,
    NoDeployment,
    NotARepository,
    UnknownRevision,
    WrongUsage,
)
from mvc.ids import CommitId
from mvc.io.clock import Clock
from mvc.io.files import FileSystem
from mvc.model.names import DEFAULT_STATE, printable
from mvc.repo import deployments, queries, refs, times
from mvc.repo.arguments import checked
from mvc.repo.commit.base_cache import BaseCaches
from mvc.repo.config import Config, bytes_to_hold, load_config
from mvc.repo.context import Context
from mvc.repo.deployments import Deployed
from mvc.repo.lookup import commits, manifests, revisions
from mvc.repo.lookup.revisions import Rev
from mvc.repo.opening import Configure, check_absent, open_context, remove_if_failed
from mvc.repo.ownership import refuse_foreign
from mvc.store.store import FOLDER, create
from mvc.types import Progress

if TYPE_CHECKING:
    from types import TracebackType

    from mvc.model.commit import Commit
    from mvc.model.manifest import FileEntry, LogicalTensor, Manifest
    from mvc.repo.checkout.checkout import Restored
    from mvc.repo.checkout.versions import Version
    from mvc.repo.commit.request import Change, CommitOptions, CommitRequest
    from mvc.repo.commit.result import CommitResult
    from mvc.repo.diff.diff import Diff
    from mvc.repo.display import Log
    from mvc.repo.fsck.fsck import FsckReport
    from mvc.repo.gc.gc import Collection as Collected
    from mvc.repo.history.change import FirstChange, Predict
    from mvc.repo.importing.importing import Imported
    from mvc.repo.lookup.refs import Head, Ref
    from mvc.repo.lossy.commit import LossyCommit
    from mvc.repo.maintenance.report import Repaired
    from mvc.repo.oplog.oplog import Operation
    from mvc.repo.oplog.undo import Undoing
    from mvc.repo.queries import Queries
    from mvc.repo.repack.plan import RepackCurve
    from mvc.repo.repack.repack import Repacked
    from mvc.repo.report.family import Family
    from mvc.repo.report.plot import Plot
    from mvc.repo.retention.forget import Chosen, ForgetPreview
    from mvc.repo.stats import Stats
    from mvc.repo.worktree.identify import Identified
    from mvc.repo.worktree.status import Status
    from mvc.requirements import Requirements
    from mvc.store.journal.frames import Gap

__all__ = ["Repository", "Rev", "Time"]

Time: TypeAlias = int | str | datetime
"""Nanoseconds since 1970, a text such as ``2026-11-20T10:00Z`` or ``2 hours ago``, or a datetime.

A ``datetime`` without a zone is in local time.
"""

PathName: TypeAlias = str | PathLike[str]
Paths: TypeAlias = PathName | Sequence[PathName]
_FIRST_CONFIG = b"# See docs/commands/config.md\n"


class _Rarer(TypedDict, total=False):
    """Fields of ``CommitOptions`` that ``commit`` takes by themselves, too."""

    at: Time | None
    reset_point: bool


@checked
class Repository:
    """An open repository; close it, or use it as a context manager.

    Safe across threads and after a fork. Raises subclasses of ``mvc.MvcError``. ``public`` is
    the class of repositories that mvc opens by itself: ``mvc.api`` puts its own there.
    """

    public: ClassVar[type[Repository]]

    def __init__(self, context: Context) -> None:
        if not isinstance(context, Context):
            raise WrongUsage(
                "a repository is not opened by its constructor",
                hint="mvc.Repository.open(PATH) opens one, mvc.Repository.init(PATH) makes one",
            )
        self.context = context
        self._lock = threading.RLock()
        self._last = BaseCaches()
        self._closing: list[Callable[[], object]] = []
        self.closed = False

    # -- opening -------------------------------------------------------------------------

    @classmethod
    def init(
        cls,
        path: PathName = ".",
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
        files, time = fs or FileSystem(), clock or Clock()
        root = files.realpath(Path(path))
        settings = config(None) if config else load_config(files, None, None, {}, {})
        name = branch or str(settings.get("init.branch"))
        refs.check_branch(name)
        check_absent(files, root)
        with remove_if_failed(files, root):
            files.make_dirs(root)
            create(files, time, root, name, _FIRST_CONFIG)
        repo = cls.open(root, config=config, fs=fs, clock=clock)
        queries.begin(repo.context)
        return repo

    @classmethod
    def open(
        cls,
        path: PathName = ".",
        *,
        discover: bool = True,
        config: Configure | None = None,
        fs: FileSystem | None = None,
        clock: Clock | None = None,
    ) -> Self:
        """Opens the repository of a folder, or with ``discover`` of the nearest one above it.

        ``config`` makes the configuration from the path of the repository's own file.
        Raises NotARepository, DubiousOwnership, UnsupportedFormat, DamagedData, InvalidConfig.
        """
        return cls(open_context(path, discover=discover, config=config, fs=fs, clock=clock))

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

    @classmethod
    def heal(
        cls,
        path: PathName = ".",
        *,
        other: PathName | None = None,
        full: bool = False,
        config: Configure | None = None,
    ) -> Repaired:
        """Repairs the repository of a folder, even one that does not open.

        First the journal and the format file, without which nothing opens, then as
        ``repair`` does. ``other`` is a repository or a copy of a ``.mvc`` folder that may have
        what is damaged here. Raises NotARepository, UnsupportedFormat, and DamagedData where
        what is lost cannot be told from what is there.
        """
        from mvc.repo.repair.journal import before_opening
        from mvc.repo.repair.repair import folder_of

        files = FileSystem()
        source = None if other is None else folder_of(files, Path(other))
        folder = files.realpath(Path(path)) / FOLDER
        refuse_foreign(files, folder)
        first = [] if files.stat(folder) is None else before_opening(files, folder, source)
        with cls.open(path, discover=False, config=config) as repo:
            done = repo.repair(full=full, other=other)
        return replace(done, healed=(*first, *done.healed))

    @property
    def root(self) -> Path:
        """The folder that holds ``.mvc``."""
        return self.context.root

    @property
    def config(self) -> Config:
        """The settings in force, with the origin of each."""
        return self.context.config

    @property
    def gaps(self) -> Sequence[Gap]:
        """Entries of the journal that are lost; refs, history and deployments may lack them."""
        return self.context.store.snapshot.gaps

    @property
    def on_network(self) -> bool:
        """Whether other hosts may share the file system that the repository is on."""
        return self.context.store.fs.is_network_filesystem(self.root)

    def close(self) -> None:
        """Lets go of files and memory. Everything acknowledged is durable already."""
        with ExitStack() as after:
            after.callback(self.context.store.close)
            after.callback(self._last.clear)
            after.callback(setattr, self, "closed", True)
            for act in self._closing:  # may commit
                after.callback(act)
            self._closing = []

    def before_close(self, act: Callable[[], object]) -> Callable[[], None]:
        """Has ``close`` call ``act`` first, so that what still writes can end.

        What is returned takes that back.
        """
        self._closing.append(act)

        def take_back() -> None:
            with suppress(ValueError):  # close is calling it
                self._closing.remove(act)

        return take_back

    def __repr__(self) -> str:
        state = " (closed)" if self.closed else ""
        return f"<mvc repository {printable(str(self.root))}{state}>"

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
        path: str = DEFAULT_STATE,
        states: Mapping[str, Mapping[str, Any]] | None = None,
        model: Any = None,
        message: str = "",
        metrics: Mapping[str, Any] | None = None,
        params: Mapping[str, Any] | None = None,
        deploy: str | None = None,
        pipeline: str | Requirements | None = None,
        options: CommitOptions | None = None,
        **rarer: Unpack[_Rarer],
    ) -> CommitResult:
        """Keeps a version; when it returns, no crash loses it.

        ``state`` is a mapping of tensors (torch or numpy, any nesting), kept under ``path``, or
        paths of files and folders. ``states`` are further mappings of the same version by their
        paths; they may also stand alone. ``model`` is the live module whose state is committed, or
        a ``mvc.Architecture`` that says how it is built: the version then carries its source code
        and the environment (docs/models.md). ``metrics`` are numbers; ``params`` are texts or plain
        data (hyper-parameters, the name of a data set), kept as texts. ``deploy`` names the target
        on which the version goes live. ``pipeline`` is text, or
        Requirements, whose ``max_recovery`` then bounds the recovery of this version.
        ``options`` are the rarer arguments, of which ``at`` and ``reset_point`` may also be given
        by themselves. A mapping is committed even if nothing changed.

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
        from mvc.repo.commit.inputs import refuse_empty, states_by_path
        from mvc.repo.commit.request import (
            CommitOptions,
            CommitRequest,
            metrics_from,
            params_from,
        )
        from mvc.requirements import pipeline_and_bound

        if wrong := set(rarer) - set(_Rarer.__annotations__):
            raise TypeError(f"commit() got an unexpected keyword argument {min(wrong)!r}")
        chosen = replace(options or CommitOptions(), **rarer)
        text, bound = pipeline_and_bound(pipeline)
        state, carried = self._carried(model, state, path, chosen)
        given = states_by_path(state, path, states)
        files = state is not None or chosen.all or states is None
        if isinstance(state, Mapping):
            if chosen.all:
                raise WrongUsage("all is for files", hint="pass the state in states= instead")
            files = False
        if not files and not given:
            raise WrongUsage("states names no state")
        if not chosen.allow_empty:
            refuse_empty(given)
        if chosen.all and chosen.branch not in {None, refs.head(self.context).branch}:
            raise WrongUsage(
                "all is for the current branch: it compares files with HEAD", hint="name the files"
            )
        empty = chosen.allow_empty
        if empty is None:
            empty = not files or deploy is not None
        request = CommitRequest(
            changes=(),
            message=message,
            metrics=metrics_from(metrics or {}),
            params=params_from(params or {}),
            deploy=deploy,
            deploy_time_ns=self._moment(chosen.at),
            pipeline=text,
            max_recovery=chosen.max_recovery if bound is None else bound,
            reset_point=chosen.reset_point,
            allow_empty=empty,
            author=chosen.author,
            time_ns=self._moment(chosen.time),
            produced_by=chosen.produced_by,
            branch=chosen.branch,
            new_branch=chosen.new_branch,
            attachments=carried,
        )
        with self._lock:
            if files:
                return self._commit_files(state, given, request, chosen)
            return self._commit_states(given, path, request, chosen)

    def _carried(
        self,
        model: Any,
        state: Mapping[str, Any] | Paths | None,
        path: str,  # noqa: ARG002
        options: CommitOptions,
    ) -> tuple[Mapping[str, Any] | Paths | None, dict[str, bytes]]:
        """The state to commit, and what the version carries; ``mvc.api`` knows live models."""
        if model is not None or options.environment:
            raise WrongUsage("a model's code is recorded by repositories of mvc.Repository")
        return state, {}

    def _commit_states(
        self,
        given: Mapping[str, Mapping[str, Any]],
        path: str,
        request: CommitRequest,
        options: CommitOptions,
    ) -> CommitResult:
        from mvc.repo.lossy.approximate import approximating

        changes = self._changes(given)
        live: Any = given.get(path)
        setting = None if live is None else approximating(self.context)
        lossy = self._lossy(request, options, request.pipeline or setting)
        if lossy is None:
            return replace(self._publish(request, changes, options), state=live)
        if live is None:
            raise WrongUsage(
                f"a lossy pipeline reduces the state at {path}, which is not given",
                hint="name its path with path=, or commit with pipeline='lossless'",
            )
        reduced = lossy.changes([c for c in changes if c.path == path], given_back=True)
        changes = [*reduced, *(c for c in changes if c.path != path)]
        done = self._publish(replace(request, produced_by=lossy.text), changes, options)
        return replace(done, state=lossy.state(done.entries[path]))

    def _commit_files(
        self,
        paths: object,
        given: Mapping[str, Mapping[str, Any]],
        request: CommitRequest,
        options: CommitOptions,
    ) -> CommitResult:
        from mvc.repo.commit.inputs import of_files
        from mvc.repo.lossy.approximate import approximating

        changes, further = of_files(self.context, paths, options), self._changes(given)
        output = None if options.output is None else Path(options.output)
        written = output is not None or options.in_place
        setting = approximating(self.context)
        if written:
            setting = str(self.config.get("commit.pipeline"))
        lossy = self._lossy(request, options, request.pipeline or setting)
        if lossy is None:
            return self._publish(request, [*changes, *further], options)
        # Training goes on from its own weights: an approximation is only written on request.
        written = written or not lossy.pipeline.forward_only
        if written:
            lossy.check_places(changes, output, in_place=options.in_place)
        changes = [*lossy.changes(changes, given_back=False), *further]
        with lossy.explained():
            done = self._publish(replace(request, produced_by=lossy.text), changes, options)
        if written:
            lossy.write(done, output)
        return done

    def _changes(self, given: Mapping[str, Mapping[str, Any]]) -> list[Change]:
        from mvc.adapters.python.state import ParsedState
        from mvc.repo.commit.inputs import of_state

        budget = bytes_to_hold(str(self.config.get("python.keep_base")))
        # Whoever parsed a state before holds what it was made of.
        paths = [path for path, state in given.items() if not isinstance(state, ParsedState)]
        caches = self._last.select(paths, self.context.store.graph, budget)
        return [of_state(state, path, caches.get(path)) for path, state in given.items()]

    def _publish(
        self, request: CommitRequest, changes: list[Change], options: CommitOptions
    ) -> CommitResult:
        from mvc.repo.commit.commit import commit

        try:
            return commit(self.context, replace(request, changes=changes), options.progress)
        except BaseException:
            self._last.clear()
            raise

    def _lossy(
        self, request: CommitRequest, options: CommitOptions, text: str | None
    ) -> LossyCommit | None:
        """The making of production weights by the pipeline ``text``; None if it only codes."""
        from mvc.codecs.pipeline import Pipeline

        parsed = Pipeline.parse(text or "lossless")
        makes = parsed.decisions or parsed.lossy or parsed.forward_only
        if options.produced_by is None and makes:
            from mvc.repo.lossy.commit import LossyCommit

            return LossyCommit.of(self.context, str(text), request, options.exact)
        if options.output or options.in_place or options.exact:
            raise WrongUsage("output, in_place and exact are for lossy pipelines")
        return None

    # -- getting versions back -------------------------------------------------------------

    def checkout(
        self,
        rev: Rev | None = None,
        *,
        at: Time | None = None,
        target: str | None = None,
        path: str | None = None,
    ) -> Any:
        """A version's state in memory, verified.

        By revision (default HEAD), or as it was live on ``target`` at the moment ``at``.
        ``path`` is a file of the version, or a folder with one model, whose shards are one state.
        Values are torch tensors where torch tensors went in, else numpy arrays.
        """
        from mvc.repo.checkout import states

        commit_id = self.find(rev, at=at, target=target)
        state = states.load_state(self.context, commit_id, path)
        queries.note(self.context, [commit_id])
        return state

    def restore(
        self,
        rev: Rev | None = None,
        *,
        at: Time | None = None,
        target: str | None = None,
        paths: Sequence[str] = (),
        output: PathName | BinaryIO | None = None,
        everything: bool = False,
        atomic_dir: bool = False,
        delete: bool = False,
        force: bool = False,
        progress: Progress | None = None,
    ) -> Restored:
        """Writes files. Without ``paths`` and ``output`` the whole set, and HEAD moves there.

        All files are written and verified under temporary names before the first is renamed.

        ``output`` is a file if one file is to be written there, else (or if it is a folder, or a
        text that ends in ``/``) a folder; an open binary stream takes one file. A training state
        beside its model is left out unless ``everything`` or ``paths`` ask for it.
        ``atomic_dir`` writes a new folder and makes the symbolic link ``output`` lead to it in one
        step. ``delete`` removes from the folder ``output`` the files that the version lacks.
        ``force`` overwrites and deletes files that hold uncommitted work or stand at ``output``.

        Raises UnknownRevision, UnknownPath, WouldOverwrite, WrongUsage, DamagedData, StorageFull,
        and Busy if another checkout into the same place takes longer than a minute.
        """
        from mvc.repo.checkout import checkout
        from mvc.repo.checkout.export import export, export_to

        commit_id = self.find(rev, at=at, target=target)
        if output == "":
            raise WrongUsage("the output is empty", hint="name a file or a folder; . is this one")
        if output is None and (everything or atomic_dir or delete):
            raise WrongUsage("everything, atomic_dir and delete are for an output")
        if list(paths) == ["."] and not manifests.of_commit(self.context, commit_id).entries:
            return checkout.Restored(commit_id, (), (), (), refs.head(self.context).branch, False)
        if output is not None:
            if not isinstance(output, str | PathLike):
                if everything or atomic_dir or delete:
                    raise WrongUsage("a stream takes one file")
                done = export_to(self.context, commit_id, paths, output, progress=progress)
            else:
                done = export(
                    self.context,
                    commit_id,
                    paths,
                    Path(output),
                    everything=everything,
                    as_folder=isinstance(output, str) and output.endswith("/"),
                    atomic_dir=atomic_dir,
                    delete=delete,
                    force=force,
                    progress=progress,
                )
        elif paths:
            done = checkout.restore_paths(
                self.context, commit_id, paths, force=force, progress=progress
            )
        else:
            branch = None
            if isinstance(rev, str) and at is None:
                _, branch = revisions.resolve_ref(self.context, rev)
            to = branch if branch is not None else commit_id
            done = checkout.restore_all(self.context, commit_id, to, force=force, progress=progress)
        queries.note(self.context, [commit_id])
        return done

    def mounted(
        self,
        rev: Rev | None = None,
        *,
        at: Time | None = None,
        target: str | None = None,
        paths: Sequence[str] = (),
        everything: bool = False,
    ) -> AbstractContextManager[Path]:
        """A temporary folder with a version's files, for libraries that want a path.

        ``with repo.mounted("v1") as folder:``; the folder is deleted at the end of the block. It
        lies where the system keeps temporary files (TMPDIR). Arguments as for ``restore``.
        """
        from mvc.repo.checkout.export import mounted

        commit_id = self.find(rev, at=at, target=target)
        queries.note(self.context, [commit_id])
        return mounted(self.context, commit_id, paths, everything=everything)

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

        done = checkout.switch(
            self.context, branch, create=create, start=start, force=force, progress=progress
        )
        queries.note(self.context, [] if done is None else [done.commit])
        return done

    # -- the working folder, existing checkpoints ------------------------------------------

    def remove(
        self, paths: Sequence[str], *, cached: bool = False, force: bool = False
    ) -> tuple[str, ...]:
        """Takes paths out of the next commit, and off the disk unless ``cached``."""
        from mvc.repo.checkout import checkout

        return checkout.remove(self.context, paths, cached=cached, force=force)

    def import_checkpoints(
        self,
        sources: Sequence[PathName],
        *,
        time: str = "mtime",
        deploy: str | None = None,
        path: str | None = None,
        message: str | None = None,
        progress: Progress | None = None,
        taken: Callable[[Imported], object] | None = None,
        left_out: list[Path] | None = None,
    ) -> list[Imported]:
        """Commits existing checkpoints, files or folders, each with its own time.

        ``time`` is ``mtime`` or ``name:FORMAT`` (strptime on the file's name, in local time if
        it names no zone). ``deploy`` records that each went live on that target at its time.
        ``path`` is the tracked path of files (default ``model`` and the extension), and the
        tracked folder of checkpoints that are folders. ``taken`` is called with each version
        once it is durable. Files and subfolders of a folder that are no models by their names are
        added to ``left_out``. Raises WrongUsage, InvalidTime and UnknownPath, before anything is
        committed.
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
            left_out=left_out,
        )

    # -- finding versions --------------------------------------------------------------------

    def find(
        self, rev: Rev | None = None, *, at: Time | None = None, target: str | None = None
    ) -> CommitId:
        """The commit of a revision, or the one that was live."""
        if at is not None or target is not None:
            if rev is not None:
                raise WrongUsage("name a revision or a moment, not both")
            return self.live(at, target).commit
        return revisions.resolve(self.context, "HEAD" if rev is None else rev)

    def version(self, rev: Rev = "HEAD") -> Commit:
        """A version's commit: author, time, message, metrics, params, parents, Merkle root."""
        return commits.get(self.context, self.find(rev))

    def manifest(self, rev: Rev = "HEAD") -> Manifest:
        """The paths of a version with their tensors."""
        return manifests.of_commit(self.context, self.find(rev))

    def tensor_bytes(
        self, entry: FileEntry, tensor: LogicalTensor, rev: Rev | None = None
    ) -> memoryview:
        """The bytes of one tensor of a manifest's entry, in new memory, verified.

        ``rev`` names the version that has the entry. Raises DamagedData, or WeightsDropped if
        that version gave the tensor up.
        """
        from mvc.adapters.views import extract
        from mvc.repo.content.contents import in_memory
        from mvc.repo.lookup.weights import check_weights

        if rev is not None:
            check_weights(self.context, self.find(rev), [entry])
        data = in_memory(self.context, entry, {tensor.content})[tensor.content]
        return data if tensor.view is None else extract(data, tensor.spec, tensor.view)

    def forgotten_ns(self, rev: Rev) -> int | None:
        """When a version's state was forgotten, in ns since 1970; None if it is stored."""
        return manifests.forgotten_ns(self.context, self.find(rev))

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
            self.context,
            since=self._moment(since),
            until=self._moment(until),
            target=target,
            rev=rev,
            path=path,
            keys=keys,
            on_error=on_error,
        )
        return queries.counted(self.context, found)

    def first_change(
        self,
        predict: Predict,
        sample: Any,
        *,
        target: str | None = None,
        since: Time | None = None,
        until: Time | None = None,
    ) -> FirstChange | None:
        """The first version that labels a sample differently; None if the label never changes.

        ``predict(state, sample)`` returns the label that a version gives the sample: a comparable
        value, or an array or tensor of one element. With ``target`` the versions are those that
        were live there, including the one live at ``since``; without it they are HEAD and its
        ancestors, by commit time. Every version is decoded once. Raises NoDeployment (with
        ``target``) or UnknownRevision if no version lies in that time; errors of ``predict`` pass.
        """
        from mvc.repo.history.change import first_change

        if target is not None and since is not None:
            with suppress(NoDeployment):  # nothing was live then
                since = self.live(since, target).time_ns
        versions = self.iter_versions(since, until, target)
        change, evaluated = first_change(versions, predict, sample)
        if not evaluated:
            kind = UnknownRevision if target is None else NoDeployment
            raise kind(
                "there is no version in this time", hint="see 'mvc log' and 'mvc deployments'"
            )
        return change

    # -- asking ------------------------------------------------------------------------------

    def time(self, value: Time) -> int:
        """Nanoseconds since 1970 of a moment given as such, as text or as a ``datetime``."""
        return times.moment_of(value, now_ns=self.context.store.clock.now_ns())

    def _moment(self, value: Time | None) -> int | None:
        return None if value is None else self.time(value)

    def log(
        self,
        rev: Rev = "HEAD",
        *,
        limit: int | None = None,
        since: Time | None = None,
        until: Time | None = None,
        target: str | None = None,
        reset_points: bool = False,
        incomplete: list[DamagedData] | None = None,
        every: bool = False,
        paths: Sequence[str] = (),
        sort: str | None = None,
        relations: bool = False,
        prices: bool = False,
    ) -> Log:
        """A version and its ancestors by commit time, newest first, read as far as looked at.

        ``A..B`` means B and its ancestors without those of A; ``every`` all branches, tags and
        HEAD, by publication. ``paths`` keeps versions that changed one of these tracked files
        or folders. ``sort`` names a metric: versions that have it, the highest first, with
        ``-NAME`` the lowest first; ``limit`` then counts the best.

        ``since`` and ``until`` (both included) bound the commit time. With ``target`` only
        versions that a deployment there made live and that was not retracted, by the time of
        the newest such deployment, which the bounds then mean. ``reset_points`` has every
        entry say whether it is stored in full, ``relations`` what its models are to those of its
        first parent, ``prices`` how it is stored and what that costs (``entry.storage``; reads as
        much as ``stats``). Raises UnknownRevision, UnknownTarget and
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
            since=self._moment(since),
            until=self._moment(until),
            reset_points=reset_points,
            incomplete=incomplete,
            every=every,
            paths=paths,
            sort=sort,
            related=relations,
            priced=prices,
        )
        return Log(entries)

    def status(self, *, untracked: bool = True) -> Status:
        """Which tracked files differ from HEAD, and how."""
        from mvc.repo.worktree import status

        return status.status(self.context, untracked=untracked)

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

        return diff.diff(self.context, a, b, paths, progress=progress)

    def family(
        self,
        rev: Rev | None = None,
        *,
        incomplete: list[DamagedData] | None = None,
        progress: Progress | None = None,
    ) -> Family:
        """Which models came from those of ``rev``, or from every base model, by first parents.

        Over HEAD, all branches and all tags. Reads every manifest of their history. Raises
        UnknownRevision, StateForgotten, and DamagedData for a version that cannot be read; with
        ``incomplete`` the error is appended there, and the version is passed over like a
        forgotten one.
        """
        from mvc.repo.report import family

        return family.family(self.context, rev, incomplete=incomplete, progress=progress)

    def identify(self, path: PathName) -> list[Identified]:
        """Which versions have the state of this file; from hashes alone."""
        from mvc.repo.worktree import identify

        return identify.identify(self.context, Path(path))

    def earlier(self, entry: FileEntry, *, besides: Rev | None = None) -> CommitId | None:
        """The newest version, ``besides`` excepted, that introduced this state at this path."""
        from mvc.repo.worktree import identify

        other = None if besides is None else self.find(besides)
        return identify.earlier(self.context, entry, besides=other)

    def tracked_name(self, path: PathName, *, cwd: Path | None = None) -> str:
        """The name under which a path of the disk is tracked; empty for the root itself.

        Raises InvalidName for a path outside of the repository.
        """
        from mvc.repo.worktree.worktree import tracked_name

        fs = self.context.store.fs
        return tracked_name(self.root, Path(path), cwd or fs.cwd(), fs=fs)

    def plot(
        self,
        *metrics: str,
        target: str | None = None,
        stored: bool = False,
        distance: bool = False,
        seconds: float = 10.0,
    ) -> Plot:
        """Charts of metrics over time, with what was live when on ``target`` or every target.

        ``stored`` adds the bytes that versions added, ``distance`` the L2 norm of the change
        from each first parent of HEAD, for as many as ``seconds`` allow. Without any of these
        the metrics that most versions have. Raises UnknownMetric, UnknownTarget.
        """
        from mvc.repo.report import plot

        return plot.plot(
            self.context,
            metrics,
            target=target,
            stored=stored,
            distance=distance,
            seconds=seconds,
        )

    def report(self, path: PathName | None = None, *, layer_seconds: float = 2.0) -> str:
        """The history as one HTML page, written to ``path`` if one is given, in one step.

        At most about ``layer_seconds`` are spent on the distances between layers.
        """
        from mvc.repo.checkout.outputs import refuse_store
        from mvc.repo.report.page import page

        fs = self.context.store.fs
        if path is not None:
            refuse_store(fs, Path(path))
        text = page(self.context, seconds=layer_seconds)
        if path is not None:
            data = text.encode()
            fs.replace_file(Path(path), lambda file: file.write(data), mode=None, durable=False)
        return text

    # -- deployments, refs, paths --------------------------------------------------------------

    def deploy(self, rev: Rev, target: str, *, at: Time | None = None) -> Deployed:
        """Records that a version went live on a target, now or at a given moment."""
        return deployments.deploy(self.context, rev, target, self._moment(at))

    def rollback(self, target: str, to: Rev | None = None) -> Deployed:
        """Deploys what was live on a target before: the last version other than the live one.

        ``to`` names the version instead, which must have been live there. Raises UnknownTarget,
        UnknownRevision, StateForgotten, and NoDeployment if there is nothing to go back to.
        """
        return deployments.rollback(self.context, target, to)

    def retract(self, rev: Rev | None, target: str, *, at: Time | None = None) -> Deployed:
        """Records that a deployment did not happen; its first record stays.

        That of version ``rev``, or with None the newest on ``target``; ``at`` picks the one
        that is recorded for this moment.
        """
        return deployments.retract(self.context, rev, target, self._moment(at))

    def live(self, at: Time | None = None, target: str | None = None) -> Deployed:
        """The deployment that was live on a target at a moment; now if none is given."""
        return deployments.live_at(self.context, self._moment(at), target)

    def deployments(
        self, target: str | None = None, *, incomplete: list[DamagedData] | None = None
    ) -> list[Deployed]:
        """Every deployment, retracted ones included, of one target or all.

        Raises DamagedData where entries of the journal are lost that may have recorded more;
        with ``incomplete`` that is noted there, and what can be read is returned.
        """
        return deployments.list_deployments(self.context, target, incomplete=incomplete)

    def deployments_of(self, rev: Rev) -> tuple[Deployed, ...]:
        """Every deployment of one version, retracted ones included, as they were recorded."""
        return deployments.of_commit(self.context.fresh(), self.find(rev))

    def queries(self) -> Queries:
        """Which versions were asked for (``checkout``, ``restore``, ...), how often and when last.

        Raises IoFailed if the notes cannot be read.
        """
        return queries.queries(self.context)

    def targets(self) -> list[str]:
        """Every deployment target, by name."""
        return deployments.targets(self.context)

    def head(self, *, if_known: bool = False) -> Head:
        """The current branch, None if HEAD is detached, and its commit, None before the first.

        Raises DamagedData if the entry that moved HEAD is lost; with ``if_known`` both are None.
        """
        return (refs.head_if_known if if_known else refs.head)(self.context)

    def is_recording(self, branch: str | None) -> bool:
        """Whether a training records on this branch now, in any process of this machine.

        With None, whether one records on a detached HEAD.
        """
        from mvc.repo.recording import is_recording

        return is_recording(self.context, branch)

    def branches(self) -> list[Ref]:
        """All branches with their newest commits."""
        return refs.branches(self.context)

    def tags(self) -> list[Ref]:
        """All tags with their commits."""
        return refs.tags(self.context)

    def branch(self, name: str, rev: Rev = "HEAD", *, force: bool = False) -> Ref:
        """Makes a branch at a version."""
        return refs.create_branch(self.context, name, rev, force=force)

    def tag(self, name: str, rev: Rev = "HEAD", *, force: bool = False) -> Ref:
        """Names a version for ever."""
        return refs.create_tag(self.context, name, rev, force=force)

    def delete_branch(self, name: str, *, force: bool = False) -> Ref:
        """Deletes a branch; refused where no other name leads to its tip, unless ``force``."""
        return refs.delete_branch(self.context, name, force)

    def rename_branch(self, old: str, new: str, *, force: bool = False) -> None:
        """Renames a branch, HEAD with it; with ``force`` in place of another one."""
        refs.rename_branch(self.context, old, new, force)

    def delete_tag(self, name: str) -> Ref:
        """Deletes a tag; its version stays until ``gc``."""
        return refs.delete_tag(self.context, name)

    # -- maintenance ---------------------------------------------------------------------------

    def stats(self) -> Stats:
        """Versions, reset points, chains, bytes by kind, recovery times."""
        from mvc.repo import stats

        return stats.stats(self.context)

    def fsck(self, *, full: bool = False, progress: Progress | None = None) -> FsckReport:
        """Checks every byte; with ``full`` every object is recovered and hashed as well."""
        from mvc.repo.fsck import fsck

        return fsck.fsck(self.context, full=full, progress=progress)

    def rebuild_index(self) -> None:
        """Makes the index anew from journal and packs. Raises ReadOnly, DamagedData."""
        from mvc.repo.fsck.fsck import rebuild_index

        rebuild_index(self.context)

    def repair(
        self, *, full: bool = False, other: PathName | None = None, progress: Progress | None = None
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
        revs: Rev | Sequence[Rev] = (),
        *,
        unused: str | None = None,
        unqueried: bool = False,
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
        named = cast(Sequence[Rev], (revs,) if one else revs)
        best = tuple(Best.parse(text) for text in keep_best)
        rules = Retention(keep_last, keep_hourly, keep_daily, best, unused, unqueried)
        chosen = forget.choose(self.context, named, rules or None)
        if not dry_run:
            forget.forget(self.context, chosen)
        return chosen

    def forget_preview(
        self,
        chosen: Chosen,
        *,
        grace: timedelta | str | None = None,
        progress: Progress | None = None,
    ) -> ForgetPreview:
        """What forgetting these versions would free; reads every manifest.

        ``chosen``: what ``forget(..., dry_run=True)`` returned. ``grace`` as for ``gc``.
        """
        from mvc.repo.gc.gc import grace_of
        from mvc.repo.retention.forget import preview

        span = grace_of(self.context, grace)
        return preview(self.context, chosen, grace=span, progress=progress)

    def repack_curve(self, *, progress: Progress | None = None) -> RepackCurve:
        """The bytes of all packs that each recovery bound would take, and the stored layout."""
        from mvc.repo.repack.repack import draw_curve

        return draw_curve(self.context, progress)

    def repack(
        self,
        *,
        interval: int | None = None,
        max_recovery: float | None = None,
        max_size: int | None = None,
        add: Sequence[Rev] | None = None,
        remove: Sequence[Rev] | None = None,
        add_queried: int | None = None,
        super_step: int | None = None,
        dry_run: bool = False,
        progress: Progress | None = None,
    ) -> Repacked:
        """Stores the same versions with other reset points and deltas; see ``mvc.repo.repack``.

        At most one aim, all but the last two arguments, is given. ``add_queried`` adds that many
        versions, those that were asked for most often. Without an aim as the settings say. With
        ``dry_run`` only the plan is made.
        """
        from mvc.repo.repack import repack

        goal = repack.goal_of(
            self.context,
            interval=interval,
            max_recovery=max_recovery,
            max_size=max_size,
            add=None if add is None else tuple(map(self.find, add)),
            remove=None if remove is None else tuple(map(self.find, remove)),
            add_queried=add_queried,
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


Repository.public = Repository
