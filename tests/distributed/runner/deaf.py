"""A training by the real command, in which something hangs; and what the command owes then."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import torch

from mvc.api.repository import Repository
from mvc.errors import UnknownTarget
from tests.cli.program import ROOT
from tests.distributed.runner import small
from tests.distributed.runner.team import global_models

TIMEOUT = 10
"""``--timeout`` of these trainings."""

ALLOWED = TIMEOUT + 30
"""Seconds from the moment at which something hangs to the end of the command."""


FGM = ("--option=rho=0.3", "--option=rate=0.05")


@dataclass(frozen=True)
class Ending:
    code: int
    err: str
    seconds: float
    """From the hang to the end of the command."""

    @property
    def last(self) -> str:
        """The line that says why; hints follow it."""
        return [line for line in self.err.splitlines() if line.startswith("mvc: ")][-1]


class Training:
    """``mvc train-distributed`` of the small script, in a repository of its own."""

    def __init__(
        self, folder: Path, *script: str, options: tuple[str, ...] = FGM, torchrun: bool = False
    ) -> None:
        Repository.init(folder).close()
        self.folder = folder
        self.mark = uuid4().hex
        command = [sys.executable, "-c", "from mvc.cli.main import main; main()"]
        command += ["train-distributed", small.__file__, "--workers=2"]
        command += [f"--option=timeout={TIMEOUT}", *options, "--"]
        if torchrun:
            command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
            command += ["--nproc-per-node=2", small.__file__]
        command += ["--pause=0.02", *script]
        self._err = (folder / "stderr").open("w+")
        self.process = subprocess.Popen(
            command,
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(ROOT), "MVC_TEST_MARK": self.mark},
            stderr=self._err,
            stdout=subprocess.DEVNULL,
            text=True,
            # A shell has what it starts in the background ignore it, and its children, too.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
        self._began, self._torchrun = time.time(), torchrun

    @property
    def err(self) -> str:
        return (self.folder / "stderr").read_text()

    def await_hang(self) -> float:
        """When something began to hang."""
        hung = self.folder / "hung"
        while not hung.exists():
            assert self.process.poll() is None, self.err
            assert time.time() < self._began + 60, self.err
            time.sleep(0.05)
        return hung.stat().st_mtime

    def finish(self, since: float | None = None) -> Ending:
        """Waits for the command, so long at most after the hang (``since``)."""
        try:
            since = since or self.await_hang()
            code = self.process.wait(max(0.0, since + ALLOWED - time.time()))
            return Ending(code, self.err, time.time() - since)
        finally:
            until = time.time() + (10 if self._torchrun else 0)
            while (left := self.processes()) and time.time() < until:
                time.sleep(0.1)
            for pid in left:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            assert not left, f"{left} are left: {self.err}"
            self.process.wait()
            self._err.close()

    def processes(self) -> list[int]:
        """Those of this training that live."""
        mark, found = f"MVC_TEST_MARK={self.mark}".encode(), []
        for path in Path("/proc").glob("[0-9]*/environ"):
            with suppress(OSError):
                if mark in path.read_bytes():
                    found.append(int(path.parent.name))
        return found

    def await_line(self, text: str) -> None:
        """Until the command has said so."""
        while text not in self.err:
            assert self.process.poll() is None, self.err
            time.sleep(0.05)

    def check(self) -> int:
        """The repository is sound, and every global model can be loaded; returns how many."""
        with Repository.open(self.folder) as repo:
            assert repo.storage.fsck(full=True).sound
        models = []
        with suppress(UnknownTarget):  # it never began
            models = global_models(self.folder)
        for state in models:
            small.make(state["0.weight"].shape[0]).load_state_dict(state)
            assert all(torch.isfinite(value.double()).all() for value in state.values())
        assert "Traceback" not in self.err
        return len(models)
