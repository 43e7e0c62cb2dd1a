"""Starts the processes of a training, restarts those that are killed, leaves none behind.

The coordinator and each worker are processes of their own. Each has a pipe of this process as its
stdin and ends when that is closed, so all end with this one, whatever becomes of it. The
coordinator tells what happens as JSON, a line each, on its stdout.
"""

from __future__ import annotations

import json
import os
import queue
import secrets
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Self
from uuid import uuid4

from msgspec import Struct

from mvc import errors
from mvc.distributed.runner.settings import TOKEN
from mvc.errors import CannotDistribute, MvcError, UnknownPath
from mvc.io.process import cpu_count

__all__ = ["ADDRESS", "REFUSED", "CoordinatorProcess", "Dismissed", "Launch", "Tell", "launch"]

ADDRESS = "MVC_COORDINATOR"
"""The variable that tells a worker where the coordinator is: host:port."""

REFUSED = 23
"""The exit code of a worker that the coordinator has ended; the coordinator says why."""

Tell = Callable[[Mapping[str, Any]], None]

_PATIENCE = 10.0  # seconds that processes may take to end by themselves


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


class CoordinatorProcess:
    """The coordinator's process; ``tell`` gets its events in a thread of their own.

    The last call is ``{"event": "ended", "code": exit code}``.
    """

    def __init__(self, job: Mapping[str, Any], tell: Tell, token: str) -> None:
        command = [sys.executable, "-m", "mvc.distributed.runner.coordinator", json.dumps(job)]
        self.process = subprocess.Popen(  # noqa: S603 (this program)
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=_environment({TOKEN: token}),
            start_new_session=True,
        )
        threading.Thread(target=self._follow, args=(tell,), daemon=True).start()

    def _follow(self, tell: Tell) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as lines:
            for line in lines:
                with suppress(ValueError):
                    event = json.loads(line)
                    if isinstance(event, dict) and "event" in event:
                        tell(event)
        tell({"event": "ended", "code": self.process.wait()})


def launch(wanted: Launch, tell: Tell | None = None) -> dict[str, Any]:
    """Trains; returns the coordinator's last event, ``finished``.

    ``tell`` is called with every event: ``listening``, ``joined``, ``lost``, ``round``,
    ``restarted``, ``finished``. Raises WrongUsage, UnknownPath, CannotDistribute and whatever the
    coordinator was refused by. No process is left when it returns or raises.
    """
    if not Path(wanted.script).is_file():
        raise UnknownPath(f"there is no file {wanted.script}")
    with _Run(wanted, tell or (lambda _: None)) as run:
        return run.follow()


class _Run:
    def __init__(self, wanted: Launch, tell: Tell) -> None:
        self._wanted, self._tell = wanted, tell
        self._events: queue.Queue[Mapping[str, Any]] = queue.Queue()
        self._processes: dict[int | None, subprocess.Popen[bytes]] = {}
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

    def __enter__(self) -> Self:
        self._start_coordinator()
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes.values():
            if process.stdin is not None:
                with suppress(OSError):
                    process.stdin.close()
        for process in self._processes.values():
            process.kill()
            process.wait()

    def follow(self) -> dict[str, Any]:
        """Handles events until all processes have ended."""
        while self._processes:
            try:
                event = self._events.get(timeout=_PATIENCE if self._failure else None)
            except queue.Empty:
                break
            if event["event"] == "ended":
                self._ended(event.get("worker"), int(event["code"]))
            else:
                self._happened(event)
            if self._failure is not None and None not in self._processes:
                break
        if self._failure is not None:
            raise self._failure
        assert self._finished is not None
        return self._finished

    def _happened(self, event: Mapping[str, Any]) -> None:
        kind = event["event"]
        if kind == "failed":
            self._failure = _error(event)
        elif kind == "listening":
            self._port = int(event["port"])
            if len(self._processes) == 1 and self._finished is None:
                for worker in range(self._wanted.workers):
                    self._start_worker(worker)
        elif kind == "begins":
            self._begun, self._meeting = True, False
        elif kind == "refused":
            self._gone[event["worker"]] = str(event["reason"])
        elif kind == "finished":
            self._finished = dict(event)
            for worker, came in self._again.items():
                if not came and worker in self._processes:  # it would wait for nobody
                    self._processes[worker].kill()
        elif kind == "joined":
            self._gone.pop(event["worker"], None)
            if event["worker"] in self._again:
                self._again[event["worker"]] = True
        if kind != "failed":
            self._tell(event)

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
                self._failure = CannotDistribute(
                    f"no worker is left: worker {worker} {_how(code)}",
                    hint="--resume goes on from the last round",
                )
                self._processes[None].kill()
            return
        who = "the coordinator" if worker is None else f"worker {worker}"
        self._failure = CannotDistribute(
            f"{who} {_how(code)}", hint=_advice(worker, code, self._wanted.script)
        )
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
        self._meeting = bool(again)
        self._processes[None] = CoordinatorProcess(job, self._events.put, self._token).process

    def _start_worker(self, worker: int) -> None:
        wanted = self._wanted
        variables = {
            ADDRESS: f"{self._wanted.job.get('host', '127.0.0.1')}:{self._port}",
            "RANK": str(worker),
            "LOCAL_RANK": str(worker),
            "WORLD_SIZE": str(wanted.workers),
            TOKEN: self._token,
        }
        command = [sys.executable, "-m", "mvc.distributed.runner.script", wanted.script]
        process = subprocess.Popen(  # noqa: S603 (this program)
            [*command, *wanted.arguments],
            stdin=subprocess.PIPE,
            stdout=sys.__stderr__.fileno() if sys.__stderr__ else None,
            env=_environment(variables),
            start_new_session=True,  # an interrupt is for the command, which then ends them all
        )
        self._processes[worker] = process

        def wait() -> None:
            self._events.put({"event": "ended", "worker": worker, "code": process.wait()})

        threading.Thread(target=wait, daemon=True).start()


def _environment(variables: Mapping[str, str]) -> dict[str, str]:
    """The environment of the processes; they import this very package."""
    home = str(Path(__file__).parents[3])
    kept = [part for part in os.environ.get("PYTHONPATH", "").split(os.pathsep) if part]
    threads = max(1, cpu_count() // max(1, int(variables.get("WORLD_SIZE", "1"))))
    return {
        "OMP_NUM_THREADS": str(threads),
        "TORCH_CPP_LOG_LEVEL": "ERROR",  # each attempt to reach a lost process fills a screen
        **os.environ,
        "PYTHONPATH": os.pathsep.join(dict.fromkeys([home, *kept])),
        **variables,
    }


def _error(event: Mapping[str, Any]) -> MvcError:
    """The error that the coordinator reports."""
    found = getattr(errors, str(event.get("kind")), CannotDistribute)
    kind = found if isinstance(found, type) and issubclass(found, MvcError) else CannotDistribute
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
        return "--restarts allows more"
    if worker is None:
        return None
    if code == 0:
        return f"{script} must train in 'with mvc.distributed.join(model) as worker:'"
    return "what it printed is above"
