"""What super-steps save and how much faster the newest version comes back: docs/lc.md.

    python -m tests.benchmarks.bench_super_steps [--versions 65]

A network of 300,938 float32 weights moves as under SGD with a rate that falls: most changes are
small, some large. Its versions are stored as ``lc:x=2,huffman``. Bytes are those of the packs
before and after ``join_steps()``; seconds are of the processor, to check out the newest
version from a repository that is opened for it: the best of three. Nothing here asserts a time.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np

import mvc
from mvc.io.files import FileSystem
from mvc.repo.config import set_value
from mvc.testing import fresh_process
from tests.benchmarks.measuring import head, row

SHAPES = {"first": (784, 256), "second": (256, 256), "third": (256, 128), "last": (128, 10)}
BIASES = {"first": 256, "second": 256, "third": 128, "last": 10}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--versions", type=int, default=65)
    versions = parser.parse_args().versions
    with tempfile.TemporaryDirectory(prefix="mvc-bench-") as folder:
        root = Path(folder)
        weights = _commit(root, versions)
        head(f"{versions} versions of {weights:,} weights", "MB in packs", "newest, ms")
        _print(root, "steps")
        with mvc.Repository.open(root) as repo:
            repo.storage.join_steps()
            repo.storage.gc()
        _print(root, "super-steps of 8 and 64")


def _commit(root: Path, versions: int) -> int:
    random = np.random.default_rng(0)
    state = {
        f"{name}.{part}": (0.05 * random.standard_normal(shape)).astype(np.float32)
        for name in SHAPES
        for part, shape in (("weight", SHAPES[name]), ("bias", (BIASES[name],)))
    }
    mvc.Repository.init(root).close()
    set_value(FileSystem(), root / ".mvc/config.yaml", "store.reset_interval", "1000")
    with mvc.Repository.open(root) as repo:
        for number in range(versions):
            repo.commit(state, pipeline="lc:x=2,huffman")
            rate = 1e-3 / (1 + number / 20)
            for name, weight in state.items():
                moved = random.standard_normal(weight.shape) ** 3
                state[name] = (weight - rate * moved).astype(np.float32)
    return sum(weight.size for weight in state.values())


def _print(root: Path, what: str) -> None:
    packs = sum(file.stat().st_size for file in (root / ".mvc").rglob("*.pack"))
    row(what, f"{packs / 1e6:.2f}", f"{1e3 * min(_seconds(root) for _ in range(3)):.0f}")


def _seconds(root: Path) -> float:
    fresh_process()
    begun = time.process_time()
    with mvc.Repository.open(root) as repo:
        repo.checkout()
    return time.process_time() - begun


if __name__ == "__main__":
    main()
