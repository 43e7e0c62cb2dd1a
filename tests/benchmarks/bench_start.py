"""How long a command takes to start, beside the imports that it cannot do without.

    python -m tests.benchmarks.bench_start [--repeats 15] [--other FOLDER]

Every figure is the median of interleaved runs of whole processes with compiled bytecode.
``commit`` and ``checkout`` are measured against ``python -c "import numpy, click"``, commands that
read no array against ``python -c "import click"``. Beside seconds stands processor time, which
other programs disturb less. ``--other`` is another checkout of this repository, whose commands
run in the same rounds. Nothing here asserts a time.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

import mvc
from tests.benchmarks.measuring import process

NUMPY = ("-c", "import numpy, click")
CLICK = ("-c", "import click")
Line = tuple[str, ...]
ROWS: dict[str, tuple[Line, Line, str]] = {
    "commit": (
        ("-m", "mvc", "commit", "m.safetensors", "--allow-empty", "-m", "x"),
        NUMPY, "+0.09 s, 2.2 x",
    ),
    "checkout": (("-m", "mvc", "checkout", "HEAD", "-f", "-o", "o.safetensors"), NUMPY, "1.8 x"),
    "log": (("-m", "mvc", "log", "-n", "1"), CLICK, "+0.06 s"),
    "show --id": (("-m", "mvc", "show", "--id", "HEAD"), CLICK, "+0.06 s"),
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--other", type=Path)
    arguments = parser.parse_args()
    trees = [Path(mvc.__file__).parent.parent]
    trees += [] if arguments.other is None else [arguments.other.resolve()]
    with tempfile.TemporaryDirectory(prefix="mvc-bench-") as folder:
        place = Path(folder)
        rng = np.random.default_rng(1)
        save_file({"w": rng.standard_normal(875_000, np.float32)}, place / "m.safetensors")
        with mvc.Repository.init(place) as repo:
            repo.commit("m.safetensors", files=mvc.FileOptions(cwd=place))
        took = _measured(place, trees, arguments.repeats)
    for tree in trees:
        for name, (command, base, goal) in ROWS.items():
            own, least = took[tree, command], took[trees[0], base]
            shown = [
                f"{what} {a:.3f} s, {a - b:+.3f} s, {a / b:.2f} x"
                for what, a, b in zip(("whole process", "processor"), own, least, strict=True)
            ]
            print(f"{name:<10}{';  '.join(shown)};  goal {goal}  {tree if len(trees) > 1 else ''}")


def _measured(
    place: Path, trees: list[Path], repeats: int
) -> dict[tuple[Path, Line], tuple[float, float]]:
    """Median seconds and processor time of every command line in every tree.

    The first round, which compiles bytecode, is left out.
    """
    environment = dict(os.environ) | {"PYTHONPYCACHEPREFIX": str(place / "bytecode")}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    jobs = [(trees[0], NUMPY), (trees[0], CLICK)]
    jobs += [(tree, command) for command, _, _ in ROWS.values() for tree in trees]
    found: dict[tuple[Path, Line], list[tuple[float, float]]] = {job: [] for job in jobs}
    for _ in range(repeats + 1):
        for tree, line in jobs:
            cost = process(*line, cwd=place, environment=environment | {"PYTHONPATH": str(tree)})
            found[tree, line].append((cost.wall, cost.processor))
    return {
        job: (statistics.median(s for s, _ in runs[1:]), statistics.median(p for _, p in runs[1:]))
        for job, runs in found.items()
    }


if __name__ == "__main__":
    main()
