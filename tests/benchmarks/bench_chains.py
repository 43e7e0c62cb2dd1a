"""What updates of a network cost beside whole ones: examples/reproduce/derived/README.md.

    PYTHONPATH=examples python -m tests.benchmarks.bench_chains [--parts storage chain bound]
        [--updates 50] [--architecture resnet50] [--times 2] [--threads 1] [--folder DIR]

The networks are those of MMlib's evaluation with random weights. An update adds normal noise of
1e-4 to the two tensors of the last layer, or in ``bound`` to every float32 tensor.

storage: bytes of one update of MobileNetV2 and of ResNet-152, beside the thesis's. chain: what
each update of a chain takes to save, and beside it whole models, saved in turns; then what the
first and the last version of the chain take to recover, in turns. bound: every tensor changes
under a ``store.max_recovery`` of so many times the clock's best seconds for a whole model; some
versions are restored. Seconds are of the processor, and in brackets of the clock: medians, of
``bound`` the best. Nothing here asserts a time.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

import mvc
from mvc import Environment
from mvc.ids import CommitId
from mvc.testing import fresh_process
from reproduce.derived.approaches import APPROACHES
from reproduce.derived.architectures import ARCHITECTURES, Architecture
from reproduce.derived.render import THESIS
from reproduce.experiment import known
from reproduce.workspace import bytes_in, empty_folder
from tests.benchmarks.measuring import head, row
from tests.maintenance.test_recovery_bound import configure

State = dict[str, torch.Tensor]
Times = list[tuple[float, float]]
RUNS = 5
NOISE = 1e-4
PIPELINES = {"U'_P": "none", "U'_P, zstd": "planes | zstd:huff", "mvc": "lossless"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--parts", nargs="*", default=["storage", "chain", "bound"])
    parser.add_argument("--architecture", default="resnet50", help="of chain and bound")
    parser.add_argument("--updates", type=int, default=50)
    parser.add_argument("--times", type=float, default=2.0, help="the bound, in whole models")
    parser.add_argument("--threads", type=int, default=1, help="of torch")
    parser.add_argument("--folder", type=Path, help="where to work, by default a temporary one")
    options = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(options.threads)
    architecture = known("architecture", ARCHITECTURES, options.architecture)
    with tempfile.TemporaryDirectory(prefix="mvc-bench-", dir=options.folder) as folder:
        place = Path(folder)
        if "storage" in options.parts:
            head("network", "approach", "bytes", "thesis", "beyond the tensors", "thesis")
            for name in ("mobilenetv2", "resnet152"):
                _storage(ARCHITECTURES[name], place)
        if "chain" in options.parts:
            for approach in ("U'_P", "mvc"):
                _chain(architecture, approach, options.updates, place)
        if "bound" in options.parts:
            _bound(architecture, options.updates, options.times, place)


def _storage(architecture: Architecture, folder: Path) -> None:
    state = architecture.build().state_dict()
    newer = _fine_tuned(state, architecture)
    changed = sum(newer[key].nbytes for key in _last(architecture))
    thesis = THESIS["storage"][architecture.name]["fine-tuned"]["U"][2]
    for approach, pipeline in PIPELINES.items():
        with empty_folder(folder / "storage") as place:
            mvc.Repository.init(place).close()
            _commit(place, state, pipeline)
            before = bytes_in(place / ".mvc")
            _commit(place, newer, pipeline)
            stored = bytes_in(place / ".mvc") - before
        beyond = (
            (f"{stored - changed:,}", f"{thesis - changed:,}") if pipeline == "none" else ("", "")
        )
        row(architecture.title, approach, f"{stored:,}", f"{thesis:,}", *beyond)


def _chain(architecture: Architecture, approach: str, updates: int, folder: Path) -> None:
    state, pipeline = architecture.build().state_dict(), PIPELINES[approach]
    saved, whole, first, last = Times(), Times(), Times(), Times()
    with empty_folder(folder / "chain") as place:
        mvc.Repository.init(place).close()
        ids = [_commit(place, state, pipeline)]
        for number in range(updates):
            state = _fine_tuned(state, architecture)
            ids.append(_commit(place, state, pipeline, saved))
            if number % 5 == 0:
                with empty_folder(folder / "whole") as alone:
                    mvc.Repository.init(alone).close()
                    _commit(alone, state, pipeline, whole)
        for _ in range(RUNS):
            _checkout(place, ids[0], architecture, first)
            _checkout(place, ids[-1], architecture, last)
        size = bytes_in(place / ".mvc")
    tenth = max(1, updates // 5)
    head(f"{architecture.title}, {updates} updates, {approach}", "seconds", "ratio")
    _times("save: a whole model (B)", whole, whole)
    _times(f"save: the first {tenth} updates", saved[:tenth], whole)
    _times(f"save: the last {tenth} updates", saved[-tenth:], whole)
    _times("recover: the whole model", first, first)
    _times(f"recover: {updates} updates later", last, first)
    row("bytes of all", f"{size:,}", "")


def _bound(architecture: Architecture, updates: int, times: float, folder: Path) -> None:
    state = architecture.build().state_dict()
    with empty_folder(folder / "bound") as place:
        mvc.Repository.init(place).close()
        ids = [_commit(place, state, "lossless")]
        whole = Times()
        for _ in range(RUNS):
            _restore(place, ids[0], whole)
        bound = times * min(wall for _, wall in whole)
        configure(place, max_recovery=round(bound, 3))
        for _ in range(updates):
            state = {key: _noisy(value) for key, value in state.items()}
            ids.append(_commit(place, state, "lossless"))
        with mvc.Repository.open(place, discover=False) as repo:
            found = repo.storage.stats()
        asked = {*ids[1::6], ids[-1], found.recovery_worst_commit}
        took = dict[CommitId, Times]()
        for _ in range(3):
            for commit in asked - {None}:
                _restore(place, commit, took.setdefault(commit, Times()))
    slowest = max(took.values(), key=lambda each: min(spent for spent, _ in each))
    head(f"{architecture.title}, {updates} updates of every tensor", "seconds", "to the bound")
    for title, each in (("the whole model", whole), ("the slowest version", slowest)):
        spent, wall = (min(kind) for kind in zip(*each, strict=True))
        row(f"restore: {title}", f"{spent:.3f} ({wall:.3f})", f"{spent / bound:.2f}")
    estimated = found.recovery_worst
    row("estimated by mvc: the slowest version", f"{estimated:.3f}", f"{estimated / bound:.2f}")
    row("store.max_recovery", f"{bound:.3f}", f"{1:.2f}")
    row("reset points, most deltas", f"{found.reset_points}, {found.deltas_worst}", "")
    row("bytes of all, as copies", f"{found.stored_bytes:,}, {found.raw_bytes:,}", "")


def _commit(folder: Path, state: State, pipeline: str, into: Times | None = None) -> CommitId:
    """One version, by a repository that is opened for it; the opening is not timed."""
    with mvc.Repository.open(folder, discover=False) as repo, _timed(into):
        attachments = {"environment.json": Environment.current().encoded}
        return repo.commit(state, pipeline=pipeline, attachments=attachments).id


def _checkout(folder: Path, commit: CommitId, architecture: Architecture, into: Times) -> None:
    fresh_process()
    with mvc.Repository.open(folder, discover=False) as repo, _timed(into):
        APPROACHES["deltas"].recover(repo, commit, architecture)


def _restore(folder: Path, commit: CommitId, into: Times) -> None:
    fresh_process()
    with _timed(into), mvc.Repository.open(folder, discover=False) as repo:
        repo.checkout(commit, to=folder / "out.safetensors", force=True)


@contextmanager
def _timed(into: Times | None) -> Iterator[None]:
    begun = time.process_time(), time.perf_counter()
    yield
    if into is not None:
        into.append((time.process_time() - begun[0], time.perf_counter() - begun[1]))


def _fine_tuned(state: State, architecture: Architecture) -> State:
    return state | {key: _noisy(state[key]) for key in _last(architecture)}


def _last(architecture: Architecture) -> tuple[str, str]:
    return f"{architecture.last}.weight", f"{architecture.last}.bias"


def _noisy(value: torch.Tensor) -> torch.Tensor:
    if not value.is_floating_point():
        return value + 1
    return value + NOISE * torch.randn_like(value)


def _times(title: str, times: Times, beside: Times) -> None:
    spent, wall = (statistics.median(each) for each in zip(*times, strict=True))
    spent_beside, wall_beside = (statistics.median(each) for each in zip(*beside, strict=True))
    ratio = f"{spent / spent_beside:.2f} ({wall / wall_beside:.2f})"
    row(title, f"{spent:.3f} ({wall:.3f})", ratio)


if __name__ == "__main__":
    main()
