"""What an average of versions costs, beside checking them out: docs/guides/merging.md.

    python -m tests.benchmarks.bench_average [--versions 5] [--megabytes 2000] [--tensor 32]
        [--dtype bfloat16] [--rounds 3] [--root DIR]

Versions of one model, each a step after the one before, of tensors of so many MiB. In each round,
each in a process of its own: all versions checked out one after the other to the same file in
``/dev/shm``, their average written there, and their average committed. Printed are the medians of
time, its ratio to the checkouts of the round, and the peak of memory beyond a process that only
opens the repository. Nothing here asserts a time.
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from safetensors.torch import save_file

import mvc
from mvc.limits import MIB
from tests.benchmarks.measuring import Cost, folder, head, process, row

MODEL = "model.safetensors"
CHILD = """
import sys, mvc, numpy
what, root, out, *revs = sys.argv[1:]
with mvc.Repository.open(root) as repo:
    repo.manifest("HEAD")
    if what == "checkouts":
        for rev in revs:
            repo.checkout(rev, to=out, force=True)
    elif what == "to a file":
        repo.average(revs, to=out, force=True)
    elif what == "committed":
        repo.average(revs, branch="average")
"""
WAYS = ("checkouts", "to a file", "committed")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--versions", type=int, default=5)
    parser.add_argument("--megabytes", type=int, default=2000)
    parser.add_argument("--tensor", type=int, default=32)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--root", type=Path)
    options = parser.parse_args()
    with folder(options.root) as place, TemporaryDirectory(dir="/dev/shm") as shm:
        revs = _make(place / "r", options)
        line = (str(place / "r"), str(Path(shm, MODEL)), *revs)
        costs: dict[str, list[Cost]] = {way: [] for way in ("nothing", *WAYS)}
        for _ in range(options.rounds):
            for way, found in costs.items():
                found.append(process("-c", CHILD, way, *line))
    base = statistics.median(cost.peak for cost in costs["nothing"])
    head("what", "seconds", "of processors", "ratio to the checkouts", "MiB beyond opening")
    for way in WAYS:
        pairs = zip(costs[way], costs["checkouts"], strict=True)
        row(
            way,
            f"{statistics.median(cost.wall for cost in costs[way]):.2f}",
            f"{statistics.median(cost.processor for cost in costs[way]):.2f}",
            f"{statistics.median(a.wall / b.wall for a, b in pairs):.2f}",
            f"{max(cost.peak for cost in costs[way]) - base:.0f}",
        )


def _make(root: Path, options: argparse.Namespace) -> list[str]:
    draws, dtype = torch.Generator().manual_seed(0), getattr(torch, options.dtype)
    shape = (options.tensor * MIB // dtype.itemsize // 1024, 1024)
    count = options.megabytes * 1_000_000 // (options.tensor * MIB)
    weights = [0.02 * torch.randn(shape, generator=draws) for _ in range(count)]
    found = []
    with mvc.Repository.init(root) as repo:
        for _ in range(options.versions):
            for each in weights:
                each += 1e-4 * torch.randn(shape, generator=draws)
            state = {f"layer{i:02}": each.to(dtype) for i, each in enumerate(weights)}
            save_file(state, root / MODEL)
            found.append(repo.commit(root / MODEL).id.hex())
        (root / MODEL).unlink()
    return found


if __name__ == "__main__":
    main()
