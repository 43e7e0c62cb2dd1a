"""Follows what is live on a target of a remote: waits, fetches, swaps the file, and goes on.

What goes wrong leaves the file as it is. It is said once, as a warning, and tried again until it
works: at once when something else is live, and else after a pause that grows.
"""

from __future__ import annotations

import os
import random
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from os import fspath
from pathlib import Path
from threading import Event

from msgspec import Struct
from msgspec.structs import replace

from mvc.errors import (
    InvalidConfig,
    InvalidName,
    MvcError,
    NoDeployment,
    NotInstalled,
    UnknownTarget,
    WrongUsage,
)
from mvc.ids import CommitId
from mvc.io.clock import Clock
from mvc.io.files import FileSystem
from mvc.io.log import tell
from mvc.names import check_node, check_ref, printable
from mvc.remote.door import Door
from mvc.remote.doors import open_door
from mvc.remote.remotes import DEFAULT, normalised, remote_of
from mvc.remote.replica import Replica
from mvc.remote.wire import WAIT
from mvc.repo.hook import HookFailed, run_command
from mvc.serving.follower import NotFollowing
from mvc.serving.reports import Reports
from mvc.serving.sinks import warn_of_takeover
from mvc.times import format_time
from mvc.types import PathName, Unpicklable

MIRROR = "mirror"
"""The folder of a bucket's mirror, in that beside the file."""
EXEC_SECONDS = 600.0
_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 60.0
_STOPPABLE = 5.0  # seconds of one wait of a caller who may want to stop
_USAGE = (WrongUsage, InvalidName, InvalidConfig, NotInstalled)
"""What no patience helps against."""


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
        self._remote = remote_of(DEFAULT, normalised(fspath(url), self._fs.cwd()), remote)
        self._target, self._path, self._interval = target, path or "", interval
        self._command, self._on_change = command, on_change
        self._stop, self._note = stop or Event(), note
        self._wait = WAIT if stop is None else _STOPPABLE
        self._door: Door | None = None
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

    def _at_door(self) -> Door:
        if self._door is None:
            remote = self._remote
            if remote.is_bucket:
                from mvc.remote.bucket.door import open_door as open_bucket

                self._door = open_bucket(remote, None, place=self._file.folder / MIRROR)
            else:
                self._door = open_door(
                    replace(remote, name="") if remote.scheme == "file" else remote
                )
        return self._door

    def _leave(self) -> None:
        """Lets go of the remote; the next question opens the way again."""
        door, self._door = self._door, None
        if door is not None:
            with suppress(MvcError):
                door.close()

    def _news(self) -> str | None:
        """The mark of what is live, if it is another one; waits for that as long as it may."""
        pause, interval = _spread(self._pause), self._interval
        if interval is None:
            return self._at_door().live(self._target, self._mark, pause or self._wait)
        if self._mark:
            self._stop.wait(pause or interval)
        return self._at_door().live(self._target, self._mark)

    def _report(self) -> None:
        """Sends the reports that wait; that they cannot be sent is said once."""
        if self._reports is None or not self._reports.waiting:
            return
        try:
            self._reports.send(self._at_door())
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
        update = self._file.update(self._at_door(), self._target, self._path)
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
