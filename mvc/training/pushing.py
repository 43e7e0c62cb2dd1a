"""A thread that pushes the commits of a training to a remote, while the training continues.

Each push sends all versions of the branch that the remote lacks. If a push fails, the thread tries
again after a pause.
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
"""Seconds between a failed push and the next push. Every later failure doubles the pause."""
_LONGEST = 300.0
REST, _LONGEST_REST = 2.0, 10.0
"""The pause after a push: ``REST`` times the push's duration, at most ``_LONGEST_REST`` seconds."""
_NICE = 10


class NotPushed(MvcWarning):
    """Versions of a training are committed locally, but not pushed to the remote."""


class PushReport(Struct, frozen=True):
    """The state of the pushes to ``remote``. A version is *durable* when it is on the local disk.

    ``pushed``: number of durable versions that the thread has pushed. ``left``: number of durable
    versions that ``remote`` may lack. ``failure``: why the newest push failed, or None.
    """

    remote: str
    pushed: int
    left: int
    failure: str | None = None


class Pusher(threading.Thread):
    """The thread. A call of ``committed`` starts a push, and ``finish`` ends the thread."""

    def __init__(self, repo: Repository, remote: str, branch: str | None) -> None:
        """Raises WrongUsage if ``branch`` is None, and UnknownRevision if ``remote`` does not
        exist.
        """
        super().__init__(name="mvc-pusher", daemon=True)
        if branch is None:
            raise WrongUsage(
                f"HEAD is detached, so there is no branch to push to {remote}",
                hint="name a branch for the versions: branch=...",
            )
        repo.remotes.find(remote)
        self._remote, self._branch = remote, branch
        self._limit = float(repo.config.get("recorder.push_timeout"))
        # The thread opens the repository again: a push may hang until after the caller has closed
        # ``repo``.
        self._repo = Repository.open(repo)
        self._changed = threading.Condition()
        self._closing = False
        self._moves = 0  # number of progress reports, which shows that a push does not hang
        self._durable = 0
        self._pushed = 0
        self._failure: str | None = None  # why the newest push failed
        self._denied: tuple[str, ...] = ()  # scopes that the token lacked at the newest push
        self._refused: tuple[object, ...] = ()  # deployments that the remote refused
        self.start()

    @property
    def report(self) -> PushReport:
        """The current counts."""
        pushed = self._pushed  # read first: ``_durable`` may grow meanwhile, but never shrinks
        return PushReport(self._remote, pushed, self._durable - pushed, self._failure)

    def committed(self, count: int = 1) -> None:
        """Notes that ``count`` more versions of the branch are durable. Any thread may call it."""
        with self._changed:
            self._durable += count
            self._changed.notify_all()

    def resumed(self, repo: Repository) -> None:
        """Counts the branch's versions that the remote may lack, so that the next push sends
        them.
        """
        if (known := repo.remotes.tracking(self._branch, self._remote)) is not None:
            self.committed(known.ahead)
        else:
            self.committed(sum(1 for _ in repo.log(f"heads/{self._branch}")))

    def finish(self) -> None:
        """Tries once to push the remaining versions. Warns if some could not be pushed.

        Stops waiting after ``recorder.push_timeout`` seconds without progress.
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
            reason = f"no answer from {self._remote} for {self._limit:g} s"
            if not self.is_alive():
                reason = self._failure or "the training has ended"
            versions = "1 version" if left == 1 else f"{left} versions"
            _warn(
                f"{versions} of {self._branch} not pushed to {self._remote}: {reason}; "
                f"'mvc push {self._remote} {self._branch}' sends them"
            )

    def run(self) -> None:
        """Pushes whenever versions are new, until ``finish`` is called."""
        _lower_priority()
        failing = rest = 0.0
        with self._repo:
            while self._await_work(failing or rest):
                last, begun = self._closing, time.monotonic()
                failing = 0.0 if self._push() else min(max(2 * failing, FIRST_PAUSE), _LONGEST)
                rest = min(REST * (time.monotonic() - begun), _LONGEST_REST)
                if last:
                    return

    def _await_work(self, pause: float) -> bool:
        """Waits at least ``pause`` seconds, and then until there is a version that is not pushed.

        ``finish`` ends both waits. Returns False if all versions are pushed and ``finish`` was
        called.
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
        except Exception as error:  # no failed push may stop the training
            first, self._failure = self._failure is None, _line(error)
            if first and not self._closing:
                _warn(
                    f"{self._branch} cannot be pushed to {self._remote} now: {self._failure}; "
                    "the training continues, and a later push sends the missing versions"
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
                f"not sent to {self._remote}, because its token lacks the scope: "
                f"{', '.join(done.denied)[:500]}"
            )
        if done.refused and not self._refused:
            refused = done.refused[0]
            _warn(
                f"{self._remote} refuses the training's deployments to "
                f"{printable(refused.target)}: "
                f"{refused}; versions are still pushed. Run 'mvc fetch', then 'mvc deploy' or "
                "'mvc rollback' to set the live version"
            )
        self._denied, self._refused = done.denied, done.refused
        return True

    def _moved(self, *_: object) -> None:
        self._moves += 1


def _warn(text: str) -> None:
    with suppress(NotPushed):  # the user's filters may turn the warning into an error
        # The warning names no line of the user's program, because no such line caused it.
        warnings.warn_explicit(text, NotPushed, "mvc push", 0)


def _lower_priority() -> None:
    """Lowers the priority of this thread, and of threads that it starts, below the training's."""
    if sys.platform == "linux":  # other systems have one priority for all threads of a process
        with suppress(OSError):
            nice = min(os.getpriority(os.PRIO_PROCESS, 0) + _NICE, 19)
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), nice)


def _line(error: Exception) -> str:
    text = error.message if isinstance(error, MvcError) else f"{type(error).__name__}: {error}"
    return " ".join(text.split())[:500]
