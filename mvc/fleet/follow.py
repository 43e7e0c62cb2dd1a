"""Follows what is live on a target of a remote: waits, fetches, swaps the file, and goes on.

What goes wrong leaves the file as it is. It is said once, as a warning, and tried again until it
works: at once when something else is live, and else after a pause that grows.
"""

from __future__ import annotations

import os
import random
import warnings
from collections.abc import Callable
from contextlib import closing, suppress
from os import fspath
from pathlib import Path
from threading import Event

from msgspec import Struct, field
from msgspec.structs import replace

from mvc.errors import (
    DamagedData,
    InvalidConfig,
    InvalidName,
    MvcError,
    NoDeployment,
    NotInstalled,
    UnknownTarget,
    WrongUsage,
)
from mvc.fleet.followed_file import FollowedFile, FollowedVersion, LiveAnswer
from mvc.fleet.reports import Reports
from mvc.ids import CommitId
from mvc.io.clock import Clock
from mvc.io.files import FileSystem
from mvc.io.log import tell
from mvc.names import check_ref, printable
from mvc.remote.door import Door, Wanted
from mvc.remote.doors import open_door
from mvc.remote.remotes import DEFAULT, normalised, remote_of
from mvc.remote.wire import WAIT
from mvc.repo.hook import HookFailed, run_command
from mvc.serving.follower import NotFollowing
from mvc.serving.output import TakenOver
from mvc.times import format_time
from mvc.types import PathName

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


class FollowOptions(Struct, frozen=True):
    """As for ``follow``; ``command`` is its ``exec``."""

    path: str | None = None
    name: str = ""
    command: str = ""
    interval: float | None = None
    remote: dict[str, str | bool] = field(default_factory=dict)


def follow(
    url: PathName,
    target: str,
    *,
    to: PathName,
    once: bool = False,
    on_change: OnChange | None = None,
    stop: Event | None = None,
    path: str | None = None,
    name: str = "",
    exec: str = "",
    interval: float | None = None,
    **remote: str | bool,
) -> Followed | None:
    """Keeps the file ``to`` the version that is live on a target of the repository at ``url``.

    Each version comes as a delta against the file, is proven, and replaces it in one step, after
    which the shell command ``exec`` and ``on_change`` are run. Goes on until ``stop`` is set; with
    ``once`` it returns when the file is what is live. ``path`` names a file of the version where it
    has several. With a ``name`` the node reports what it serves. ``interval``: seconds between two
    looks, by default as the remote allows; ``remote``: options of it (``token_file``...).

    Raises WrongUsage, InvalidName, IoFailed and Busy for a file that cannot be kept, and what
    ``on_change`` does; with ``once`` also RemoteUnreachable, RemoteRefused, UnknownTarget,
    NoDeployment, UnknownPath, StateForgotten, WeightsDropped, StorageFull, DamagedData. Without,
    these become warnings (``NotFollowing``), and it tries again.
    """
    options = FollowOptions(path, name, exec, interval=interval, remote=dict(remote))
    with Following(fspath(url), target, Path(to), options, stop=stop) as following:
        if once:
            return following.once(on_change)
        following.run(on_change)
    return None


class Following:
    """One file that follows a target. Raises as ``follow``.

    ``note`` is called with what is no problem: that the target is followed again.
    """

    def __init__(
        self,
        url: str,
        target: str,
        to: Path,
        options: FollowOptions | None = None,
        *,
        stop: Event | None = None,
        note: Callable[[str], object] | None = None,
        fs: FileSystem | None = None,
        clock: Clock | None = None,
    ) -> None:
        check_ref("deployment target", target)
        self._clock = clock or Clock()
        self._options = options or FollowOptions()
        if self._options.interval is not None and not self._options.interval > 0:
            raise WrongUsage("the interval is not more than 0 seconds")
        self._fs = fs or FileSystem()
        self._remote = remote_of(DEFAULT, normalised(url, self._fs.cwd()), self._options.remote)
        self._asked = self._options.path or ""
        self._target, self._stop, self._note = target, stop or Event(), note
        self._wait = WAIT if stop is None else _STOPPABLE
        self._file = FollowedFile(self._fs, to)
        self._reports: Reports | None = None
        try:
            if self._options.name:
                self._reports = Reports(
                    self._file.folder, self._options.name, fs=self._fs, clock=self._clock
                )
        except BaseException:
            self._file.close()
            raise
        self._door: Door | None = None
        self._mark = ""  # of what is live, as of the last answer
        self._pause = 0.0  # seconds after which it is tried again; 0 while all is well
        self._told = self._told_of_reports = ""

    def __enter__(self) -> Following:
        return self

    def __exit__(self, *_: object) -> None:
        self._leave()
        self._file.close()

    def once(self, on_change: OnChange | None = None) -> Followed | None:
        """Makes the file what is live now; None if it is already."""
        done = self._swap(on_change)
        self._report()
        return done

    def run(self, on_change: OnChange | None = None) -> None:
        while not self._stop.is_set():
            answered = False
            try:
                mark = self._news()
                answered = True
                if mark is None and not self._pause and self._is_served():
                    self._report()
                    continue
                self._mark = mark or self._mark
                self._swap(on_change)
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
        pause, interval = _spread(self._pause), self._options.interval
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

    def _swap(self, on_change: OnChange | None) -> Followed | None:
        """Makes the file what is live; what became of it, None if it was that already."""
        old = self._file.current()
        foreign = old is None and self._file.is_there()
        if self._reports is not None and old is not None:  # a kill may have kept it from being told
            served_ns = min(old.written_ns, self._clock.now_ns())
            self._reports.served(old.id, self._target, served_ns)
        version, received = self._fetched(old)
        if foreign:
            self._warn_of_takeover(version)
        if self._reports is not None:
            self._reports.served(version.id, self._target, self._clock.now_ns())
        if version.told:
            return None
        done = Followed(
            self._target, version.id, version.time_ns, self._file.shown,
            path=version.path, previous=None if old is None else old.id, received=received,
            swapped_ns=self._clock.now_ns(),
        )  # fmt: skip
        tell(
            "mvc.fleet",
            f"{printable(done.file)} is {done.commit.short}, live on {printable(done.target)}",
            target=printable(done.target), version=str(done.commit), file=printable(done.file),
            received_bytes=received,
        )  # fmt: skip
        self._run_command(done)
        if on_change is not None:
            on_change(done)
        self._file.note(replace(version, told=True))
        return done

    def _fetched(self, old: FollowedVersion | None) -> tuple[FollowedVersion, int]:
        """The version that the file holds then, and how many bytes of records came."""
        if old is not None and old.asked == self._asked:
            for wanted in (self._file.wanted(old), Wanted(have=frozenset({old.id}))):
                try:
                    return self._taken(wanted)
                except DamagedData:
                    self._file.doubt()
                if self._file.current() is None:
                    taken = self._taken(Wanted())
                    self._warn_of_takeover(taken[0])
                    return taken
        return self._taken(Wanted())

    def _taken(self, wanted: Wanted) -> tuple[FollowedVersion, int]:
        wanted = replace(wanted, live=self._target, path=self._asked)
        with closing(self._at_door().send(wanted)) as slices:
            for given in slices:
                answer = LiveAnswer.of(given, self._target)
                return self._file.take(answer, self._asked, wanted.have), given.size
        raise DamagedData(f"{self._remote.url} does not say what is live")

    def _run_command(self, done: Followed) -> None:
        if not self._options.command:
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
        problem = run_command(
            self._options.command, EXEC_SECONDS, facts, folder=str(self._fs.cwd())
        )
        if problem is not None:
            text = f"{done.file} is {done.commit.short}, but its command {problem}"
            warnings.warn(text, HookFailed, stacklevel=4)

    # -- what is said ------------------------------------------------------------------------

    def _warn_of_takeover(self, version: FollowedVersion) -> None:
        text = (
            f"{self._file.shown}, which something else wrote, becomes {version.id.short}, "
            f"which is live on {printable(self._target)}"
        )
        warnings.warn(text, TakenOver, stacklevel=4)

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
