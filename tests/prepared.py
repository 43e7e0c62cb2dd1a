"""Trainings that are made again in forks of one process, which has imported torch already.

A process of ``mvc.recipes.worker`` imports for seconds before it trains for milliseconds.
Where a test is about what a replay does, and not about how its process starts, the fixture
``prepared`` gives it a fork of a process that has the imports behind it: with the arguments,
variables, folder, streams and pipe that it asked for, and a child of the tests' process as any
other.

This module uses ``Popen._execute_child`` and ``_close_pipe_fds``, which are private.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import inspect
import json
import os
import runpy
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

__all__ = ["COMMAND", "Forking", "forking", "popen", "prepared", "serve"]

_PROJECT = str(Path(__file__).parents[1])
_WORKER = "mvc.recipes.worker"
COMMAND = [sys.executable, "-P", "-m", _WORKER]
_PR_SET_CHILD_SUBREAPER = 36
_EXECUTE = inspect.signature(subprocess.Popen._execute_child)


class Forking:
    """The process that forks; it starts with the first fork and ends with ``end``."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._variables: dict[str, str] = {}

    def serves(self, args: Any, variables: Mapping[str, str] | None) -> bool:
        """Whether a fork can do what the process would; variables read at a start must agree."""
        if list(args)[: len(COMMAND)] != COMMAND or variables is None:
            return False
        if self._process is None:
            self._start(variables)
        return _at_start(variables) == _at_start(self._variables)

    def fork(self, job: Mapping[str, Any], fds: list[int]) -> int:
        """The id of a new child of this process."""
        # Who forks it ends at once: the child goes to the next ancestor that wants orphans.
        prctl = ctypes.CDLL(None).prctl
        prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        try:
            socket.send_fds(self._socket, [json.dumps(job).encode()], fds)
            return int(self._socket.recv(32))
        finally:
            prctl(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)

    def end(self) -> None:
        if self._process is not None:
            self._socket.close()
            self._process.wait()

    def _start(self, variables: Mapping[str, str]) -> None:
        self._variables = dict(variables)
        self._socket, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with its:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.prepared", str(its.fileno())],
                cwd=_PROJECT,
                env=self._variables,
                pass_fds=[its.fileno()],
                stdin=subprocess.DEVNULL,
            )


def _at_start(variables: Mapping[str, str]) -> dict[str, str]:
    from mvc.models.environment import chooses_kernels

    return {
        name: value
        for name, value in variables.items()
        if chooses_kernels(name) or name == "PYTHONHASHSEED"
    }


class _Popen(subprocess.Popen[Any]):
    """``Popen``, but replays are forks."""

    forking: Forking

    def _execute_child(self, *given: Any) -> None:
        named = _EXECUTE.bind(self, *given).arguments
        args, variables = named["args"], named["env"]
        if not self.forking.serves(args, variables):
            super()._execute_child(*given)
            return
        pipes = [named[name] for name in ("p2cread", "c2pwrite", "errwrite")]
        theirs = [number if pipe == -1 else pipe for number, pipe in enumerate(pipes)]
        theirs += named["pass_fds"]
        job = {
            "args": args[len(COMMAND) :],
            "variables": dict(variables),
            "folder": str(named["cwd"]),
        }
        self.pid = self.forking.fork(job, theirs)
        self._child_created = True
        ends = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
        self._close_pipe_fds(*(named[name] for name in ends))


@pytest.fixture(scope="session")
def forking() -> Iterator[Forking]:
    made = Forking()
    yield made
    made.end()


@pytest.fixture
def prepared(forking: Forking, monkeypatch: pytest.MonkeyPatch) -> None:
    """Replays of this test run in forks."""
    monkeypatch.setattr(subprocess, "Popen", popen(forking))


def popen(forking: Forking) -> type[subprocess.Popen[Any]]:
    """A ``Popen`` whose replays are forks."""
    return type("Popen", (_Popen,), {"forking": forking})


# -- the process that forks ---------------------------------------------------------------------


def _next_job(forks: socket.socket) -> dict[str, Any]:
    """Returns in a new process for each job; in this one it does not return."""
    while True:
        data, fds, _, _ = socket.recv_fds(forks, 1 << 20, 4)
        if not data:
            sys.exit(0)
        ours, its = os.pipe()
        if (between := os.fork()) == 0:
            if (pid := os.fork()) != 0:
                os.write(its, str(pid).encode())
                os._exit(0)
            forks.close()
            *streams, pipe = fds
            for number, fd in enumerate(streams):
                os.dup2(fd, number)
            for fd in (*streams, ours, its):
                os.close(fd)
            job = dict(json.loads(data))
            job["args"][-1] = str(pipe)
            return job
        os.waitpid(between, 0)
        forks.send(os.read(ours, 32))
        for fd in (*fds, ours, its):
            os.close(fd)


def serve() -> None:
    """Forks for each job that comes through the socket of ``sys.argv[1]``."""
    forks = socket.socket(fileno=int(sys.argv[1]))
    importlib.import_module("torch._dynamo")  # the first optimizer imports it
    importlib.import_module(_WORKER)
    del sys.modules[_WORKER]  # it is run as a program
    gc.freeze()
    job = _next_job(forks)
    import numpy as np

    np.random.seed()  # as a new process: each has numbers of its own
    os.environ.clear()
    os.environ.update(job["variables"])
    os.chdir(job["folder"])
    paths = [path for path in sys.path if path != _PROJECT]
    given = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    sys.path[:] = [*given, *paths]  # -P: nothing is imported from the working folder
    sys.argv[1:] = job["args"]
    runpy.run_module(_WORKER, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    serve()
