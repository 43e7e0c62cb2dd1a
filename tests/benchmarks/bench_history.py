"""What must not depend on the length of a history: docs/performance.md, "Long histories".

    python -m tests.benchmarks.bench_history [--commits 100000] [--root DIR]

Measures commands on a repository of many versions interleaved with the same on one of 100.
What is built is kept under ``--root`` and used again; what is measured is a copy. Nothing here
asserts a time. Commands that read the whole history: ``bench_histories``.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

import mvc
from mvc.repo.refs import delete_branch
from tests.benchmarks.bench_histories import build
from tests.benchmarks.measuring import Cost, first, folder, head, row, step
from tests.benchmarks.measuring import mvc as command

FEW = 100
REPETITIONS = 9
FILE = "model.safetensors"


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


def copied(repository: Path, path: Path) -> Path:
    shutil.copytree(repository, path)
    (path / FILE).unlink(missing_ok=True)
    return path


# -- what must not depend on the length ---------------------------------------------------


def speed(few: Path, many: Path, commits: int) -> None:
    """Whole processes and commits in process, interleaved; medians and their ratio."""
    random, state = np.random.default_rng(2), first()

    def log(root: Path) -> Cost:
        return command(root, "log", "-n", "20")

    def look_back(root: Path) -> Cost:
        with mvc.Repository.open(root) as repo:
            middle = list(repo.log(limit=50))[-1].commit.time_ns + 1
        out = root.parent / "out.safetensors"
        return command(root, "checkout", "--at", str(middle), "-o", str(out), "-f")

    def commit_file(root: Path) -> Cost:
        nonlocal state
        state = step(state, random)
        save_file(state, root / FILE)
        return command(root, "commit", FILE, "-m", "batch")

    rows = {"`mvc log -n 20`": log, "`mvc checkout --at T -o FILE`": look_back,
            "`mvc commit FILE`": commit_file}  # fmt: skip
    head("median of each", f"{FEW} commits", f"{commits:,} commits", "ratio", "of processor time")
    for name, measure in rows.items():
        compare(name, [(measure(few), measure(many)) for _ in range(REPETITIONS)])
    compare("`repo.commit`, in process", list(in_process(few, many)))


def in_process(few: Path, many: Path) -> Iterator[tuple[Cost, Cost]]:
    random, state = np.random.default_rng(3), first()

    def commit(repo: mvc.Repository) -> Cost:
        begun, used = time.perf_counter(), time.process_time()
        repo.commit(state, deploy="prod")
        return Cost(time.perf_counter() - begun, time.process_time() - used, 0.0)

    with mvc.Repository.open(few) as short, mvc.Repository.open(many) as long:
        for repo in (short, long):
            repo.commit(state)
        for _ in range(600):  # more than wait before they are indexed
            state = step(state, random)
            yield commit(short), commit(long)


def compare(name: str, pairs: list[tuple[Cost, Cost]]) -> None:
    few, many = (
        Cost(*map(statistics.median, zip(*c, strict=True))) for c in zip(*pairs, strict=True)
    )
    row(name, f"{few.wall * 1e3:.1f} ms", f"{many.wall * 1e3:.1f} ms",
        f"{many.wall / few.wall:.2f}", f"{many.processor / few.processor:.2f}")  # fmt: skip


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
        delete_branch(repo.handle.store, "again", force=True)
    command(root, "gc", "--grace", "0")
    run = [sys.executable, "-c", _OPENER, str(root)]
    openers = [subprocess.Popen(run, stdout=-1, text=True) for _ in range(processes)]
    found = [opener.communicate()[0].split() for opener in openers]
    keys, longest = sum(int(k) for k, _ in found), max(float(t) for _, t in found)
    print(f"\n{processes} processes right after a gc: {keys} keys indexed by them, "
          f"the slowest opened and listed 20 commits in {longest:.2f} s")  # fmt: skip


if __name__ == "__main__":
    main()
