"""What stats, gc and a new index cost grows with the versions, and only so much for each."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path

import pytest

import mvc
from mvc.maintenance.gc import plan_collection
from mvc.model.manifest import Manifest
from mvc.store import snapshot
from mvc.store.index.reader import IndexThresholds
from mvc.store.journal import frames
from mvc.store.packs import reader
from tests.benchmarks.bench_histories import build
from tests.index_files import index_file

FEW, MANY = 500, 2000
EVER = timedelta(days=36_000)
BYTES = 4000  # a version, with five objects, in memory (2,900 as measured; 10,000 as objects)

VERBS: dict[str, Callable[[mvc.Repository], object]] = {
    "stats": lambda repo: repo.storage.stats(),
    "gc -n": lambda repo: plan_collection(repo.handle.store, repo.handle.config),
    "gc -n --grace 36000d": lambda repo: plan_collection(
        repo.handle.store, repo.handle.config, grace=EVER
    ),
}


@pytest.fixture(scope="module")
def roots(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("histories")
    few, many = (build(folder / str(n), n) for n in (FEW, MANY))
    for root in (few, many):
        with mvc.Repository.open(root) as repo:
            repo.handle.store.index_anew()
    return few, many


class Decoded:
    """How often entries, headers of records and manifests were decoded."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.counts = dict.fromkeys(("entries", "headers", "manifests"), 0)
        self._count(monkeypatch, frames.Entry, "decode", "entries")
        self._count(monkeypatch, Manifest, "decode", "manifests")
        self._count(monkeypatch, reader, "decode_header", "headers")

    def _count(self, monkeypatch: pytest.MonkeyPatch, owner: object, name: str, kind: str) -> None:
        inner = getattr(owner, name)

        def counted(*args: object, **options: object) -> object:
            self.counts[kind] += 1
            return inner(*args, **options)

        monkeypatch.setattr(owner, name, counted)


@pytest.mark.parametrize("verb", VERBS)
def test_each_entry_and_header_is_decoded_once_and_few_manifests(
    roots: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    with mvc.Repository.open(roots[1]) as repo:
        decoded = Decoded(monkeypatch)
        VERBS[verb](repo)
    side = MANY // 100  # the operations of the deleted branch are read once more by gc
    assert MANY <= decoded.counts["entries"] <= MANY + 2 * side + 20
    assert MANY <= decoded.counts["headers"] <= MANY + 6 * side + 20
    assert decoded.counts["manifests"] <= 10


def test_a_new_index_decodes_each_entry_and_header_once(
    roots: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    index_file(roots[1]).unlink()
    # As a long journal is indexed: at once, and not through memory.
    monkeypatch.setattr(snapshot, "IndexThresholds", partial(IndexThresholds, far=1))
    decoded = Decoded(monkeypatch)
    with mvc.Repository.open(roots[1]) as repo:
        assert sum(1 for _ in repo.log(limit=3)) == 3
    assert MANY <= decoded.counts["entries"] <= MANY + 50
    assert MANY <= decoded.counts["headers"] <= MANY + 50


@pytest.mark.parametrize("verb", VERBS)
def test_memory_for_a_version(roots: tuple[Path, Path], verb: str) -> None:
    peaks = []
    for root in (roots[0], *roots):  # the first round loads what is imported late
        with mvc.Repository.open(root) as repo:
            tracemalloc.start()
            VERBS[verb](repo)
            peaks.append(tracemalloc.get_traced_memory()[1])
            tracemalloc.stop()
    _, few, many = peaks
    assert many - few <= BYTES * (MANY - FEW)


def test_what_the_plan_would_collect(roots: tuple[Path, Path]) -> None:
    with mvc.Repository.open(roots[1]) as repo:
        assert plan_collection(repo.handle.store, repo.handle.config, grace=EVER).commits == ()
        plan = plan_collection(repo.handle.store, repo.handle.config)
        assert len(plan.commits) == plan.operations == MANY // 100
        found = repo.storage.stats()
    assert (found.versions, found.tensors) == (MANY, 4 * MANY)
    assert found.deltas_worst <= 12
