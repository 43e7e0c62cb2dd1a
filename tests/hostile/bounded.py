"""Runs a function in a fresh process under limits; says what it raised and what it took."""

from __future__ import annotations

import importlib
import json
import resource
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from mvc.errors import MvcError

ROOT = Path(__file__).parents[2]
MIB = 1 << 20
_SPACE = 8 << 30  # of addresses: far above what is asserted, so that the assertion speaks


@dataclass(frozen=True)
class Outcome:
    """``error``: the exception's class, empty for none. ``peak``: bytes of memory it took
    beyond what the imports had; ``seconds`` of processor, so that other work does not matter."""

    error: str
    message: str
    clean: bool
    peak: int
    seconds: float

    def within(self, megabytes: int, seconds: float) -> Outcome:
        """Asserts that only an MvcError, or none, was raised, within these limits."""
        assert self.clean, f"{self.error}: {self.message}"
        assert self.peak <= megabytes * MIB, f"{self.peak >> 20} MiB, {self.error}"
        assert self.seconds <= seconds, f"{self.seconds:.1f} s, {self.error}"
        return self


def bounded(function: str, *arguments: object, timeout: float = 600) -> Outcome:
    """``function`` is ``module:name``; arguments are plain values or paths."""
    plain = [str(a) if isinstance(a, Path) else a for a in arguments]
    done = subprocess.run(
        [sys.executable, "-m", "tests.hostile.bounded", function, json.dumps(plain)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert done.returncode == 0, f"the process ended with {done.returncode}: {done.stderr[-2000:]}"
    return Outcome(**json.loads(done.stdout.splitlines()[-1]))


def peak_memory() -> int:
    """Bytes that were ever resident; not ru_maxrss, which an exec takes over."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) << 10
    raise AssertionError("VmHWM is missing")


def main() -> None:
    function, text = sys.argv[1:]
    module, _, name = function.partition(":")
    target = getattr(importlib.import_module(module), name)
    arguments = json.loads(text)
    resource.setrlimit(resource.RLIMIT_AS, (_SPACE, _SPACE))
    before, began = peak_memory(), time.process_time()
    error: BaseException | None = None
    try:
        target(*arguments)
    except BaseException as raised:
        error = raised
    outcome = Outcome(
        type(error).__name__ if error else "",
        str(error) if error else "",
        error is None or isinstance(error, MvcError),
        peak_memory() - before,
        time.process_time() - began,
    )
    print(json.dumps(outcome.__dict__))


if __name__ == "__main__":
    main()
