"""Pushes what a Recorder commits: behind the commits, in a thread of its own.

What a remote lacks is on the branch, and each push sends all of it, in order. So nothing waits in
memory while a remote is away, and the next push that succeeds brings what was missed.
"""

from __future__ import annotations

import os
import sys
import threading
import time
import warnings
from contextlib import suppress

from msgspec import Struct

from mvc.api import Repository
from mvc.errors import MvcError, MvcWarning, WrongUsage
from mvc.names import printable
from mvc.system import Patience, log_event, warn

FIRST_PAUSE = 1.0
"""Seconds between a push that failed and the next one; each further failure doubles them."""
_LONGEST = 300.0
REST, _LONGEST_REST = 2.0, 10.0
"""For how long no push begins after one, in times of that one, and in seconds at most."""
_NICE = 10


class NotPushed(MvcWarning):
    """Versions of a training are committed here, but not at the remote."""


class PushReport(Struct, frozen=True):
    """Of the durable versions ``pushed`` are at ``remote``; ``left`` are not known to be there.

    ``failure``: why the last push failed, None if it did not.
    """

    remote: str
    pushed: int
    left: int
    failure: str | None = None


class Pusher(threading.Thread):
    """The thread; ``committed`` tells it of versions, ``finish`` ends it."""

    def __init__(self, repo: Repository, remote: str, branch: str | None) -> None:
        """Raises WrongUsage without a branch, UnknownRevision without such a remote."""
        super().__init__(name="mvc-pusher", daemon=True)
        if branch is None:
            raise WrongUsage(
                f"HEAD is detached, so there is no branch to push to {remote}",
                hint="name the branch that gets the versions: branch=...",
            )
        repo.remotes.find(remote)
        self._remote, self._branch = remote, branch
        self._limit = float(repo.config.get("recorder.push_timeout"))
        # Its own: a push that hangs must not hold the other one open, nor use it once it is closed.
        self._repo = Repository.open(repo)
        self._changed = threading.Condition()
        self._closing = False
        self._moves = 0  # signs of life of a push
        self._durable = 0
        self._pushed = 0  # of them
        self._failure: str | None = None  # of the last push
        self._denied: tuple[str, ...] = ()  # scopes that the last push lacked
        self._refused: tuple[object, ...] = ()  # deployments, by the last push
        self.start()

    @property
    def report(self) -> PushReport:
        """Counts up to now."""
        pushed = self._pushed  # read first: there may be more durable ones since, never fewer
        return PushReport(self._remote, pushed, self._durable - pushed, self._failure)

    def committed(self, count: int = 1) -> None:
        """So many more versions of the branch are durable."""
        with self._changed:
            self._durable += count
            self._changed.notify_all()

    def resumed(self, repo: Repository) -> None:
        """The versions of the branch that are not known to be there are to be pushed as well."""
        if (known := repo.remotes.tracking(self._branch, self._remote)) is not None:
            self.committed(known.ahead)
        else:
            self.committed(sum(1 for _ in repo.log(f"heads/{self._branch}")))

    def finish(self) -> None:
        """Pushes what is left, once, and warns of what is left then.

        Returns at the latest when a push has not gone on for ``recorder.push_timeout``.
        """
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        patience = Patience(self._limit, lambda s: warn(f"a push to {self._remote}", s))
        moves = self._moves
        while self.is_alive():
            self.join(min(1.0, self._limit))
            if moves != self._moves:
                moves = self._moves
                patience.renew()
            elif self.is_alive() and patience.is_over():
                break
        if left := self.report.left:
            reason = f"{self._remote} has not answered for {self._limit:g} s"
            if not self.is_alive():
                reason = self._failure or "the training has ended"
            versions = "1 version" if left == 1 else f"{left} versions"
            _warn(
                f"{versions} of {self._branch} not pushed to {self._remote}: {reason}; "
                f"'mvc push {self._remote} {self._branch}' sends what is missing there"
            )

    def run(self) -> None:
        """Pushes whenever there is something new, until it is told to end."""
        _give_way()
        failing = rest = 0.0
        with self._repo:
            while self._await_work(failing or rest):
                last, begun = self._closing, time.monotonic()
                failing = 0.0 if self._push() else min(max(2 * failing, FIRST_PAUSE), _LONGEST)
                rest = min(REST * (time.monotonic() - begun), _LONGEST_REST)
                if last:
                    return

    def _await_work(self, pause: float) -> bool:
        """Waits for a version that is not pushed, at least ``pause`` seconds unless it is to end.

        False if there is none and none will come.
        """
        with self._changed:
            if pause:
                self._changed.wait_for(lambda: self._closing, pause)
            self._changed.wait_for(lambda: self._closing or self._durable > self._pushed)
            return self._durable > self._pushed

    def _push(self) -> bool:
        count = self._durable
        try:
            done = self._repo.push(self._remote, [self._branch], progress=self._moved)
        except Exception as error:  # whatever it is, the training goes on
            first, self._failure = self._failure is None, _line(error)
            if first and not self._closing:
                _warn(
                    f"{self._branch} cannot be pushed to {self._remote} now: {self._failure}; "
                    "the training goes on, and what is missing there is pushed later"
                )
            return False
        log_event(
            "mvc.training",
            f"pushed {self._branch} to {self._remote}",
            branch=self._branch, remote=self._remote, versions=done.versions, bytes=done.bytes,
        )  # fmt: skip
        with self._changed:
            self._pushed, self._failure = count, None
        if done.denied and done.denied != self._denied:
            _warn(
                f"left out of what is pushed to {self._remote}, because the token there lacks the "
                f"scope: {', '.join(done.denied)[:500]}"
            )
        if done.refused and not self._refused:
            refused = done.refused[0]
            _warn(
                f"{self._remote} refuses what the training deploys to {printable(refused.target)}: "
                f"{refused}; its versions are pushed all the same. 'mvc fetch', then "
                "'mvc deploy' or 'mvc rollback' decides what is live"
            )
        self._denied, self._refused = done.denied, done.refused
        return True

    def _moved(self, *_: object) -> None:
        self._moves += 1


def _warn(text: str) -> None:
    with suppress(NotPushed):  # which the user's filters may make an error
        # No line of a program is to blame, least of all one of this package.
        warnings.warn_explicit(text, NotPushed, "mvc push", 0)


def _give_way() -> None:
    """Lowers the priority of this thread, and of those that it starts, below the training's.

    In a folder on this machine they prove what is pushed.
    """
    if sys.platform == "linux":  # elsewhere it is that of the whole process
        with suppress(OSError):
            nice = min(os.getpriority(os.PRIO_PROCESS, 0) + _NICE, 19)
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), nice)


def _line(error: Exception) -> str:
    text = error.message if isinstance(error, MvcError) else f"{type(error).__name__}: {error}"
    return " ".join(text.split())[:500]
