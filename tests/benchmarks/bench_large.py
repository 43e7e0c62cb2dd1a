"""A large model from the command line, beside a copy, a hash, DVC and git-lfs.

    python -m tests.benchmarks.bench_large [--megabytes 4420] [--shards 2] [--rounds 5]
        [--tensors 0] [--folder FOLDER] [--other FOLDER] [--only WORD...]

A folder of bf16 shards in three versions: the first, and 1.5 % and 16 % of its elements moved by
one step of bf16. Every figure is the median over rounds in which all programs run in turn, each a
whole process on files that the page cache has. What mvc does not flush by itself is followed by
``sync``. ``--tensors`` divides the model into so many tensors. ``--other`` is another checkout of
this repository, which runs in the same rounds. DVC and git-lfs run if they are installed. Nothing
here asserts a time.
"""

from __future__ import annotations

import argparse
import filecmp
import os
import shutil
import statistics
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from ml_dtypes import bfloat16
from safetensors.numpy import save_file

from mvc import __file__ as package
from tests.benchmarks.measuring import Cost, bytes_below, folder, head, program, row, synced

VERSIONS = ("first", "1.5 %", "16 %")
MOVED = (0.0, 0.015, 0.16)
LAYER = 96 << 20
"""Bytes of a tensor."""
HASH = """
import sys, blake3
for name in sys.argv[1:]:
    blake3.blake3(max_threads=blake3.blake3.AUTO).update_mmap(name).digest()
"""
LOAD = """
import sys
from safetensors.torch import load_file
for name in sys.argv[1:]:
    for tensor in load_file(name).values():
        tensor.clone()
"""
Costs = dict[str, list[Cost]]
Add = Callable[[str, Cost], None]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--megabytes", type=float, default=4420)
    parser.add_argument("--shards", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tensors", type=int, default=0)
    parser.add_argument("--folder", type=Path, help="where the data is, and stays")
    parser.add_argument("--other", type=Path)
    parser.add_argument("--only", nargs="*", default=["copy", "hash", "mvc", "dvc", "git-lfs"])
    options = parser.parse_args()
    trees = {"mvc": Path(package).parent.parent}
    if options.other is not None:
        trees["other"] = options.other.resolve()
    with folder(options.folder) as place:
        _make(place, options.megabytes, options.shards, options.tensors)
        costs: Costs = {}
        for number in range(options.rounds):
            _round(place, trees, options.only, costs, number)
            _print(costs)


def _make(place: Path, megabytes: float, shards: int, tensors: int) -> None:
    """The versions below ``place``, if they are not there from an earlier run."""
    if (place / VERSIONS[-1]).exists():
        return
    random = np.random.default_rng(0)
    elements = int(megabytes * 1e6 / 2 / shards)
    count = max(1, tensors // shards if tensors else elements * 2 // LAYER)
    for version in VERSIONS:
        (place / version).mkdir(parents=True)
    for shard in range(shards):
        words = [
            (random.standard_normal(part, np.float32) * np.float32(0.02)).astype(bfloat16)
            for part in np.diff(np.linspace(0, elements, count + 1).astype(int))
        ]
        for version, share in zip(VERSIONS, MOVED, strict=True):
            for array in words:
                bits = array.view(np.uint16)
                bits += random.random(len(bits), np.float32) < share
            name = f"model-{shard + 1:05}-of-{shards:05}.safetensors"
            named = {f"layers.{shard}.{i}.weight": array for i, array in enumerate(words)}
            save_file(named, place / version / name, metadata={"format": "pt"})


def _round(place: Path, trees: dict[str, Path], only: list[str], costs: Costs, number: int) -> None:
    def add(name: str, cost: Cost) -> None:
        costs.setdefault(name, []).append(cost)

    first = place / VERSIONS[0]
    if "copy" in only:
        with _fresh(place / "copy") as copy:
            _warm(first)
            add("cp -r, sync", synced('cp -r "$0" "$1"', str(first), str(copy / "model")))
            add("load after it", _load(copy / "model"))
    if "hash" in only:
        add("BLAKE3", program(sys.executable, "-c", HASH, *_files(first)))
    for name, tree in trees.items() if "mvc" in only else ():
        with _fresh(place / name) as root:
            _mvc_round(place, root, name, tree, add, check=number == 0)
    if "dvc" in only and shutil.which("dvc"):
        with _fresh(place / "dvc") as root:
            _dvc_round(place, root, add)
    if "git-lfs" in only and shutil.which("git-lfs"):
        with _fresh(place / "git-lfs") as root:
            _lfs_round(place, root, add)


def _mvc_round(place: Path, root: Path, name: str, tree: Path, add: Add, *, check: bool) -> None:
    environment = os.environ | {"PYTHONPATH": str(tree)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)

    def mvc(*line: str) -> Cost:
        return program(sys.executable, "-m", "mvc", "-q", *line, cwd=root, environment=environment)

    mvc("init")
    stored = bytes_below(root)
    for version in VERSIONS:
        with _moved(place / version, root / "model"):
            add(f"{name} commit, {version}", mvc("commit", "model", "-m", version))
        now = bytes_below(root)
        if check:
            print(f"{name} stored of {version}: {(now - stored) / 1e6:.1f} MB", flush=True)
        stored = now
    for at, version in enumerate(VERSIONS):
        os.sync()
        back = ("checkout", f"HEAD~{len(VERSIONS) - 1 - at}", "-o", "back")
        add(f"{name} checkout, {version}", mvc(*back))
        if at == 0:
            add(f"load after {name} checkout", _load(root / "back" / "model"))
        if check:
            _same(place / version, root / "back" / "model")
        shutil.rmtree(root / "back")


def _dvc_round(place: Path, root: Path, add: Add) -> None:
    program("dvc", "init", "--no-scm", cwd=root)
    with _moved(place / VERSIONS[0], root / "model"):
        add("dvc add, sync", synced("dvc add -q model", cwd=root))
    add("dvc checkout, sync", synced("dvc checkout -q", cwd=root))


def _lfs_round(place: Path, root: Path, add: Add) -> None:
    for line in (["init", "-q"], ["lfs", "install", "--local"], ["lfs", "track", "model/**"]):
        program("git", *line, cwd=root)
    commit = "git add model && git -c user.name=a -c user.email=a@b commit -q -m 1"
    with _moved(place / VERSIONS[0], root / "model"):
        add("git-lfs commit, sync", synced(commit, cwd=root))
    add("git-lfs checkout, sync", synced("git checkout -q -f HEAD -- model", cwd=root))


# -- files ---------------------------------------------------------------------------------


@contextmanager
def _fresh(place: Path) -> Iterator[Path]:
    """An empty folder, removed afterwards."""
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    yield place
    shutil.rmtree(place)


@contextmanager
def _moved(version: Path, target: Path) -> Iterator[None]:
    """The files of ``version`` are at ``target``, in the page cache."""
    version.rename(target)
    try:
        _warm(target)
        yield
    finally:
        target.rename(version)


def _warm(version: Path) -> None:
    for name in _files(version):
        with open(name, "rb", buffering=0) as file:
            while file.read(1 << 24):
                pass
    os.sync()


def _files(version: Path) -> list[str]:
    return sorted(map(str, version.iterdir()))


def _load(version: Path) -> Cost:
    return program(sys.executable, "-c", LOAD, *_files(version))


def _same(a: Path, b: Path) -> None:
    _, differ, missing = filecmp.cmpfiles(a, b, os.listdir(a), shallow=False)
    if differ or missing:
        raise SystemExit(f"came back with other bytes: {differ or missing}")


def _print(costs: Costs) -> None:
    base = costs.get("cp -r, sync")
    head("median of whole processes", "seconds", "of cp", "processors", "peak MB")
    for name, runs in costs.items():
        cost = Cost(*(statistics.median(values) for values in zip(*runs, strict=True)))
        ratio = ""
        if base is not None:
            pairs = zip(runs, base, strict=False)
            ratio = f"{statistics.median(a.wall / b.wall for a, b in pairs):.2f}"
        row(name, f"{cost.wall:.2f}", ratio, f"{cost.processor:.2f}", f"{cost.peak:.0f}")


if __name__ == "__main__":
    main()
