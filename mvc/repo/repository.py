"""The public entry: a repository of model versions.

Opens and wires; every verb is a function in a module of its own.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, nullcontext, suppress
from dataclasses import replace
from importlib import import_module
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from mvc.errors import WrongUsage
from mvc.ids import CommitId
from mvc.io.clock import Clock
from mvc.io.files import FileSystem
from mvc.model.names import check_path
from mvc.repo import refs, remove
from mvc.repo.asking import Asking, Time
from mvc.repo.care import Care
from mvc.repo.checkout import checkout, switch
from mvc.repo.checkout.checkout import DEFAULT_STATE, Restored
from mvc.repo.checkout.folders import remove_if_failed
from mvc.repo.commit import inputs
from mvc.repo.commit.base_cache import BaseCache
from mvc.repo.commit.commit import commit
from mvc.repo.commit.request import Change, CommitRequest, check_author, metrics_from
from mvc.repo.commit.result import CommitResult
from mvc.repo.config import Config, load_config
from mvc.repo.context import Context, Progress
from mvc.repo.importing import importing
from mvc.repo.importing.importing import Imported
from mvc.repo.lookup import manifests, revisions
from mvc.repo.lossy.commit import LossyCommit
from mvc.repo.opening import check_absent, open_context
from mvc.store.store import create

__all__ = ["CommitResult", "Repository", "Time"]

Paths = str | PathLike[str] | Sequence[str | PathLike[str]]
_FIRST_CONFIG = b"# See docs/commands/config.md\n"


class Repository(Asking, Care):
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
        config: Config | None = None,
        fs: FileSystem | None = None,
        clock: Clock | None = None,
    ) -> Self:
        """Makes an empty repository in a folder, which is created if need be, and opens it."""
        files, time = fs or FileSystem(), clock or Clock()
        root = files.realpath(Path(path))
        settings = config or load_config(files, None, None, {}, {})
        name = branch or str(settings.get("init.branch"))
        refs.check_branch(name)
        check_absent(files, root)
        with remove_if_failed(files, root):
            files.make_dirs(root)
            create(files, time, root, name, _FIRST_CONFIG)
        return cls.open(root, fs=fs, clock=clock)

    @classmethod
    def open(
        cls,
        path: str | PathLike[str] = ".",
        *,
        discover: bool = True,
        config: Callable[[Path], Config] | None = None,
        fs: FileSystem | None = None,
        clock: Clock | None = None,
    ) -> Self:
        """Opens the repository of a folder, or with ``discover`` of the nearest one above it.

        ``config`` makes the configuration from the path of the repository's own file.
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
        with self._lock:
            python = isinstance(state, Mapping)
            dead: set[str] = set()
            wanted = self._changes(state, name, all, cwd, opaque, dead)
            numbers = metrics_from(metrics or {})
            producing = None
            if produced_by is None:
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

    def _changes(
        self,
        state: Mapping[str, Any] | Paths | None,
        name: str,
        all_: bool,
        cwd: Path | None,
        opaque: bool,
        dead: set[str],
    ) -> list[Change]:
        if isinstance(state, Mapping):
            return [inputs.of_state(state, check_path(name), self._last_version(name))]
        listed = None if state is None else inputs.paths_of(state)
        return inputs.of_files(self.context, listed, all_, cwd, opaque, dead)

    def _last_version(self, name: str) -> BaseCache | None:
        """What is kept in memory of the version before; a forked child begins anew."""
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
        return switch.switch(
            self.context, branch, create=create, start=start, force=force, progress=progress
        )

    # -- training: by name, because row 4 imports this row and not the other way round -------

    def watch(self, model: Any, optimizer: Any, **options: Any) -> Any:
        """Records after every step of the optimizer; see ``mvc.training.watch``."""
        return import_module("mvc.training.watch").watch(self, model, optimizer, **options)

    def resume(self, model: Any, optimizer: Any = None, **options: Any) -> Any:
        """Sets training back to a recorded version; see ``mvc.training.resume``."""
        return import_module("mvc.training.resume").resume(self, model, optimizer, **options)

    def remove(
        self, paths: Sequence[str], *, cached: bool = False, force: bool = False
    ) -> tuple[str, ...]:
        """Takes paths out of the next commit, and off the disk unless ``cached``."""
        return remove.remove(self.context, paths, cached=cached, force=force)

    def import_checkpoints(
        self, sources: Sequence[str | PathLike[str]], **options: Any
    ) -> list[Imported]:
        """Makes history of existing checkpoints; see ``mvc.repo.importing.importing``."""
        return importing.import_checkpoints(self.context, [Path(s) for s in sources], **options)
