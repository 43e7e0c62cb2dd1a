"""What a commit and a checkout cost as the history of a bf16 model grows.

    python -m tests.benchmarks.bench_long_run [--megabytes 201] [--versions 60] [--layout skip:4]

24 bf16 tensors of which 16 % of the elements change with every version, from the command line;
every figure is of whole processes. Beside each version the same file goes to ``dvc`` if that is
installed, else through a plain copy with fsync. Nothing here asserts a time.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file

import mvc
from tests.benchmarks.measuring import bytes_below, seconds

TENSORS = 24
CHANGED = 0.16
Times = dict[str, list[float]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--megabytes", type=float, default=201)
    parser.add_argument("--versions", type=int, default=60)
    parser.add_argument("--layout", default="skip:4", help="store.layout of the repository")
    parser.add_argument("--folder", type=Path, help="where to work, by default a temporary one")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="mvc-bench-", dir=options.folder) as folder:
        _run(Path(folder), options.megabytes, options.versions, options.layout)


def _run(place: Path, megabytes: float, versions: int, layout: str) -> None:
    beside = _Dvc(place / "dvc") if shutil.which("dvc") else _Copy(place / "copy")
    (place / "mvc").mkdir()
    _mvc(place / "mvc", "init")
    _mvc(place / "mvc", "config", "store.layout", layout)
    took: Times = {"commit": [], "checkout": [], beside.name: [], f"{beside.name} checkout": []}
    raw = 0
    folder, out = place / "mvc", place / "out.safetensors"
    model = folder / "m.safetensors"
    for number, state in enumerate(_states(megabytes, versions), 1):
        save_file(state, model)
        raw += model.stat().st_size
        took[beside.name].append(seconds(beside.add, model, number))
        took["commit"].append(seconds(_mvc, folder, "commit", model.name, "-m", str(number)))
        back = ("checkout", "HEAD", model.name, "-o", str(out))
        took["checkout"].append(seconds(_mvc, folder, *back))
        if out.read_bytes() != model.read_bytes():
            raise SystemExit(f"version {number} came back with other bytes")
        out.unlink()
        took[f"{beside.name} checkout"].append(seconds(beside.back, number))
        print(number, *(f"{name} {times[-1]:.2f} s" for name, times in took.items()), flush=True)
    _print(took, beside.name)
    stored = bytes_below(place / "mvc")
    print(f"stored {stored / 1e6:.1f} MB of {raw / 1e6:.1f} MB ({layout})")
    _mvc(place / "mvc", "stats", quiet=False)


def _print(took: Times, other: str) -> None:
    for name, times in took.items():
        first = statistics.median(times[:3])
        print(
            f"{name:<16} first three {first:.2f} s, mean {statistics.mean(times):.2f} s, "
            f"slowest {max(times):.2f} s = {max(times) / first:.2f} x the first   budget 1.8"
        )
    for name, against in (("commit", other), ("checkout", f"{other} checkout")):
        mean = statistics.mean(took[name]) / statistics.mean(took[against])
        worst = max(a / b for a, b in zip(took[name], took[against], strict=True))
        print(f"{name} beside {against}: mean {mean:.2f} x, worst {worst:.2f} x   budget 1.5, 2.5")


def _states(megabytes: float, versions: int) -> Iterator[dict[str, torch.Tensor]]:
    """Weights, and each time 16 % of them moved by a bf16 step or more."""
    rng = np.random.default_rng(0)
    size = int(megabytes * 1e6 / 2 / TENSORS)
    weights = [rng.standard_normal(size, np.float32) * np.float32(0.02) for _ in range(TENSORS)]
    for _ in range(versions):
        yield {f"layer{i:02}": torch.from_numpy(w).bfloat16() for i, w in enumerate(weights)}
        for w in weights:
            moved = rng.random(size, np.float32) < CHANGED
            step = 1 + np.float32(2**-7) * rng.choice(np.float32([-1, 1]), size)
            np.multiply(w, step, out=w, where=moved)


def _mvc(folder: Path, *arguments: str, quiet: bool = True) -> None:
    environment = dict(os.environ, PYTHONPATH=str(Path(mvc.__file__).parent.parent))
    command = [sys.executable, "-m", "mvc", *(["-q"] if quiet else []), *arguments]
    subprocess.run(
        command, cwd=folder, env=environment, check=True,
        stdout=subprocess.DEVNULL if quiet else None,
    )  # fmt: skip


class _Copy:
    """A copy of each version, durable."""

    name = "copy"

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir()

    def add(self, model: Path, number: int) -> None:
        self._copy(model, self._folder / f"{number}")

    def back(self, number: int) -> None:
        self._copy(self._folder / f"{number}", self._folder / "out")

    def _copy(self, source: Path, target: Path) -> None:
        with source.open("rb") as old, target.open("wb") as new:
            shutil.copyfileobj(old, new, 1 << 20)
            new.flush()
            os.fsync(new.fileno())


class _Dvc:
    """``dvc add`` of each version, and ``dvc checkout`` of it."""

    name = "dvc"

    def __init__(self, folder: Path) -> None:
        self._model = folder / "m.safetensors"
        folder.mkdir()
        self._dvc("init", "--no-scm")

    def add(self, model: Path, number: int) -> None:
        shutil.copyfile(model, self._model)
        self._dvc("add", "-q", self._model.name)

    def back(self, number: int) -> None:
        self._model.unlink()
        self._dvc("checkout", "-q")

    def _dvc(self, *arguments: str) -> None:
        subprocess.run(
            ["dvc", *arguments], cwd=self._model.parent, check=True, stdout=subprocess.DEVNULL
        )


if __name__ == "__main__":
    main()
