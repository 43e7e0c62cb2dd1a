"""How long 150 versions of an online training take to come back: docs/performance.md.

    PYTHONPATH=examples python -m tests.benchmarks.bench_recoveries --data MNIST
        [--root DIR] [--epochs 4]

The conv net of ``python examples/reproduce drift`` learns while label 0 drifts in. Its versions are
committed with each pipeline and layout, and each one is recovered from a repository that is opened
for it: the median of three. Beside it plain numpy decodes 74 deltas of ``vsol``. What is trained
and committed is kept under ``--root`` and used again. Nothing here asserts a time.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import torch

import mvc
from mvc.io.files import FileSystem
from mvc.repo.config import set_value
from mvc.testing import fresh_process
from reproduce.data import load_data
from reproduce.drift.measure import plain_seconds
from reproduce.drift.split import Settings, experiments
from reproduce.drift.stream import Stream, record
from reproduce.workspace import Workspace

WAYS = [("lossless", "skip:4"), ("vsol", "skip:4"), ("lossless", "chain")]
DELTAS = 74
RUNS = 3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", type=Path, help="a folder of IDX files [scikit-learn's digits]")
    parser.add_argument("--root", type=Path)
    parser.add_argument("--epochs", type=int, default=4, help="of the training before the drift")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="mvc-bench-") as folder:
        _measure(options.root or Path(folder), options)


def _measure(root: Path, options: argparse.Namespace) -> None:
    data = load_data(options.data)
    (experiment,) = experiments(data, Settings(model="conv", epochs=options.epochs), [0])
    with record(experiment, root / "stream") as stream:
        for pipeline, layout in WAYS:
            folder = root / f"{pipeline}-{layout}"
            if not folder.exists():
                _commit(stream, folder, pipeline, layout)
            _report(folder, f"{pipeline}, {layout}")
        with tempfile.TemporaryDirectory() as results:  # a figure that was kept is not measured
            plain = plain_seconds(stream, DELTAS, Workspace(Path(results)))
    print(f"plain numpy, {DELTAS} deltas of vsol: {plain:.3f} s")


def _commit(stream: Stream, folder: Path, pipeline: str, layout: str) -> None:
    mvc.Repository.init(folder).close()
    set_value(FileSystem(), folder / ".mvc/config.yaml", "store.layout", layout)
    with mvc.Repository.open(folder) as repo:
        for version, state in stream.states():
            tensors = {name: torch.from_numpy(array) for name, array in state.items()}
            repo.commit(tensors, message=str(version.number), pipeline=pipeline)


def _report(folder: Path, what: str) -> None:
    with mvc.Repository.open(folder) as repo:
        ids, found = [each.id for each in repo.log()], repo.storage.stats()
    took = [statistics.median(_recovery(folder, id_) for _ in range(RUNS)) for id_ in ids]
    print(
        f"{what}: {len(ids)} versions, {found.stored_bytes / 1e6:.1f} MB, "
        f"{found.deltas_worst} deltas at most, {found.deltas_mean:.1f} in the mean; "
        f"worst {max(took):.3f} s, mean {statistics.mean(took):.3f} s",
        flush=True,
    )


def _recovery(folder: Path, id_: mvc.ids.CommitId) -> float:
    fresh_process()
    begun = time.perf_counter()
    with mvc.Repository.open(folder) as repo:
        repo.checkout(id_)
    return time.perf_counter() - begun


if __name__ == "__main__":
    main()
