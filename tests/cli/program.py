"""Runs command lines in this process, as the installed program would."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from mvc.api.repository import Repository
from mvc.cli.main import run

ROOT = Path(__file__).parents[2]


@dataclass
class Result:
    code: int
    out: str
    err: str

    @property
    def json(self) -> dict:
        return json.loads(self.out)


class Mvc:
    """``mvc("log", "-n", 1)`` in a folder of its own; fails unless the code is as expected.

    With ``code=None`` any is.
    """

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder = folder
        self._capsys = capsys

    def __call__(self, *arguments: object, code: int | None = 0) -> Result:
        self._capsys.readouterr()
        got = run([str(a) for a in arguments])
        captured = self._capsys.readouterr()
        assert code in {None, got}, f"exit code {got}: {captured.out}{captured.err}"
        return Result(got, captured.out, captured.err)

    def commit(self, value: float = 0.0, **tensors: np.ndarray) -> str:
        """Writes model.safetensors and commits it; returns the full id."""
        self.write(value, **tensors)
        result = self("commit", "model.safetensors", "-m", f"value {value}", "--json")
        return result.json["commit"]["id"]

    def write(self, value: float = 0.0, name: str = "model.safetensors", **tensors) -> Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        save_file(state(value) | tensors, str(path))
        return path


def state(value: float = 0.0) -> dict[str, np.ndarray]:
    """Three tensors; ``value`` changes the first element of one of them."""
    weight = np.arange(12, dtype=np.float32).reshape(3, 4)
    weight[0, 0] = value
    return {
        "layer.weight": weight,
        "layer.bias": np.zeros(3, np.float32),
        "steps": np.array(7, np.int64),
    }


def record(mvc: Mvc, *values: float) -> None:
    """Commits states of Python; no file is written."""
    record_states(mvc.folder, *values)


def record_states(folder: Path, *values: float) -> None:
    """The same in any folder."""
    with Repository.open(folder) as repo:
        for value in values:
            repo.commit({"w": np.full(3, value)}, message=f"value {value}")


def python(script: str, *arguments: str, cwd: Path = ROOT) -> subprocess.CompletedProcess:
    """A script in a process of its own."""
    return subprocess.run(
        [sys.executable, "-c", script, *arguments],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )


def imports(modules: tuple[str, ...], arguments: list[str], cwd: Path) -> str:
    """The exit code of a command line, and which of ``modules`` are imported then."""
    done = python(
        f"import sys; from mvc.cli.main import run; code = run({arguments!r}); "
        f"print(code, [m for m in {modules} if m in sys.modules], file=sys.stderr)",
        cwd=cwd,
    )
    return done.stderr.splitlines()[-1]


def spawn(
    *arguments: object,
    cwd: Path,
    env: dict[str, str] | None = None,
    binary: bool = False,
    **options,
) -> subprocess.CompletedProcess:
    """The program as a process of its own; its output is text, unless ``binary``."""
    return subprocess.run(
        [sys.executable, "-m", "mvc", *map(str, arguments)],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT), **(env or {})},
        capture_output=True,
        text=not binary,
        timeout=120,
        **options,
    )
