"""What a swap of a followed model costs, beside a copy: docs/performance.md, "A fleet".

    python -m tests.benchmarks.bench_follow [--megabytes 2200] [--shards 2] [--tensors 0]
        [--shares 1 3 10] [--rounds 3] [--engine] [--in-place] [--root DIR]

A folder of bf16 shards is served on loopback; a follower in a process of its own keeps it. In each
round so many elements in a hundred, at random, move by one step of bf16. Beside: ``cp -r`` and
``sync`` of the folder, and a checkout of the version. One shard is one file. ``--engine``: the
follower's files are read after each swap, as whoever serves them does. With ``--in-place``, nobody
may read them for the seconds of ``pause``. Nothing here asserts a time.
"""

from __future__ import annotations

import argparse
import filecmp
import json
import math
import os
import re
import shutil
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Any

import numpy as np
from ml_dtypes import bfloat16
from safetensors.numpy import save_file

import mvc
from mvc.io.files import FileSystem
from mvc.io.handles import ReadFile, WriteFile
from mvc.model.hashing import BlobHasher
from mvc.pipelines.pipeline import Pipeline
from mvc.remote.replicas.in_place import InPlace
from mvc.store.recovery.recover import Recovery
from mvc.transport import Replica
from tests.benchmarks.bench_large import LAYER
from tests.benchmarks.measuring import folder, head, process, row, synced
from tests.remote.kit.serving import serving, token

PROJECT = Path(__file__).parents[2]
MODEL = "model"
KIB = 1 << 10
CALLS: dict[str, tuple[tuple[type, str], ...]] = {
    "read": ((ReadFile, "read_into"),),
    "decode": ((Pipeline, "apply_chunk"), (Pipeline, "decode_chunk")),
    "verify": ((BlobHasher, "update"),),
    "write": ((WriteFile, "write_at"),),
    "flush": ((WriteFile, "sync"), (FileSystem, "sync_dir")),
    "rename": ((FileSystem, "replace"),),
    "delete": ((FileSystem, "remove_tree"), (FileSystem, "unlink")),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--megabytes", type=float, default=2200)
    parser.add_argument("--shards", type=int, default=2)
    parser.add_argument("--tensors", type=int, default=0)
    parser.add_argument("--shares", nargs="*", type=float, default=[1, 3, 10])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--engine", action="store_true")
    parser.add_argument("--in-place", action="store_true")
    parser.add_argument("--root", type=Path)
    parser.add_argument("--node", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.node:
        _node(*options.node, in_place=options.in_place)
        return
    with folder(options.root) as root:
        shutil.rmtree(root / "served", ignore_errors=True)
        shutil.rmtree(root / "node", ignore_errors=True)
        _run(root, options)


def _run(root: Path, options: argparse.Namespace) -> None:
    random = np.random.default_rng(0)
    (root / "node").mkdir(parents=True)
    served = root / "served"
    served.mkdir()
    with mvc.Repository.init(served / "net") as repo:
        model = repo.root / MODEL
        _make(model, random, options.megabytes, options.shards, options.tensors)
        path = f"{MODEL}/{_name(0, 1)}" if options.shards == 1 else ""
        place = root / "node" / (_name(0, 1) if path else "now")
        found: dict[float, dict[str, list[float]]] = {}
        with (
            serving(served) as server,
            _follower(
                ["--node", f"{server.url}/net", str(place), path]
                + ["--in-place"] * options.in_place,
                token(served, "read"),
            ) as swapped,
        ):
            for share in [0.0, *(options.shares * options.rounds)]:
                _move(model, random, share / 100)
                costs = _beside(root, model)
                made = repo.commit([model], deploy="prod")
                done = time.monotonic()
                costs |= {k: v - done * (k in ("notice", "swap")) for k, v in swapped().items()}
                costs |= {"records": made.stored_bytes}
                if share:
                    costs["mvc checkout"] = _checkout(root, repo.root)
                for name, value in costs.items():
                    found.setdefault(share, defaultdict(list))[name].append(value)
                if options.engine:
                    _read(place)
        _same(repo.root / path, place) if path else _same(model, place / MODEL)
        _print(found)


# -- a model and its versions --------------------------------------------------------------


def _make(
    model: Path, random: np.random.Generator, megabytes: float, shards: int, tensors: int
) -> None:
    elements = int(megabytes * 1e6 / 2 / shards)
    count = max(1, tensors // shards if tensors else elements * 2 // LAYER)
    model.mkdir()
    for shard in range(shards):
        named = {
            f"layers.{shard}.{i}.weight": (
                random.standard_normal(part, np.float32) * np.float32(0.02)
            ).astype(bfloat16)
            for i, part in enumerate(np.diff(np.linspace(0, elements, count + 1).astype(int)))
        }
        save_file(named, model / _name(shard, shards), metadata={"format": "pt"})
    (model / "config.json").write_text('{"architectures": ["Model"]}\n')
    (model / "model.safetensors.index.json").write_text("{}\n")


def _name(shard: int, shards: int) -> str:
    return f"model-{shard + 1:05}-of-{shards:05}.safetensors"


def _move(model: Path, random: np.random.Generator, share: float) -> None:
    """Elements at random, each at most once, by one step of bf16."""
    for file in model.glob("*.safetensors"):
        with file.open("rb") as opened:
            begins = 8 + int.from_bytes(opened.read(8), "little")
        words = np.memmap(file, np.uint16, "r+", begins)
        for start in range(0, len(words), LAYER):
            part = words[start : start + LAYER]
            at = random.integers(len(part), size=int(-len(part) * math.log1p(-share)))
            part[at] += 1
        words.flush()
    os.sync()


def _read(place: Path) -> None:
    for file in [place, *place.rglob("*")]:
        if not file.is_file():
            continue
        with file.open("rb", buffering=0) as opened:
            while opened.read(1 << 24):
                pass


def _same(model: Path, place: Path) -> None:
    """Whether the follower has what was committed."""
    for file in model.iterdir() if model.is_dir() else [model]:
        there = place / file.name if model.is_dir() else place
        if not filecmp.cmp(file, there, shallow=False):
            raise SystemExit(f"{file.name} came with other bytes")


# -- what runs beside ----------------------------------------------------------------------


def _beside(root: Path, model: Path) -> dict[str, float]:
    """A copy of the folder, which the system's cache has."""
    copy = root / "copy"
    shutil.rmtree(copy, ignore_errors=True)
    _read(model)
    cost = synced('cp -r "$0" "$1"', str(model), str(copy))
    shutil.rmtree(copy)
    os.sync()
    return {"cp -r, sync": cost.wall}


def _checkout(root: Path, repo: Path) -> float:
    back = root / "back"
    cost = process("-m", "mvc", "-q", "-C", str(repo), "checkout", "HEAD", "-o", str(back))
    shutil.rmtree(back)
    os.sync()
    return cost.wall


# -- the follower --------------------------------------------------------------------------


@contextmanager
def _follower(options: list[str], text: str) -> Iterator[Callable[[], dict[str, float]]]:
    """Runs until the block ends; what is given waits for the next swap, and returns its costs."""
    line = ["-m", "tests.benchmarks.bench_follow", *options]
    environment = os.environ | {"MVC_TOKEN_ORIGIN": text, "PYTHONPATH": str(PROJECT)}
    node = subprocess.Popen(
        [sys.executable, *line], stdout=subprocess.PIPE, text=True, env=environment
    )
    said = node.stdout
    assert said is not None
    try:
        yield lambda: json.loads(said.readline())
    finally:
        node.kill()
        node.wait()


class _Clock:
    """Seconds that threads spend in some calls, without those of other calls in them."""

    def __init__(self) -> None:
        self.costs: dict[str, float] = defaultdict(float)
        self._lock, self._inner = threading.Lock(), threading.local()

    def time(self, owner: type, name: str, phase: str) -> None:
        call = getattr(owner, name)

        @wraps(call)
        def timed(*arguments: Any, **options: Any) -> Any:
            before, self._inner.seconds = getattr(self._inner, "seconds", 0.0), 0.0
            begun = time.perf_counter()
            try:
                return call(*arguments, **options)
            finally:
                took = time.perf_counter() - begun
                with self._lock:
                    self.costs[phase] += took - self._inner.seconds
                self._inner.seconds = before + took

        setattr(owner, name, timed)

    def count(self, owner: type, name: str) -> None:
        """Adds up the bytes that come."""
        call = getattr(owner, name)

        @wraps(call)
        def counted(*arguments: Any) -> Any:
            count = call(*arguments)
            self.costs["wire"] += count or 0
            return count

        setattr(owner, name, counted)

    def mark(self, owner: type, name: str, begins: str, ends: str = "") -> None:
        """Notes when a call begins, the first time, and when it ends."""
        call = getattr(owner, name)

        @wraps(call)
        def marked(*arguments: Any, **options: Any) -> Any:
            self.costs.setdefault(begins, time.monotonic())
            done = call(*arguments, **options)
            if ends:
                self.costs[ends] = time.monotonic()
            return done

        setattr(owner, name, marked)


def _node(url: str, place: str, path: str, *, in_place: bool) -> None:
    """Follows, and prints what each swap took."""
    clock = _Clock()
    for phase, calls in CALLS.items():
        for owner, name in calls:
            clock.time(owner, name, phase)
    clock.count(socket.SocketIO, "readinto")
    clock.mark(Replica, "update", "notice", "swap")
    clock.mark(Recovery, "manifest", "received")
    clock.mark(InPlace, "show", "paused", "resumed")
    status, peak = Path("/proc/self/status"), Path("/proc/self/clear_refs")

    def told(done: mvc.Followed) -> None:
        found = re.search(r"VmHWM:\s+(\d+) kB", status.read_text())
        costs, clock.costs = clock.costs, defaultdict(float)
        received = costs.pop("received")
        costs["transfer"] = received - costs["notice"]
        costs["pause"] = costs.pop("resumed", 0) - costs.pop("paused", 0)
        costs["prepare"] = costs["swap"] - received - costs["pause"]
        costs["memory"] = int(found[1]) / 1024 if found else 0
        print(json.dumps(costs), flush=True)
        peak.write_text("5")

    with mvc.Follower(
        url, "prod", mvc.ReplicaSink(place, path or None, in_place=in_place), on_change=told
    ) as follower:
        follower.run()


# -- the table -----------------------------------------------------------------------------


def _print(found: dict[float, dict[str, list[float]]]) -> None:
    head("elements changed", *("first version" if not each else f"{each:g} %" for each in found))
    middle = {
        share: {name: statistics.median(values) for name, values in costs.items()}
        for share, costs in found.items()
    }

    def line(title: str, name: str, form: str = "{:.2f}") -> None:
        row(title, *(form.format(each.get(name, 0)) for each in middle.values()))

    line("seconds of `cp -r`, `sync`", "cp -r, sync")
    line("seconds of `mvc checkout` into a folder", "mvc checkout")
    line("seconds from the end of the commit to the swap", "swap")
    ratios = (
        statistics.median(map(lambda a, b: a / b, costs["swap"], costs["cp -r, sync"]))
        for costs in found.values()
    )
    row("of `cp -r`, `sync`", *(f"{each:.2f}" for each in ratios))
    for phase in ("notice", "transfer", "prepare", "pause"):
        line(phase, phase)
    for phase in CALLS:
        line(f"{phase}, of all threads", phase)
    line("bytes of the records", "records", "{:,.0f}")
    line("bytes that came", "wire", "{:,.0f}")
    row(
        "limit: 1.02 x the records + 32 KiB",
        *(f"{1.02 * each['records'] + 32 * KIB:,.0f}" for each in middle.values()),
    )
    line("MiB of the follower at its peak", "memory", "{:.0f}")


if __name__ == "__main__":
    main()
