"""Starts the processes of a training, restarts those that are killed, leaves none behind.

The coordinator and each worker are processes of their own. Each has a pipe of this process as its
stdin and ends when that is closed, so all end with this one, whatever becomes of it. The
coordinator tells what happens as JSON, a line each, on its stdout; a line every second says that
it is alive.
"""

from __future__ import annotations

import json
import queue
import secrets
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Self
from uuid import uuid4

from msgspec import Struct

from mvc.distributed.runner.child import Child, Tell, end_all
from mvc.distributed.runner.settings import START, TIMEOUT, TOKEN
from mvc.errors import CannotDistribute, MvcError, UnknownPath, class_named, need_torch
from mvc.system import SLICE, Patience

ADDRESS = "MVC_COORDINATOR"
"""The variable that tells a worker where the coordinator is: host:port."""

REFUSED = 23
"""The exit code of a worker that the coordinator has ended; the coordinator says why."""

_PATIENCE = 10.0  # seconds that processes may take to end by themselves after a failure


class Dismissed(CannotDistribute):
    """The coordinator has ended a worker's part, and said why."""


class Launch(Struct, frozen=True):
    """What ``launch`` starts. ``job`` is the coordinator's; ``restarts``: how many processes that
    are killed are started again, all together.
    """

    script: str
    arguments: Sequence[str]
    workers: int
    job: Mapping[str, Any]
    restarts: int = 3


def start_coordinator(job: Mapping[str, Any], tell: Tell, token: str) -> Child:
    """The coordinator's process; ``tell`` gets its events."""
    command = ["mvc.distributed.runner.coordinator", json.dumps(job)]
    return Child(command, {TOKEN: token}, tell)


def launch(wanted: Launch, tell: Tell | None = None) -> dict[str, Any]:
    """Trains; returns the coordinator's last event, ``finished``.

    ``tell`` is called with every event: ``listening``, ``joined``, ``lost``, ``round``,
    ``restarted``, ``waits`` (``what`` has been waited for for so many ``seconds``), ``given up``,
    ``finished``. Raises WrongUsage, UnknownPath, CannotDistribute and whatever the coordinator was
    refused by. No process is left when it returns or raises.
    """
    need_torch("mvc train-distributed", "safetensors")
    if not Path(wanted.script).is_file():
        raise UnknownPath(f"there is no file {wanted.script}")
    with _Run(wanted, tell or (lambda _: None)) as run:
        return run.follow()


class _Run:
    def __init__(self, wanted: Launch, tell: Tell) -> None:
        self._wanted, self._tell = wanted, tell
        self._events: queue.Queue[Mapping[str, Any]] = queue.Queue()
        self._processes: dict[int | None, Child] = {}
        settings = wanted.job.get("settings", {})
        self._timeout = float(settings.get("timeout", TIMEOUT))
        self._left = wanted.restarts
        self._run = uuid4().hex[:12]
        self._token = secrets.token_hex(16)
        self._port = int(wanted.job.get("port", 0))
        self._finished: dict[str, Any] | None = None
        self._failure: MvcError | None = None
        self._begun = False
        self._again: dict[int, bool] = {}  # workers started again, and whether they came back
        self._gone: dict[int, str | None] = {}  # workers that come no more; None: they were done
        self._meeting = False  # the coordinator was started again, and has not begun
        self._deaf: set[int] = set()  # workers that the training goes on without; they may live

    def __enter__(self) -> Self:
        self._start_coordinator()
        return self

    def __exit__(self, *_: object) -> None:
        names = {child.pid: self._name(worker) for worker, child in self._processes.items()}
        for child in end_all(self._processes.values()):
            self._tell({"event": "immortal", "what": names[child.pid]})

    def follow(self) -> dict[str, Any]:
        """Handles events until all processes have ended, or had their time to do so."""
        while self._processes:
            with suppress(queue.Empty):
                event = self._events.get(timeout=SLICE)
                if event["event"] == "ended":
                    self._ended(event.get("worker"), int(event["code"]))
                else:
                    self._happened(event)
            if self._patience.look():
                self._lose_patience()
                break
            if self._failure is not None and None not in self._processes:
                break
        if self._failure is not None:
            raise self._failure
        assert self._finished is not None
        return self._finished

    def _await(self, what: str, seconds: float) -> None:
        """From now on this is waited for, so long at most."""

        def say(waited: float) -> None:
            if shown := what or self._names():
                self._tell({"event": "waits", "what": shown, "seconds": waited})

        self._patience = Patience(seconds, say)

    def _lose_patience(self) -> None:
        if self._failure is not None:
            return
        if self._finished is None:
            self._failure = CannotDistribute(
                f"{self._name(None)} has said nothing for {self._timeout:g} seconds",
                hint="resume=true goes on from the last round; timeout=SECONDS allows more",
            )
        else:
            self._failure = CannotDistribute(
                f"trained to the end, but {self._names()} did not end within "
                f"{self._timeout + START:g} seconds after it",
                hint="timeout=SECONDS allows the script more",
            )

    def _name(self, worker: int | None) -> str:
        who = "the coordinator" if worker is None else f"worker {worker}"
        return f"{who} (process {self._processes[worker].pid})"

    def _names(self) -> str:
        return ", ".join(self._name(w) for w in sorted(self._processes, key=lambda w: w or -1))

    def _fail(self, error: MvcError) -> None:
        """The processes hear of it from the coordinator, and may end by themselves."""
        self._failure = error
        self._await("", _PATIENCE)

    def _happened(self, event: Mapping[str, Any]) -> None:
        kind = event["event"]
        if self._failure is None and (self._finished is None or kind == "pushes"):
            self._patience.renew()
        if kind in {"alive", "pushes"}:
            return
        if kind == "pushed":
            if self._finished is not None:
                self._finished["push"] = {k: v for k, v in event.items() if k != "event"}
            return
        if kind == "failed":
            self._fail(_error(event))
        elif kind == "listening":
            self._port = int(event["port"])
            self._await(self._name(None), self._timeout)
            if len(self._processes) == 1 and self._finished is None:
                for worker in range(self._wanted.workers):
                    self._start_worker(worker)
        elif kind == "begins":
            self._begun, self._meeting = True, False
        elif kind == "refused":
            self._gone[event["worker"]] = str(event["reason"])
        elif kind == "finished":
            self._finished = dict(event)
            self._await("", self._timeout + START)
            self._give_up()
        elif kind == "lost" and event.get("deaf"):
            self._deaf.add(event["worker"])
        elif kind == "joined":
            self._deaf.discard(event["worker"])
            self._gone.pop(event["worker"], None)
            if event["worker"] in self._again:
                self._again[event["worker"]] = True
        if kind != "failed":
            self._tell(event)

    def _give_up(self) -> None:
        """Ends the processes that the training has ended without."""
        away = {worker for worker, came in self._again.items() if not came}
        for worker in sorted((self._deaf | away) & self._processes.keys()):
            self._tell({"event": "given up", "what": self._name(worker)})
            self._processes[worker].end()

    def _ended(self, worker: int | None, code: int) -> None:
        """A process has ended: it is started again, or that is the coordinator's matter, or fails.

        Once a worker takes part, the coordinator knows what to do without it, and reports it.
        """
        del self._processes[worker]
        if self._failure is not None or (code == 0 and self._finished is not None):
            return
        if code < 0 and self._finished is None and self._left > 0:
            self._left -= 1
            self._tell({"event": "restarted", "worker": worker, "by": _signal(code)})
            if worker is None:
                self._start_coordinator(again=self._begun)
            else:
                self._again[worker] = False
                self._start_worker(worker)
            return
        if self._finished is not None and worker in self._again:
            self._tell({"event": "lost", "worker": worker, "reason": f"it {_how(code)}"})
            return
        if worker is not None and (code == REFUSED or self._reported(worker)):
            self._gone.setdefault(worker, f"worker {worker} {_how(code)}" if code else None)
            if self._meeting and self._processes.keys() == {None}:
                self._fail(
                    CannotDistribute(
                        f"no worker is left: worker {worker} {_how(code)}",
                        hint="--option resume=true goes on from the last round",
                    )
                )
                self._processes[None].kill()
            return
        who = "the coordinator" if worker is None else f"worker {worker}"
        advice = _advice(worker, code, self._wanted.script)
        self._fail(CannotDistribute(f"{who} {_how(code)}", hint=advice))
        if None in self._processes:
            self._processes[None].kill()

    def _reported(self, worker: int) -> bool:
        """Whether the coordinator knows, or will know, that this worker has failed."""
        if self._finished is None:
            return self._begun
        return str(worker) in self._finished["refused"]

    def _start_coordinator(self, **again: bool) -> None:
        """``again``: whether the coordinator before this one had begun."""
        job = {**self._wanted.job, **again, "port": self._port, "run": self._run}
        job |= {"workers": self._wanted.workers, "gone": self._gone}
        job["start"] = 0.0 if again else START  # workers that are there already need none
        self._meeting = bool(again)
        self._processes[None] = start_coordinator(job, self._events.put, self._token)
        self._await(self._name(None), self._timeout + START)

    def _start_worker(self, worker: int) -> None:
        wanted = self._wanted
        variables = {
            ADDRESS: f"{self._wanted.job.get('host', '127.0.0.1')}:{self._port}",
            "RANK": str(worker),
            "LOCAL_RANK": str(worker),
            "WORLD_SIZE": str(wanted.workers),
            TOKEN: self._token,
        }
        self._processes[worker] = Child(
            ["mvc.distributed.runner.script", wanted.script, *wanted.arguments],
            variables,
            lambda event: self._events.put({**event, "worker": worker}),
            stdout=sys.__stderr__.fileno() if sys.__stderr__ else None,
        )


def _error(event: Mapping[str, Any]) -> MvcError:
    kind = class_named(str(event.get("kind"))) or CannotDistribute
    return kind(str(event.get("message")), hint=event.get("hint"))


def _signal(code: int) -> str:
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"


def _how(code: int) -> str:
    if code < 0:
        return f"was killed by {_signal(code)}"
    if code == 0:
        return "ended before the training did"
    return f"failed with exit code {code}"


def _advice(worker: int | None, code: int, script: str) -> str | None:
    if code < 0:
        return "--option restarts=N allows more"
    if worker is None:
        return None
    if code == 0:
        return f"{script} must train in 'with mvc.distributed.join(model) as worker:'"
    return "what it printed is above"
