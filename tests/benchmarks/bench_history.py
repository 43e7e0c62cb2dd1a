"""What must not depend on the length of a history: docs/performance.md, "Long histories".

    python -m tests.benchmarks.bench_history [--commits 100000] [--root DIR]

Measures commands on a repository of many versions interleaved with the same on one of 100.
What is built is kept under ``--root`` and used again; what is measured is a copy. Nothing here
asserts a time. Commands that read the whole history: ``bench_histories``.
"""

from __future__ import annotations

import argparse
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

import mvc
from mvc.repo.refs import delete_branch
from tests.benchmarks.bench_histories import build

FEW = 100
REPETITIONS = 9
FILE = "model.safetensors"

Cost = tuple[float, float]
"""Seconds, and seconds of processors."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--commits", type=int, default=100_000)
    parser.add_argument("--root", type=Path)
    parser.add_argument("--skip", nargs="*", default=[], choices=["speed", "race"])
    options = parser.parse_args()
    with folder(options.root) as root:
        few, many = (build(root / f"histories-{count}", count) for count in (FEW, options.commits))
        work = Path(tempfile.mkdtemp(prefix="work-", dir=root))
        try:
            short, long = copied(few, work / "few"), copied(many, work / "many")
            if "speed" not in options.skip:
                speed(short, long, options.commits)
            if "race" not in options.skip:
                race(long)
        finally:
            shutil.rmtree(work, ignore_errors=True)


@contextmanager
def folder(given: Path | None) -> Iterator[Path]:
    if given is not None:
        given.mkdir(parents=True, exist_ok=True)
        yield given
        return
    with tempfile.TemporaryDirectory(prefix="mvc-history-") as made:
        yield Path(made)


# -- repositories ------------------------------------------------------------------------


def step(state: dict[str, np.ndarray], random: np.random.Generator) -> dict[str, np.ndarray]:
    """Four tensors, 2 KiB together, each of which changes a little."""
    return {
        k: v + (1e-4 * random.standard_normal(v.shape)).astype(np.float32) for k, v in state.items()
    }


def first() -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    return {f"layer{i}": random.standard_normal((8, 16)).astype(np.float32) for i in range(4)}


def copied(repository: Path, path: Path) -> Path:
    shutil.copytree(repository, path)
    (path / FILE).unlink(missing_ok=True)
    return path


# -- what must not depend on the length ---------------------------------------------------


def speed(few: Path, many: Path, commits: int) -> None:
    """Whole processes and commits in process, interleaved; medians and their ratio."""
    random, state = np.random.default_rng(2), first()

    def log(root: Path) -> Cost:
        return process(root, "log", "-n", "20")

    def look_back(root: Path) -> Cost:
        with mvc.Repository.open(root) as repo:
            middle = list(repo.log(limit=50))[-1].commit.time_ns + 1
        out = root.parent / "out.safetensors"
        return process(root, "checkout", "--at", str(middle), "-o", str(out), "-f")

    def commit_file(root: Path) -> Cost:
        nonlocal state
        state = step(state, random)
        save_file(state, root / FILE)
        return process(root, "commit", FILE, "-m", "batch")

    rows = {"`mvc log -n 20`": log, "`mvc checkout --at T -o FILE`": look_back,
            "`mvc commit FILE`": commit_file}  # fmt: skip
    print(f"\n| median of each | {FEW} commits | {commits:,} commits | ratio | of processor time |")
    print("|---|--:|--:|--:|--:|")
    for name, measure in rows.items():
        compare(name, [(measure(few), measure(many)) for _ in range(REPETITIONS)])
    compare("`repo.commit`, in process", list(in_process(few, many)))


def in_process(few: Path, many: Path) -> Iterator[tuple[Cost, Cost]]:
    random, state = np.random.default_rng(3), first()

    def commit(repo: mvc.Repository) -> Cost:
        begun, used = time.perf_counter(), time.process_time()
        repo.commit(state, deploy="prod")
        return time.perf_counter() - begun, time.process_time() - used

    with mvc.Repository.open(few) as short, mvc.Repository.open(many) as long:
        for repo in (short, long):
            repo.commit(state)
        for _ in range(600):  # more than wait before they are indexed
            state = step(state, random)
            yield commit(short), commit(long)


def compare(name: str, pairs: list[tuple[Cost, Cost]]) -> None:
    few, many = (
        [statistics.median(v) for v in zip(*c, strict=True)] for c in zip(*pairs, strict=True)
    )
    ratios = [long / short for short, long in zip(few, many, strict=True)]
    print(
        f"| {name} | {few[0] * 1e3:.1f} ms | {many[0] * 1e3:.1f} ms | {ratios[0]:.2f} "
        f"| {ratios[1]:.2f} |",
        flush=True,
    )


# -- many processes behind a gc ------------------------------------------------------------


_OPENER = """
import sys, time
import mvc.store.snapshot as views
from mvc.store.index.index import Index
made = []
inner = Index.extend
def extend(self, old, keys, position, instead=None):
    keys = list(keys)
    made.append(len(keys))
    return inner(self, old, keys, position, instead)
Index.extend = extend
import mvc
begun = time.perf_counter()
with mvc.Repository.open(sys.argv[1]) as repo:
    assert len(list(repo.log(limit=20))) == 20
print(sum(made), time.perf_counter() - begun)
"""


def race(root: Path, processes: int = 32) -> None:
    """How many index keys processes write that open the repository right behind a gc."""
    with mvc.Repository.open(root) as repo:
        repo.switch("again", create=True, force=True)
        state = first()
        random = np.random.default_rng(4)
        for _ in range(20):
            state = step(state, random)
            repo.commit(state)
        repo.switch("main", force=True)
        delete_branch(repo.context, "again", force=True)
    subprocess.run([*command(root), "gc", "--grace", "0"], check=True, stdout=-3)
    run = [sys.executable, "-c", _OPENER, str(root)]
    openers = [subprocess.Popen(run, stdout=-1, text=True) for _ in range(processes)]
    found = [opener.communicate()[0].split() for opener in openers]
    keys, longest = sum(int(k) for k, _ in found), max(float(t) for _, t in found)
    print(f"\n{processes} processes right after a gc: {keys} keys indexed by them, "
          f"the slowest opened and listed 20 commits in {longest:.2f} s")  # fmt: skip


# -- helpers -----------------------------------------------------------------------------


def command(root: Path) -> list[str]:
    return [sys.executable, "-m", "mvc", "-C", str(root)]


def process(root: Path, *arguments: str) -> Cost:
    begun, used = time.perf_counter(), _children()
    subprocess.run([*command(root), *arguments], check=True, capture_output=True)
    return time.perf_counter() - begun, _children() - used


def _children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    main()
