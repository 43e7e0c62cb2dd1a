"""Follower: a process serves what the record of a deployment target says, whatever changes it."""

from __future__ import annotations

import random
import threading
import time
import warnings
from collections.abc import Callable, Mapping
from threading import Event

from mvc.api import Repository
from mvc.errors import (
    InvalidConfig,
    MvcError,
    NoDeployment,
    NotInstalled,
    UnknownTarget,
    WrongUsage,
)
from mvc.names import check_ref, printable
from mvc.serving.sinks import ReplicaSink, Sink
from mvc.serving.sources import AtHand, Followed, NotFollowing, OnChange, Replicated
from mvc.system import log_event
from mvc.transport import wire
from mvc.types import Closing, PathName, Unpicklable

_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 60.0
_NO_WAY = (WrongUsage, InvalidConfig, NotInstalled)
"""Why a remote can never be asked, however long one waits."""
_STOPPABLE = 5.0  # seconds of one wait of a caller who may want to stop


class Follower(Closing, Unpicklable):
    """Serves the version that is live on a target by the record, and follows every change of it.

    ``source`` is an open Repository or the path of one, and ``sinks`` are ModelSinks; or the only
    sink is a ReplicaSink, and ``source`` may be a URL, too (``remote``: options of it, such as
    ``token_file``). ``on_change`` is called last, with a ``Followed``. If it raises an error, the
    change is tried again; a model has before that what it had.

    ``stop`` ends ``run`` as ``close`` does. ``note`` is called with what is no problem: that the
    target is followed again. Raises WrongUsage, InvalidName, NotARepository, and for a file that
    cannot be kept IoFailed and Busy.
    """

    def __init__(
        self,
        source: Repository | PathName,
        target: str,
        *sinks: Sink | ReplicaSink,
        on_change: OnChange | None = None,
        remote: Mapping[str, str | bool] = {},
        stop: Event | None = None,
        note: Callable[[str], object] | None = None,
    ) -> None:
        check_ref("deployment target", target)
        self.target = target
        self._note = note
        self._stop = stop or Event()
        self._wait = wire.WAIT if stop is None else _STOPPABLE
        self._told = ""
        self._lock = threading.RLock()
        replicas = [each for each in sinks if isinstance(each, ReplicaSink)]
        others = [each for each in sinks if not isinstance(each, ReplicaSink)]
        if (replicas and len(sinks) > 1) or not all(isinstance(each, Sink) for each in others):
            raise WrongUsage("sinks are ModelSinks, or one ReplicaSink")
        self._source = (
            Replicated(source, target, replicas[0], on_change=on_change, options=remote)
            if replicas
            else AtHand(source, target, others, on_change=on_change)
        )

    @property
    def current(self) -> Followed | None:
        """What is served since a change that this Follower has seen, with a ReplicaSink since its
        first poll; None before.
        """
        return self._source.current

    @property
    def repo(self) -> Repository:
        """The open repository. Raises WrongUsage with a ReplicaSink, which needs none."""
        if isinstance(self._source, AtHand):
            return self._source.repo
        raise WrongUsage("what is followed is not open here", hint="mvc.visit(URL) opens it")

    def poll(self) -> Followed | None:
        """Serves what is live by now; what has changed, None if it is served already.

        If it cannot be served, what is served stays, ``current`` too, and the next call tries
        again. Raises StateForgotten for a version whose state was forgotten, NoDeployment or
        UnknownTarget if nothing is live any more, NotARepository or RemoteUnreachable while the
        source is away, the errors of checkout, and what ``on_change`` does.
        """
        with self._lock:
            if self._stop.is_set():
                raise WrongUsage("this follower is closed", hint="make another one")
            done = self._source.poll()
        if done is not None:
            log_event(
                "mvc.serving",
                f"{printable(self.target)} is {done.commit.short}",
                target=printable(self.target),
                version=str(done.commit),
            )
        return done

    def run(self, interval: float | None = None) -> None:
        """Goes on in this thread until it is closed; looks every ``interval`` seconds.

        By default that is 0.1 for a model; for a ReplicaSink it waits for news. Errors of mvc
        become warnings (``NotFollowing``), once until it goes on. It tries again after pauses that
        grow from a second to a minute, and at once if something else is live. What ``on_change``
        raises is raised.
        """
        if interval is not None and not interval > 0:
            raise WrongUsage("the interval is not more than 0 seconds")
        interval = interval or self._source.interval
        mark, pause, again = "", 0.0, 0.0  # again: when it is tried again, 0 while all is well
        while not self._stop.is_set():
            is_answered = False
            try:
                news = self._news(mark, interval, again)
                is_answered = True
                is_due = time.monotonic() >= again if again else not self._source.is_settled()
                if news is None and not is_due:
                    continue
                mark = news or mark
                self.poll()
                pause = again = 0.0
                self._recovered()
            except (NoDeployment, UnknownTarget) as error:  # the next news are waited for
                pause = again = 0.0
                self._say(error)
            except MvcError as error:
                if self._stop.is_set():
                    return
                if not is_answered and isinstance(error, _NO_WAY):
                    raise
                self._say(error)
                self._source.leave()
                pause = min(2 * pause or _FIRST_PAUSE, _LONGEST_PAUSE)
                again = time.monotonic() + pause * random.uniform(0.75, 1.25)  # noqa: S311
                if not is_answered:
                    self._stop.wait(again - time.monotonic())

    def _news(self, mark: str, interval: float | None, again: float) -> str | None:
        """The mark of what is live if that is another one; waits for it as long as it may."""
        wait = self._wait if interval is None else interval
        if again:
            wait = min(wait, max(0.0, again - time.monotonic()))
        if interval is None:
            return self._source.news(mark, wait)
        if mark:
            self._stop.wait(wait)
        with self._lock:
            return None if self._stop.is_set() else self._source.news(mark, 0)

    def _say(self, error: MvcError) -> None:
        """Why the target is not followed; once, until something else is the matter."""
        if error.message == self._told:
            return
        self._told = error.message
        served = self._source.served
        what = "nothing" if served is None else served.short
        text = f"{printable(self.target)} is not followed, {what} is served: {error.message}"
        warnings.warn(text, NotFollowing, stacklevel=3)

    def _recovered(self) -> None:
        if self._told and self._note is not None:
            self._note(f"{printable(self.target)} is followed again")
        self._told = ""

    def close(self) -> None:
        """Ends ``run``. What is served stays."""
        self._stop.set()
        with self._lock:
            self._source.close()

    def __repr__(self) -> str:
        current = self.current
        served = "nothing yet" if current is None else current.commit.short
        return f"<mvc follower of {self.target}: {served}>"
