"""A program ``ssh`` for tests: it runs the command here, counts what goes through, and cuts it.

``install(folder)`` writes ``ssh`` and ``mvc`` there and returns the variables under which mvc
finds them. Each call adds a line of JSON to ``calls``: its arguments, the bytes each way, the
turns (bytes that go up after some came down). A file ``faults`` beside it says where to cut:
``{"up": N}`` or ``{"down": N}``; it counts for one call.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

__all__ = ["calls", "cut_next", "install"]

PROJECT = str(Path(__file__).parents[3])
_WITH_VALUE = set("BbcDEeFIiJLlmOopQRSWw")
"""Options of ssh that take a value."""


def install(folder: Path, python_path: str = PROJECT) -> dict[str, str]:
    """Variables: PATH, with ``folder`` in front."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, module, path in (
        ("ssh", "tests.remote.kit.ssh", PROJECT),
        ("mvc", "mvc", python_path),
    ):
        script = folder / name
        line = f'PYTHONPATH="{path}" exec "{sys.executable}" -P -m {module} "$@"'
        script.write_text(f"#!/bin/sh\n{line}\n")
        script.chmod(0o755)
    return {"PATH": f"{folder}:{os.environ['PATH']}", "FAKE_SSH": str(folder)}


def calls(folder: Path) -> list[dict[str, Any]]:
    """What was called so far."""
    path = folder / "calls"
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines()]


def cut_next(folder: Path, **limit: int) -> None:
    """The next call is cut after so many bytes ``up`` or ``down``."""
    (folder / "faults").write_text(json.dumps(limit))


class _Pipes:
    """Copies both ways between this process and the command, counts, and cuts."""

    def __init__(self, process: subprocess.Popen[bytes], limits: dict[str, int]) -> None:
        self.counts = {"up": 0, "down": 0}
        self.turns = 0
        self._limits, self._process, self._answering = limits, process, True

    def copy(self, direction: str, source: int, write: Callable[[bytes], object]) -> None:
        while data := os.read(source, 1 << 16):
            limit = self._limits.get(direction)
            if direction == "up" and self._answering:
                self._answering, self.turns = False, self.turns + 1
            elif direction == "down":
                self._answering = True
            left = len(data) if limit is None else limit - self.counts[direction]
            try:
                write(data[: max(0, left)])
            except OSError:
                return
            self.counts[direction] += min(len(data), max(0, left))
            if left <= len(data) and limit is not None:
                self._process.kill()
                return


def _command(arguments: list[str]) -> str:
    """What follows the host."""
    at = 0
    while arguments[at].startswith("-"):
        at += 2 if arguments[at][1:] in _WITH_VALUE else 1
    return " ".join(arguments[at + 1 :])


def _writer(out: IO[bytes]) -> Callable[[bytes], object]:
    def write(data: bytes) -> None:
        out.write(data)
        out.flush()

    return write


def _main() -> None:
    folder, arguments = Path(os.environ["FAKE_SSH"]), sys.argv[1:]
    faults = folder / "faults"
    limits = json.loads(faults.read_text()) if faults.exists() else {}
    faults.unlink(missing_ok=True)
    process = subprocess.Popen(
        ["/bin/sh", "-c", _command(arguments)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdin is not None and process.stdout is not None
    pipes, stdin = _Pipes(process, limits), process.stdin

    def upward() -> None:
        pipes.copy("up", 0, _writer(stdin))
        stdin.close()

    threading.Thread(target=upward, daemon=True).start()
    pipes.copy("down", process.stdout.fileno(), _writer(sys.stdout.buffer))
    status = process.wait()
    with (folder / "calls").open("a") as file:
        line = {"arguments": arguments, **pipes.counts, "turns": pipes.turns}
        file.write(json.dumps(line) + "\n")
    os._exit(255 if status < 0 else status)


if __name__ == "__main__":
    _main()
