"""A Follower keeps a model or a file equal to the live version of a target.

A target is a name such as ``prod``, to which versions are deployed. The live version of a target is
the version that is deployed to it now.
"""

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
from mvc.serving.sources import Followed, NotFollowing, OnChange, OpenSource, Replicated
from mvc.system import log_event
from mvc.transport import wire
from mvc.types import Closing, PathName, Unpicklable

_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 60.0
_PERMANENT = (WrongUsage, InvalidConfig, NotInstalled)
"""Errors of a remote that retrying cannot solve."""
_STOPPABLE = 5.0  # maximum seconds of one wait if the caller passed ``stop``


class Follower(Closing, Unpicklable):
    """Loads each live version of a target into ``sinks``.

    ``sinks``: ModelSinks, which load the weights into modules, or one ReplicaSink, which writes a
    file or folder. ``source``: an open Repository, or the path of a repository. With a ReplicaSink,
    ``source`` may be a URL, and ``remote`` has its options, such as ``token_file``. ``on_change``
    is called after all sinks, with a ``Followed``. If ``on_change`` raises an error, the previous
    weights are restored, and the next ``poll`` tries again. ``run`` ends when ``stop`` is set, or
    after ``close``. When ``run`` has recovered from an error, ``run`` calls ``note`` with a text.
    Raises WrongUsage, InvalidName, NotARepository. A ReplicaSink also raises IoFailed and Busy.
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
        self._warned = ""  # the newest warning
        self._lock = threading.RLock()
        replicas = [sink for sink in sinks if isinstance(sink, ReplicaSink)]
        models = [sink for sink in sinks if not isinstance(sink, ReplicaSink)]
        if (replicas and len(sinks) > 1) or not all(isinstance(sink, Sink) for sink in models):
            raise WrongUsage("sinks must be ModelSinks, or one ReplicaSink")
        self._source = (
            Replicated(source, target, replicas[0], on_change=on_change, options=remote)
            if replicas
            else OpenSource(source, target, models, on_change=on_change)
        )

    @property
    def current(self) -> Followed | None:
        """The newest change that this Follower served; None before the first change.

        With a ReplicaSink, ``current`` is at the start the version in the sink's file.
        """
        return self._source.current

    @property
    def repo(self) -> Repository:
        """The open repository. With a ReplicaSink, there is none: raises WrongUsage."""
        if isinstance(self._source, OpenSource):
            return self._source.repo
        raise WrongUsage(
            "a Follower with a ReplicaSink has no open repository",
            hint="open the remote: mvc.visit(URL)",
        )

    def poll(self) -> Followed | None:
        """Serves the live version. Returns the change, or None if this version is served already.

        After an error, the served version and ``current`` are unchanged, and the next call retries.
        Raises StateForgotten for a forgotten state; NoDeployment or UnknownTarget if nothing is
        live any more (with a ReplicaSink, also if nothing is live yet); NotARepository or
        RemoteUnreachable if the source cannot be reached; and the errors of checkout and
        ``on_change``.
        """
        with self._lock:
            if self._stop.is_set():
                raise WrongUsage("this follower is closed", hint="create a new one")
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
        """Follows the target in this thread until ``close`` is called. Checks every ``interval``
        seconds.

        The default is 0.1 with ModelSinks. By default, a ReplicaSink waits until the remote reports
        a change. After an MvcError, ``run`` warns once (``NotFollowing``), and retries after 1 to
        60 seconds, or when another version goes live. Other errors of ``on_change`` are raised.
        """
        if interval is not None and not interval > 0:
            raise WrongUsage("the interval must be more than 0 seconds")
        interval = interval or self._source.interval
        mark, pause, retry_at = "", 0.0, 0.0  # retry_at: 0 without an error
        while not self._stop.is_set():
            is_answered = False
            try:
                news = self._news(mark, interval, retry_at)
                is_answered = True
                is_due = time.monotonic() >= retry_at if retry_at else not self._source.is_settled()
                if news is None and not is_due:
                    continue
                mark = news or mark
                self.poll()
                pause = retry_at = 0.0
                self._recovered()
            except (NoDeployment, UnknownTarget) as error:  # waits for the next deployment
                pause = retry_at = 0.0
                self._warn(error)
            except MvcError as error:
                if self._stop.is_set():
                    return
                if not is_answered and isinstance(error, _PERMANENT):
                    raise
                self._warn(error)
                self._source.reset()
                pause = min(2 * pause or _FIRST_PAUSE, _LONGEST_PAUSE)
                retry_at = time.monotonic() + pause * random.uniform(0.75, 1.25)  # noqa: S311
                if not is_answered:
                    self._stop.wait(retry_at - time.monotonic())

    def _news(self, mark: str, interval: float | None, retry_at: float) -> str | None:
        """Waits for a change of the live version. ``mark``: the result of the previous call.

        Returns a text that identifies the live version, or None if this text is equal to ``mark``.
        """
        wait = self._wait if interval is None else interval
        if retry_at:
            wait = min(wait, max(0.0, retry_at - time.monotonic()))
        if interval is None:
            return self._source.news(mark, wait)
        if mark:
            self._stop.wait(wait)
        with self._lock:
            return None if self._stop.is_set() else self._source.news(mark, 0)

    def _warn(self, error: MvcError) -> None:
        """Warns that the target is not followed, unless the newest warning was the same."""
        if error.message == self._warned:
            return
        self._warned = error.message
        served = self._source.present
        version = "nothing" if served is None else served.commit.short
        text = f"cannot follow {printable(self.target)}, still serving {version}: {error.message}"
        warnings.warn(text, NotFollowing, stacklevel=3)

    def _recovered(self) -> None:
        if self._warned and self._note is not None:
            self._note(f"following {printable(self.target)} again")
        self._warned = ""

    def close(self) -> None:
        """Ends ``run``. The served version stays."""
        self._stop.set()
        with self._lock:
            self._source.close()

    def __repr__(self) -> str:
        current = self.current
        served = "nothing yet" if current is None else current.commit.short
        return f"<mvc follower of {self.target}: {served}>"
