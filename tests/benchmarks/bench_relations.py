"""What an update takes: real sizes of two networks, and pairs of model files.

    python -m tests.benchmarks.bench_relations [OLD NEW]

Prints for each the relation, the raw bytes of the tensors that changed, and the bytes that the
commit adds to the repository. Takes 1 GB of memory and of disk.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

import mvc
from tests.benchmarks.measuring import bytes_below
from tests.repo.commit import networks

States = Iterator[Mapping[str, Any]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("files", nargs="*", type=Path, metavar="OLD NEW")
    files = parser.parse_args().files
    with tempfile.TemporaryDirectory() as folder:
        if files:
            show("files", Path(folder) / "files", parts(files, Path(folder) / "parts"))
            return
        for network in (networks.resnet152, networks.mobilenet_v2):
            name, state = network.__name__, networks.state(network())
            show(name, Path(folder) / name, tuned(state))


def tuned(state: dict[str, np.ndarray]) -> States:
    """A network, and the same with another head of random numbers."""
    yield state
    rng = np.random.default_rng(1)
    head = list(state)[-2:]
    yield state | {k: rng.standard_normal(state[k].shape, np.float32) / 16 for k in head}


def parts(files: list[Path], folder: Path) -> States:
    """The tensors of files, without those of an optimizer."""
    with mvc.Repository.init(folder) as repo:
        for file in files:
            (repo.root / "model").write_bytes(file.read_bytes())
            repo.commit(repo.root / "model")
            state = repo.checkout()
            yield {key: value for key, value in state.items() if not key.startswith("optimizer")}


def show(name: str, folder: Path, states: States) -> None:
    with mvc.Repository.init(folder) as repo:
        for state in states:
            before = bytes_below(folder)
            repo.commit(state)
            grown = bytes_below(folder) - before
        (file,) = repo.diff("HEAD~1", "HEAD").files
        changed = sum(t.new_spec.nbytes for t in file.tensors if t.kind != "unchanged")
        held = repo.storage.by_version()[1][repo.find()].bytes
        (relation,) = repo.log("HEAD", mvc.LogOptions(relations=True), limit=1)[0].relations
        beside = grown - held["full"] - held["delta"]
        print(f"{name}: {relation}: changed {changed:,} B, stored {grown:,} B, ", end="")
        print(f"beside the tensors' records {beside:,} B")


if __name__ == "__main__":
    main()
