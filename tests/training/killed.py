"""Programs that train until they are killed, and what they said before."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

__all__ = ["lines_until_killed"]

_PROJECT = Path(__file__).parents[2]


def lines_until_killed(
    module: str, *arguments: object, enough: Callable[[list[bytes]], bool], delay: float = 0.0
) -> list[bytes]:
    """Starts ``python -m module``, and kills it ``delay`` seconds after it has said enough.

    All lines that it has said, the one aside in the middle of which it died. It has one thread for
    arithmetic, so that a training in this process with one thread has the same bits.
    """
    child = subprocess.Popen(
        [sys.executable, "-m", module, *map(str, arguments)],
        cwd=_PROJECT, stdout=subprocess.PIPE, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert child.stdout is not None
    lines: list[bytes] = []
    try:
        for line in child.stdout:
            lines.append(line)
            if enough(lines):
                break
        signal.sigtimedwait([], delay)
        child.kill()
        lines += child.stdout.readlines()
    finally:
        child.kill()
        child.stdout.close()
        child.wait()
    assert child.returncode == -signal.SIGKILL, b"".join(lines[-5:])
    return [line for line in lines if line.endswith(b"\n")]
