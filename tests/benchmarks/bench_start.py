"""How long a command takes to start, beside the imports that it cannot do without.

    python -m tests.benchmarks.bench_start [--repeats 15]

Every figure is the median of interleaved runs of whole processes with compiled bytecode.
``commit`` is measured against ``python -c "import numpy, click"``, commands that read no array
against ``python -c "import click"``. Nothing here asserts a time.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

import mvc
from mvc.repo.commit.request import CommitOptions

NUMPY = ("-c", "import numpy, click")
CLICK = ("-c", "import click")
ROWS: dict[str, tuple[tuple[str, ...], tuple[str, ...], float]] = {
    "commit": (("-m", "mvc", "commit", "m.safetensors", "--allow-empty", "-m", "x"), NUMPY, 0.09),
    "log": (("-m", "mvc", "log", "-n", "1"), CLICK, 0.06),
    "rev-parse": (("-m", "mvc", "rev-parse", "HEAD"), CLICK, 0.06),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--repeats", type=int, default=15)
    repeats = parser.parse_args().repeats
    with tempfile.TemporaryDirectory(prefix="mvc-bench-") as folder:
        place = Path(folder)
        rng = np.random.default_rng(1)
        save_file({"w": rng.standard_normal(875_000, np.float32)}, place / "m.safetensors")
        with mvc.Repository.init(place) as repo:
            repo.commit("m.safetensors", options=CommitOptions(cwd=place))
        took = _measured(place, repeats)
    for name, (command, base, budget) in ROWS.items():
        beyond, ratio = took[command] - took[base], took[command] / took[base]
        print(
            f"{name:<10} {took[command]:.3f} s, {ratio:.2f} x of {base[1]!r} "
            f"({took[base]:.3f} s), {beyond:+.3f} s beyond it   budget {budget:.2f} s"
        )


def _measured(place: Path, repeats: int) -> dict[tuple[str, ...], float]:
    """Median seconds of every command line; the first, which compiles bytecode, is left out."""
    environment = dict(os.environ) | {"PYTHONPYCACHEPREFIX": str(place / "bytecode")}
    environment["PYTHONPATH"] = str(Path(mvc.__file__).parent.parent)
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    lines = [NUMPY, CLICK, *(command for command, _, _ in ROWS.values())]
    found: dict[tuple[str, ...], list[float]] = {line: [] for line in lines}
    for _ in range(repeats + 1):
        for line in lines:
            begun = time.perf_counter()
            subprocess.run(
                [sys.executable, *line], cwd=place, env=environment, check=True,
                capture_output=True,
            )  # fmt: skip
            found[line].append(time.perf_counter() - begun)
    return {line: statistics.median(seconds[1:]) for line, seconds in found.items()}


if __name__ == "__main__":
    main()
