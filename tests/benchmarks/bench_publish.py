"""A trainer that publishes: commits from memory, beside BLAKE3, and pushes of them.

    python -m tests.benchmarks.bench_publish [--megabytes 2200] [--share 1] [--rounds 5]
        [--tensors 24] [--folder FOLDER] [--only WORD...]

A state of bf16 tensors of which ``--share`` percent of the elements, at random, move by one step
of bf16 before each commit; the version before is in memory. In the same rounds the same memory is
hashed twice with BLAKE3 on as many threads, and the version is pushed to a folder, and by http to
a server on this machine. Seconds of processors are those of all processes. The medians leave out
the first round, which stores in full. Nothing here asserts a time.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
from blake3 import blake3
from ml_dtypes import bfloat16

import mvc
from tests.benchmarks.measuring import folder, head, row
from tests.remote.kit.serving import serving, token

PATH = "policy.safetensors"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--megabytes", type=float, default=2200)
    parser.add_argument("--share", type=float, default=1, help="percent")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tensors", type=int, default=24)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--only", nargs="*", default=["hash", "folder", "http"])
    options = parser.parse_args()
    random = np.random.default_rng(0)
    elements = int(options.megabytes * 1e6 / 2 / options.tensors)
    state = {
        f"layers.{i}.weight": (random.standard_normal(elements, np.float32) * 0.02).astype(bfloat16)
        for i in range(options.tensors)
    }
    costs: dict[str, list[tuple[float, float]]] = {}
    with folder(options.folder) as place, mvc.Repository.init(place / "trainer") as repo:
        for name in ("folder", "served/http"):
            mvc.Repository.init(place / name, bare=True).close()
        os.environ["MVC_TOKEN_HTTP"] = token(place / "served", "read", "push:heads/*")
        with serving(place / "served") as server:
            urls = {"folder": str(place / "folder"), "http": f"{server.url}/http"}
            remotes = [name for name in urls if name in options.only]
            for name in remotes:
                repo.remotes.add(name, urls[name])
            for number in range(options.rounds + 1):
                for array in state.values() if number else ():
                    move(array, random, options.share / 100)
                took = {"commit": cost(partial(repo.commit, state, path=PATH))}
                if "hash" in options.only:
                    took["BLAKE3, twice"] = cost(partial(hash_twice, state))
                for name in remotes:
                    pushed = cost(partial(repo.push, name), server.process.pid)
                    took[f"push, {name}"] = pushed
                for what, each in took.items() if number else ():
                    costs.setdefault(what, []).append(each)
    head("median", "seconds", "processors", "of BLAKE3", "of the commit")
    for what, runs in costs.items():
        wall, processor = (statistics.median(each) for each in zip(*runs, strict=True))
        others = (ratio(runs, costs.get(other)) for other in ("BLAKE3, twice", "commit"))
        row(what, f"{wall:.2f}", f"{processor:.2f}", *others)


def ratio(runs: list[tuple[float, float]], others: list[tuple[float, float]] | None) -> str:
    pairs = zip(runs, others or (), strict=False)
    ratios = [one[0] / other[0] for one, other in pairs]
    return f"{statistics.median(ratios):.2f}" if ratios else ""


def move(array: np.ndarray, random: np.random.Generator, share: float) -> None:
    at = random.integers(0, len(array), int(len(array) * share))
    array.view(np.uint16)[at] += 1


def hash_twice(state: dict[str, np.ndarray]) -> None:
    for _ in range(2):
        for array in state.values():
            blake3(array.view(np.uint8), max_threads=blake3.AUTO).digest()


def cost(work: Callable[[], object], other: int | None = None) -> tuple[float, float]:
    """Seconds by the clock, and of the processors: of this process, and of process ``other``."""

    def processors() -> float:
        used = resource.getrusage(resource.RUSAGE_SELF)
        own = used.ru_utime + used.ru_stime
        if other is None:
            return own
        fields = Path(f"/proc/{other}/stat").read_text().rpartition(")")[2].split()
        return own + (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    begun, used = time.perf_counter(), processors()
    work()
    return time.perf_counter() - begun, processors() - used


if __name__ == "__main__":
    main()
