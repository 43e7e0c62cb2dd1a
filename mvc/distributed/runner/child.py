"""A process of a training, in a process group of its own that ends with it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any

from mvc.system import cpu_count, import_path

Tell = Callable[[Mapping[str, Any]], None]

_GRACE = 3.0  # seconds between SIGTERM and SIGKILL
_REAPING = 5.0  # seconds that the kernel may take to end a process that was killed


class Child:
    """``python -m MODULE ARGUMENTS``. Its stdin is a pipe of this process.

    ``tell`` is called in a thread of its own: with the events on the process's stdout if that is
    a pipe, JSON a line each, and at last with ``{"event": "ended", "code": exit code}``.
    """

    def __init__(
        self,
        command: Iterable[str],
        variables: Mapping[str, str],
        tell: Tell,
        *,
        stdout: int | None = subprocess.PIPE,
    ) -> None:
        self._process = subprocess.Popen(  # noqa: S603 (this program)
            # -P: a file of the working folder that is named like a package is not imported.
            [sys.executable, "-P", "-m", *command],
            stdin=subprocess.PIPE,
            stdout=stdout,
            env=_environment(variables),
            start_new_session=True,  # an interrupt is for the command, which then ends them all
        )
        self.pid = self._process.pid
        self._ended = threading.Event()
        threading.Thread(target=self._follow, args=(tell,), daemon=True).start()

    def _follow(self, tell: Tell) -> None:
        if self._process.stdout is not None:
            with self._process.stdout as lines:
                for line in lines:
                    with suppress(ValueError):
                        event = json.loads(line)
                        if isinstance(event, dict) and "event" in event:
                            tell(event)
        code = self._process.wait()
        self._signal(signal.SIGKILL)  # the rest of the group, as the workers of a data loader
        self._ended.set()
        tell({"event": "ended", "code": code})

    def _signal(self, number: int) -> None:
        if not self._ended.is_set():
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, number)

    def terminate(self) -> None:
        """Asks the group to end, by SIGTERM."""
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """Ends the group, even if it is stopped."""
        self._signal(signal.SIGKILL)

    def end(self) -> None:
        """Ends the group in the background: SIGTERM, and SIGKILL a few seconds later."""
        self.terminate()
        timer = threading.Timer(_GRACE, self.kill)
        timer.daemon = True
        timer.start()

    def wait(self, until: float) -> bool:
        """Whether it has ended by then, in seconds of the monotonic clock."""
        return self._ended.wait(max(0.0, until - time.monotonic()))

    def close(self) -> None:
        """Closes the pipe that the process lives by."""
        assert self._process.stdin is not None
        with suppress(OSError):
            self._process.stdin.close()


def end_all(children: Iterable[Child]) -> list[Child]:
    """Ends all of them; returns those that the kernel does not end, as in a call to a dead disk."""
    children = list(children)
    try:
        for child in children:
            child.terminate()
        until = time.monotonic() + _GRACE
        for child in children:
            child.wait(until)
    finally:  # also after a second Ctrl-C
        for child in children:
            child.kill()
            child.close()
    until = time.monotonic() + _REAPING
    return [child for child in children if not child.wait(until)]


def _environment(variables: Mapping[str, str]) -> dict[str, str]:
    """The environment of the processes; they import this very package."""
    threads = max(1, cpu_count() // max(1, int(variables.get("WORLD_SIZE", "1"))))
    return {
        "OMP_NUM_THREADS": str(threads),
        **os.environ,
        "PYTHONPATH": import_path(),
        **variables,
    }
