"""Follower: a process serves what the record of a deployment target says, whatever changes it."""

from __future__ import annotations

import os
import random
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from os import fspath
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Self

from msgspec import Struct
from msgspec.structs import replace

from mvc.api import Deployed, Repository, opened
from mvc.errors import (
    DamagedData,
    HistoryMissing,
    InvalidConfig,
    InvalidName,
    IoFailed,
    MvcError,
    MvcWarning,
    NoDeployment,
    NotARepository,
    NotInstalled,
    UnknownTarget,
    WrongUsage,
)
from mvc.ids import CommitId
from mvc.names import check_node, check_ref, printable
from mvc.serving.reports import Reports
from mvc.serving.sinks import ServedOutput, TakenOver, warn_of_takeover
from mvc.system import Clock, FileSystem, HookFailed, run_command, tell
from mvc.times import format_time
from mvc.transport import Replica, Transport, open_transport, remote_at, serve, wire
from mvc.types import PathName, Unpicklable

if TYPE_CHECKING:
    import torch


__all__ = ["Follower", "NotFollowing", "TakenOver"]

MIRROR = "mirror"
"""The folder of a bucket's mirror, in that beside the file."""
EXEC_SECONDS = 600.0
_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 60.0
_STOPPABLE = 5.0  # seconds of one wait of a caller who may want to stop
_USAGE = (WrongUsage, InvalidName, InvalidConfig, NotInstalled)
"""What no patience helps against."""
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
        self._transport = serve(self.repo)
        fs = self._transport.fs
        try:
            self._output = None if to is None else ServedOutput(fs, Path(to), as_folder=atomic_dir)
        except BaseException:
            self._close_repo()
            raise
        self._is_sound = True  # nothing that was read from the open repository was wrong
        self._loaded: CommitId | None = None
        self._live: tuple[str, Deployed | None] = "", None  # with its mark
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
            except (DamagedData, HistoryMissing, IoFailed, NotARepository):
                self._is_sound = False  # what is open may be gone: open it again
                raise

    def _look(self) -> Deployed | None:
        self._open()
        mark, _ = self._transport.mark(self.target)
        if mark != self._live[0]:
            live = None
            with suppress(NoDeployment, UnknownTarget):
                live = self.repo.live(self.target).deployment
            self._live = mark, live
        if self._live[1] is None and self.current is not None:
            self.repo.live(self.target)  # says why nothing is live any more
        return self._live[1]

    def _open(self) -> None:
        """Opens the repository again if another one has its place, or the caller closed it."""
        if self._closing.is_set():
            raise WrongUsage("this follower is closed", hint="make another one")
        if self.repo.closed or not self._transport.is_in_place() or not self._is_sound:
            fs, clock = self._transport.fs, self._transport.clock
            fresh = Repository.open(self.repo.root, discover=False, fs=fs, clock=clock)
            self._close_repo()
            self.repo, self._own, self._transport = fresh, True, serve(fresh)
            self._live, self._is_sound = ("", None), True

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


class Followed(Struct, frozen=True):
    """The file holds the version ``commit`` of ``target``, deployed at ``time_ns``.

    ``previous``: the version that it held before, None if that is not known. ``received``: bytes of
    records; ``swapped_ns``: when, by this machine's clock.
    """

    target: str
    commit: CommitId
    time_ns: int
    file: str
    path: str
    previous: CommitId | None
    received: int
    swapped_ns: int


OnChange = Callable[[Followed], object]


class Following(Unpicklable):
    """Keeps the file ``to`` the version that is live on a target of the repository at ``url``.

    Each version comes as a delta against the file, is proven, and replaces it in one step, after
    which the shell command ``command`` and ``on_change`` are run. ``path`` names a file of the
    version where it has several. With a ``name`` the node reports what it serves. ``interval``:
    seconds between two looks, by default as the remote allows; ``remote``: options of it
    (``token_file``...). ``note`` is called with what is no problem: that the target is followed
    again.

    Raises WrongUsage, InvalidName, IoFailed and Busy for a file that cannot be kept.
    """

    def __init__(
        self,
        url: PathName,
        target: str,
        to: PathName,
        *,
        path: str | None = None,
        name: str = "",
        command: str = "",
        interval: float | None = None,
        on_change: OnChange | None = None,
        stop: Event | None = None,
        note: Callable[[str], object] | None = None,
        fs: FileSystem | None = None,
        clock: Clock | None = None,
        remote: Mapping[str, str | bool] = {},
    ) -> None:
        check_ref("deployment target", target)
        if interval is not None and not interval > 0:
            raise WrongUsage("the interval is not more than 0 seconds")
        self._fs, self._clock = fs or FileSystem(), clock or Clock()
        self._remote = remote_at(fspath(url), remote)
        self._target, self._path, self._interval = target, path or "", interval
        self._command, self._on_change = command, on_change
        self._stop, self._note = stop or Event(), note
        self._wait = wire.WAIT if stop is None else _STOPPABLE
        self._transport: Transport | None = None
        self._mark = ""  # of what is live, as of the last answer
        self._pause = 0.0  # seconds after which it is tried again; 0 while all is well
        self._told = self._told_of_reports = ""
        if name:
            check_node(name)
        self._file = Replica(self._fs, Path(to))
        self._reports = Reports(self._file.folder, name, self._fs, self._clock) if name else None

    def __enter__(self) -> Following:
        return self

    def __exit__(self, *_: object) -> None:
        self._leave()
        self._file.close()

    def once(self) -> Followed | None:
        """Makes the file what is live now; None if it is already.

        Raises RemoteUnreachable, RemoteRefused, UnknownTarget, NoDeployment, UnknownPath,
        StateForgotten, WeightsDropped, StorageFull, DamagedData, and what ``on_change`` does; then
        the next call tells it again.
        """
        done = self._swap()
        self._report()
        return done

    def run(self) -> None:
        """Goes on until ``stop`` is set. Errors become warnings (``NotFollowing``), and it tries
        again; those that no patience helps against are raised, and what ``on_change`` raises.
        """
        while not self._stop.is_set():
            answered = False
            try:
                mark = self._news()
                answered = True
                if mark is None and not self._pause and self._is_served():
                    self._report()
                    continue
                self._mark = mark or self._mark
                self._swap()
                self._report()
                self._recovered()
            except (NoDeployment, UnknownTarget) as error:  # the next news are waited for
                self._pause = 0.0
                self._say(error)
            except _USAGE:
                raise
            except MvcError as error:
                self._say(error)
                self._leave()
                self._pause = min(2 * self._pause or _FIRST_PAUSE, _LONGEST_PAUSE)
                if not answered:
                    self._stop.wait(_spread(self._pause))

    # -- the remote ------------------------------------------------------------------------

    def _at_transport(self) -> Transport:
        if self._transport is None:
            mirror = self._file.folder / MIRROR
            self._transport = open_transport(self._remote, folder=mirror)
        return self._transport

    def _leave(self) -> None:
        """Lets go of the remote; the next question opens the way again."""
        transport, self._transport = self._transport, None
        if transport is not None:
            with suppress(MvcError):
                transport.close()

    def _news(self) -> str | None:
        """The mark of what is live, if it is another one; waits for that as long as it may."""
        pause, interval = _spread(self._pause), self._interval
        if interval is None:
            return self._at_transport().live(self._target, self._mark, pause or self._wait)
        if self._mark:
            self._stop.wait(pause or interval)
        return self._at_transport().live(self._target, self._mark)

    def _report(self) -> None:
        """Sends the reports that wait; that they cannot be sent is said once."""
        if self._reports is None or not self._reports.waiting:
            return
        try:
            self._reports.send(self._at_transport())
            self._told_of_reports = ""
        except MvcError as error:
            if error.message != self._told_of_reports:
                self._told_of_reports = error.message
                text = f"reports on {self._target} wait: {error.message}"
                warnings.warn(text, NotFollowing, stacklevel=3)

    # -- a swap ----------------------------------------------------------------------------

    def _is_served(self) -> bool:
        """Whether the file is as it was left, and nothing is to be done for it."""
        current = self._file.current()
        return current is not None and current.told

    def _swap(self) -> Followed | None:
        """Makes the file what is live; what became of it, None if it was that already."""
        old = self._file.current()
        if self._reports is not None and old is not None:  # a kill may have kept it from being told
            served_ns = min(old.written_ns, self._clock.now_ns())
            self._reports.served(old.id, self._target, served_ns)
        update = self._file.update(self._at_transport(), self._target, self._path)
        version = update.version
        if update.foreign:
            warn_of_takeover(self._file.shown, version.id, self._target)
        if self._reports is not None:
            self._reports.served(version.id, self._target, self._clock.now_ns())
        if version.told:
            return None
        done = Followed(
            self._target, version.id, version.time_ns, self._file.shown,
            path=version.path, previous=None if old is None else old.id, received=update.received,
            swapped_ns=self._clock.now_ns(),
        )  # fmt: skip
        tell(
            "mvc.serving",
            f"{printable(done.file)} is {done.commit.short}, live on {printable(done.target)}",
            target=printable(done.target), version=str(done.commit), file=printable(done.file),
            received_bytes=done.received,
        )  # fmt: skip
        self._run_command(done)
        if self._on_change is not None:
            self._on_change(done)
        self._file.note(replace(version, told=True))
        return done

    def _run_command(self, done: Followed) -> None:
        if not self._command:
            return
        facts = {
            "schema": "mvc.follow/1",
            "target": done.target,
            "version": str(done.commit),
            "previous": None if done.previous is None else str(done.previous),
            "file": os.fspath(Path(done.file).absolute()),
            "path": done.path,
            "url": self._remote.url,
            "time": format_time(done.time_ns),
        }
        problem = run_command(self._command, EXEC_SECONDS, facts, folder=str(self._fs.cwd()))
        if problem is not None:
            text = f"{done.file} is {done.commit.short}, but its command {problem}"
            warnings.warn(text, HookFailed, stacklevel=4)

    # -- what is said ------------------------------------------------------------------------

    def _say(self, error: MvcError) -> None:
        """Why the target is not followed; once, until something else is the matter."""
        if error.message == self._told:
            return
        self._told = error.message
        current = None
        with suppress(MvcError):
            current = self._file.current()
        served = "nothing" if current is None else current.id.short
        text = f"{printable(self._target)} is not followed, {served} is served: {error.message}"
        warnings.warn(text, NotFollowing, stacklevel=3)

    def _recovered(self) -> None:
        self._pause = 0.0
        if self._told and self._note is not None:
            self._note(f"{printable(self._target)} is followed again")
        self._told = ""


def _spread(seconds: float) -> float:
    return seconds * random.uniform(0.75, 1.25)  # noqa: S311 - spreads clients, hides nothing
