"""Processes that are cheap to start: forks of one that has imported everything already.

The one that forks has no threads and no open repository. Children send it pickled values
through a pipe; a value that a killed child had sent in part only is not received.
"""

from __future__ import annotations

import os
import pickle
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from mvc.api.repository import Repository
from tests.crash import maintenance

Send = Callable[[Any], None]


def warm_up(folder: Path) -> None:
    """Imports what the verbs import late, and runs them once."""
    state = {"w": np.arange(3000, dtype=np.float32)}
    with Repository.init(folder) as repo:
        made = repo.commit(state)
        repo.commit({"w": state["w"] + 1})
        repo.checkout(made.id)
        repo.undo()
        maintenance.repack(repo.handle, 1)
        maintenance.collect(repo.handle)
        repo.storage.fsck(full=True)


@dataclass
class Child:
    pid: int
    pipe: int
    _data: bytearray = field(default_factory=bytearray)
    _open: bool = True

    def listen(self, seconds: float) -> None:
        """Takes what the child sends for that long, or until it has ended."""
        end = time.monotonic() + seconds
        while self._open and (left := end - time.monotonic()) > 0:
            self._take(left)

    def ended(self, seconds: float) -> bool:
        """Whether the child has said all within that time."""
        self.listen(seconds)
        return not self._open

    def hear(self) -> None:
        """Waits for the first that the child has to say."""
        if self._open:
            self._take(None)

    def _take(self, seconds: float | None) -> None:
        if select.select([self.pipe], [], [], seconds)[0]:
            data = os.read(self.pipe, 1 << 20)
            self._data += data
            self._open = bool(data)

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)

    def end(self) -> tuple[list[Any], int]:
        """What it has sent in all, and its exit status (negative: the signal)."""
        while self._open:
            self._take(None)
        os.close(self.pipe)
        _, status = os.waitpid(self.pid, 0)
        return self._received(), os.waitstatus_to_exitcode(status)

    def _received(self) -> list[Any]:
        values, at = [], 0
        while len(self._data) - at >= 4:
            length = int.from_bytes(self._data[at : at + 4], "big")
            if len(self._data) - at - 4 < length:
                break
            values.append(pickle.loads(self._data[at + 4 : at + 4 + length]))
            at += 4 + length
        return values


def fork(act: Callable[[Send], None]) -> Child:
    """A child that runs ``act``; it ends with status 1 and a traceback if that raises."""
    sys.stdout.flush()
    sys.stderr.flush()
    reading, writing = os.pipe()
    pid = os.fork()
    if pid:
        os.close(writing)
        return Child(pid, reading)
    status = 1
    try:
        os.close(reading)

        def send(value: Any) -> None:
            data = pickle.dumps(value)
            left = memoryview(len(data).to_bytes(4, "big") + data)
            while left:
                left = left[os.write(writing, left) :]

        act(send)
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


def run(act: Callable[[Send], None]) -> list[Any]:
    """Runs ``act`` in a child to its end; what it sent. AssertionError if it failed."""
    values, status = fork(act).end()
    assert status == 0, f"a child ended with {status}"
    return values
