"""Follower: a process serves what the record of a deployment target says, whatever changes it."""

from __future__ import annotations

import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Self

from mvc.api import Repository, opened
from mvc.errors import (
    DamagedData,
    HistoryMissing,
    IoFailed,
    MvcError,
    MvcWarning,
    NoDeployment,
    NotARepository,
    UnknownTarget,
    WrongUsage,
)
from mvc.ids import CommitId
from mvc.io.files import FileIdentity
from mvc.io.log import tell
from mvc.names import check_ref, printable
from mvc.repo.statements.live import Deployed, live_at, same_until
from mvc.serving.sinks import ServedOutput, TakenOver
from mvc.store.format import FORMAT
from mvc.store.journal.frames import Position
from mvc.store.snapshot import JOURNAL
from mvc.store.store import FOLDER
from mvc.types import PathName, Unpicklable

if TYPE_CHECKING:
    import torch


__all__ = ["Follower", "NotFollowing", "TakenOver"]

RETRY_SECONDS = 1.0
"""How long ``run`` waits after an error before it tries the same again."""


class NotFollowing(MvcWarning):
    """Why ``Follower.run`` goes on with the version that it serves."""


class Follower(Unpicklable):
    """Serves the version that is live on a target by the record, and follows every change of it.

    ``repo`` is an open Repository, or the path of one, which the Follower opens and closes.
    ``model`` is a module that gets the weights, in place. ``to`` is a file that is replaced in
    one step, with ``atomic_dir`` a link to a folder, for versions of several files. ``path`` names
    a file of the version where it has several models. ``on_change`` is called last, with the
    deployment; if it raises an error, model and file become what they were, and the change is
    tried again.

    ``current`` is the deployment that is served, None before the first. ``repo`` is the open
    repository: ``on_change`` can take ``follower.repo.checkout(deployed)``.

    Raises WrongUsage, InvalidName, NotARepository.
    """

    def __init__(
        self,
        repo: Repository | PathName,
        target: str,
        *,
        model: torch.nn.Module | None = None,
        to: PathName | None = None,
        path: str | None = None,
        atomic_dir: bool = False,
        on_change: Callable[[Deployed], object] | None = None,
    ) -> None:
        check_ref("deployment target", target)
        if atomic_dir and to is None:
            raise WrongUsage("atomic_dir needs a place", hint="name the folder with to=")
        self.repo, self._own = opened(repo)
        self.target = target
        self.current: Deployed | None = None
        self._model = model
        self._path = path
        self._on_change = on_change
        self._fs, self._clock = self.repo.context.store.fs, self.repo.context.store.clock
        self._folder = self.repo.root / FOLDER
        self._needed = self._folder / FORMAT, self._folder / JOURNAL
        try:
            self._output = (
                None if to is None else ServedOutput(self._fs, Path(to), as_folder=atomic_dir)
            )
        except BaseException:
            self._close_repo()
            raise
        self._opened_as: tuple[int, int, bytes] | None = self._identity(self._fs.stat(self._folder))
        self._loaded: CommitId | None = None
        self._live: Deployed | None = None
        self._read: tuple[int, Position] | None = None  # the journal that ``_live`` comes from
        self._valid_ns = range(0)  # as long as nothing is recorded
        self._lock = threading.RLock()
        self._closing = threading.Event()

    # -- the record -----------------------------------------------------------------------

    def live(self) -> Deployed | None:
        """The deployment that is live by the record; None before the first. Changes nothing.

        While nothing is recorded and no dated deployment becomes due, this costs a few calls of
        the system. Raises NotARepository while the repository is away, NoDeployment or
        UnknownTarget if nothing is live any more, DamagedData, IoFailed.
        """
        with self._lock:
            try:
                return self._look()
            except (DamagedData, HistoryMissing, IoFailed):
                self._opened_as = self._read = None  # what is open may be gone: open it again
                raise

    def _look(self) -> Deployed | None:
        context = self._present().context
        snapshot = context.fresh()
        read = snapshot.generation, snapshot.position
        now = self._clock.now_ns()
        if read == self._read and now in self._valid_ns:
            return self._live
        self._read = None
        try:
            self._live = live_at(context, None, self.target)
        except (NoDeployment, UnknownTarget):
            if self.current is not None:
                raise
            self._live = None
        self._read, self._valid_ns = read, same_until(snapshot, self.target, now)
        return self._live

    def _present(self) -> Repository:
        """The repository; opened again if another one has its place, or the caller closed it."""
        if self._closing.is_set():
            raise WrongUsage("this follower is closed", hint="make another one")
        place = self._fs.stat(self._folder)
        lacking = [file.name for file in self._needed if self._fs.stat(file) is None]
        if place is None or lacking:
            self._opened_as = self._read = None
            without = "" if place is None else f": its folder has no {lacking[0]}"
            raise NotARepository(
                f"the repository {printable(str(self._folder.parent))} is away{without}",
                hint="what is served stays as it is; its record is followed once it is back",
            )
        if self.repo.closed or self._identity(place) != self._opened_as:
            fresh = Repository.open(
                self._folder.parent, discover=False, fs=self._fs, clock=self._clock
            )
            self._close_repo()
            self.repo, self._own, self._read = fresh, True, None
            self._opened_as = self._identity(self._fs.stat(self._folder))
        return self.repo

    def _identity(self, place: FileIdentity | None) -> tuple[int, int, bytes] | None:
        """Of the folder in the repository's place, and of the journal that is open."""
        journal = self.repo.context.store.snapshot.identity
        return None if place is None else (place.inode, place.device, journal)

    # -- following it -------------------------------------------------------------------------

    def poll(self) -> Deployed | None:
        """Serves what is live by now: the deployment if it is another one than before, else None.

        If it cannot be served, what is served stays, ``current`` too, and the next call tries
        again. Raises StateForgotten for a version whose state was forgotten, and the errors of
        ``live``, of ``Repository.checkout`` and ``mvc.load``, and of ``on_change``.
        """
        with self._lock:
            live = self.live()
            if live is None:
                return None
            if live == self.current:
                if self._output is not None:
                    self._output.follow(self.repo, live, self._path)
                return None
            self.repo.manifest(live.commit)  # its state is here, or an error says what became of it
            self._change(live)
            self.current = live
            tell(
                "mvc.serving",
                f"{printable(self.target)} is {live.commit.short}",
                target=printable(self.target),
                version=str(live.commit),
            )
            return live

    def _change(self, live: Deployed) -> None:
        """Model, file, and the caller's act: if one of them fails, all are as they were."""
        with ExitStack() as as_before:
            if self._model is not None and self._loaded != live.commit:
                as_before.enter_context(self._model_kept(self._model))
                from mvc.training.resume import load

                load(self.repo, self._model, live, path=self._path)
                self._loaded = live.commit
            if self._output is not None:
                as_before.enter_context(self._output.kept())
                self._output.follow(self.repo, live, self._path)
            if self._on_change is not None:
                self._on_change(live)

    @contextmanager
    def _model_kept(self, model: torch.nn.Module) -> Iterator[None]:
        """If the block fails, the model gets its weights back, of which this keeps a copy."""
        before, loaded = model.state_dict(), self._loaded
        for key, value in before.items():
            if hasattr(value, "detach"):
                before[key] = value.detach().to("cpu", copy=True)
        try:
            yield
        except BaseException:
            model.load_state_dict(before)
            self._loaded = loaded
            raise

    def run(self, interval: float = 0.1) -> None:
        """Polls every ``interval`` seconds, in this thread, until ``close`` is called.

        Errors of mvc become warnings (``NotFollowing``), once until it goes on. It tries again
        every second, and at once if another version is live. Errors of ``on_change`` are raised.
        """
        told, failed, again = "", None, 0.0
        while not self._closing.is_set():
            live = None
            try:
                live = self.live()
                if not told or live != failed or time.monotonic() >= again:
                    self.poll()
                    told = ""
            except MvcError as error:
                if self._closing.is_set():
                    return
                if error.message != told:
                    told = error.message
                    warnings.warn(self._cause(error), NotFollowing, stacklevel=2)
                failed, again = live, time.monotonic() + RETRY_SECONDS
            # Without an answer from the record there is nothing to look at more often.
            self._closing.wait(RETRY_SECONDS if told and live is None else interval)

    def _cause(self, error: MvcError) -> str:
        served = "nothing" if self.current is None else self.current.commit.short
        return f"{self.target} is not followed, {served} is served: {error.message}"

    # -- closing ------------------------------------------------------------------------------

    def close(self) -> None:
        """Ends ``run``. The file and the model stay as they are."""
        self._closing.set()
        with self._lock:
            self._close_repo()

    def _close_repo(self) -> None:
        if self._own:
            self.repo.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        served = "nothing yet" if self.current is None else self.current.commit.short
        return f"<mvc follower of {self.target}: {served}>"
