"""What the benchmarks share: folders to work in, clocks, whole processes, weights, tables."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np

__all__ = ["Cost", "bytes_below", "first", "folder", "head", "mvc", "process", "program", "row",
           "seconds", "step", "synced"]  # fmt: skip


@contextmanager
def folder(given: Path | None = None) -> Iterator[Path]:
    """``given``, which is made where it is missing and stays; else a temporary folder."""
    if given is not None:
        given.mkdir(parents=True, exist_ok=True)
        yield given
        return
    with tempfile.TemporaryDirectory(prefix="mvc-bench-") as made:
        yield Path(made)


def bytes_below(root: Path) -> int:
    """All files of a repository's own folder."""
    return sum(file.stat().st_size for file in (root / ".mvc").rglob("*") if file.is_file())


# -- clocks and processes ------------------------------------------------------------------


def seconds(work: Callable[..., object], *arguments: object) -> float:
    begun = time.perf_counter()
    work(*arguments)
    return time.perf_counter() - begun


class Cost(NamedTuple):
    """Seconds, seconds of processors, peak resident megabytes."""

    wall: float
    processor: float
    peak: float


_MEASURE = """
import resource, subprocess, sys, time
begun = time.perf_counter()
subprocess.run(sys.argv[1:], check=True, stdout=-3)
used = resource.getrusage(resource.RUSAGE_CHILDREN)
print(time.perf_counter() - begun, used.ru_utime + used.ru_stime, used.ru_maxrss)
"""


def process(
    *line: str, cwd: Path | None = None, environment: Mapping[str, str] | None = None
) -> Cost:
    """What a whole process of Python takes: ``python LINE...``."""
    return program(sys.executable, *line, cwd=cwd, environment=environment)


def program(
    *line: str, cwd: Path | None = None, environment: Mapping[str, str] | None = None
) -> Cost:
    """What a whole process takes."""
    command = [sys.executable, "-c", _MEASURE, *line]
    out = subprocess.run(
        command, cwd=cwd, env=environment, check=True, stdout=subprocess.PIPE, text=True
    ).stdout
    wall, processor, peak = out.split()
    return Cost(float(wall), float(processor), int(peak) / 1024)


def synced(command: str, *arguments: str, cwd: Path | None = None) -> Cost:
    """What a command of the shell and then ``sync`` take."""
    os.sync()
    return program("sh", "-c", f"{command} && sync", *arguments, cwd=cwd)


def mvc(root: Path, *arguments: str) -> Cost:
    """What a command takes in a repository."""
    return process("-m", "mvc", "-C", str(root), *arguments)


# -- weights -------------------------------------------------------------------------------


def first() -> dict[str, np.ndarray]:
    """Four tensors, 2 KiB together."""
    random = np.random.default_rng(0)
    return {f"layer{i}": random.standard_normal((8, 16)).astype(np.float32) for i in range(4)}


def step(state: dict[str, np.ndarray], random: np.random.Generator) -> dict[str, np.ndarray]:
    """Every tensor changed a little."""
    return {
        k: v + (1e-4 * random.standard_normal(v.shape)).astype(np.float32) for k, v in state.items()
    }


# -- tables --------------------------------------------------------------------------------


def head(*titles: str) -> None:
    print(f"\n| {' | '.join(titles)} |\n|---|{'--:|' * (len(titles) - 1)}", flush=True)


def row(*cells: str) -> None:
    print(f"| {' | '.join(cells)} |", flush=True)
