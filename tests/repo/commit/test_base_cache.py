"""Versions in memory for the next commit: within a budget, and the same bytes whatever it is."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

import mvc
from mvc.errors import SourceChanged
from mvc.store.recovery.recover import Recovery
from mvc.store.writing.object_writer import ObjectWriter

MB = 1_000_000


def state(
    number: int, size: int = 100_000, tensors: int = 4, seed: int = 0
) -> dict[str, np.ndarray]:
    """Tensors of ``size`` bytes; a fifth of each changes from one version to the next."""
    made = {}
    for i in range(tensors):
        words = np.random.default_rng(seed + i).standard_normal(size // 4).astype(np.float32)
        for past in range(1, number + 1):
            words[past % 5 :: 5] += past
        made[f"t{i}"] = words
    return made


@contextmanager
def opened(folder: Path, keep_base: str) -> Iterator[mvc.Repository]:
    mvc.Repository.init(folder).close()
    (folder / ".mvc/config.yaml").write_text(f"python:\n  keep_base: {keep_base}\n")
    with mvc.Repository.open(folder) as repo:
        yield repo


def growth(repo: mvc.Repository, commits: list[tuple[str, int]]) -> int:
    """How much more memory the process holds after the second half of these commits.

    In the first half the encoder gets its buffers. Each is a path and a version, of 2 MB.
    """
    tracemalloc.start()
    try:
        half = 0
        for i, (path, number) in enumerate(commits):
            if i == len(commits) // 2:
                gc.collect()
                half = tracemalloc.get_traced_memory()[0]
            repo.commit(state(number, MB // 2), path=path)
        gc.collect()
        return tracemalloc.get_traced_memory()[0] - half
    finally:
        tracemalloc.stop()


def least_growth(repo: mvc.Repository, commits: list[tuple[str, int]]) -> int:
    """Of two passes: a busy machine gives the encoder its last buffers late."""
    return min(growth(repo, commits), growth(repo, commits))


def test_all_paths_together_keep_to_the_budget(tmp_path):
    each = [(f"p{i}", i) for i in range(12)]
    with opened(tmp_path / "all", "auto") as repo:
        assert growth(repo, each) > 11 * MB
    with opened(tmp_path / "some", "5MB") as repo:
        assert least_growth(repo, each) < MB


def test_older_versions_keep_to_it_too(tmp_path):
    series = [(f"p{n // 6}", n) for n in range(24)]
    with opened(tmp_path / "two", "auto") as repo:
        assert growth(repo, series) > 7 * MB  # two paths, two versions of each
    with opened(tmp_path / "one", "5MB") as repo:
        assert least_growth(repo, series) < MB


def recovered(repo: mvc.Repository, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many tensors (of 100 kB; lists of files are smaller) each of 20 commits recovers."""
    seen, whole, found = 0, Recovery.piece, []

    def piece(self, id_, start, out):
        nonlocal seen
        seen += len(out) == 100_000
        return whole(self, id_, start, out)

    with monkeypatch.context() as patched:
        patched.setattr(Recovery, "piece", piece)
        for number in range(20):
            seen = 0
            repo.commit(state(number))
            found.append(seen)
    return found


def test_the_base_of_a_longer_step_is_in_memory_where_there_is_room(tmp_path, monkeypatch):
    with opened(tmp_path / "room", "auto") as repo:
        found = recovered(repo, monkeypatch)
        assert {n: count for n, count in enumerate(found) if count} == {16: 4}
    with opened(tmp_path / "exact", "450kB") as repo:  # one model and no more
        found = recovered(repo, monkeypatch)
        assert {n: count for n, count in enumerate(found) if count} == {4: 4, 8: 4, 12: 4, 16: 4}


@pytest.mark.parametrize("pipeline", ["lossless", "vsol"])
def test_what_is_stored_does_not_depend_on_the_budget(tmp_path, pipeline):
    sizes = {}
    for keep_base in ("auto", "none", "250kB", "450kB", "650kB"):
        with opened(tmp_path / keep_base, keep_base) as repo:
            made = []
            for number in range(11):
                given = state(number)
                if number == 6:
                    given["t1"] = np.arange(50, dtype=np.float32)  # another shape, and back
                if number > 8:
                    del given["t2"]
                done = repo.commit(given, pipeline=pipeline)
                made.append((done.id, {k: v.tobytes() for k, v in given.items()}))
                other = state(number, 60_000, 2, seed=10)
                repo.commit(other, path="other", pipeline=pipeline)
            packs = (tmp_path / keep_base / ".mvc/packs").iterdir()
            sizes[keep_base] = sum(pack.stat().st_size for pack in packs)
        with mvc.Repository.open(tmp_path / keep_base) as repo:
            for id_, want in made:
                got = repo.checkout(id_, path="model.safetensors")
                assert {k: v.tobytes() for k, v in got.items()} == want
            assert not repo.storage.fsck(full=True).problems
    assert len(set(sizes.values())) == 1, sizes


def test_a_tensor_without_room_that_changes_is_noticed(tmp_path, monkeypatch):
    with opened(tmp_path, "250kB") as repo:
        repo.commit(state(0))
        given, original = state(1), ObjectWriter.drain

        def meddle(self):
            original(self)
            given["t3"][0] += 1

        monkeypatch.setattr(ObjectWriter, "drain", meddle)
        with pytest.raises(SourceChanged, match="'t3'"):
            repo.commit(given)
        monkeypatch.undo()
        assert repo.checkout(repo.commit(state(2)).id)["t3"].tobytes() == state(2)["t3"].tobytes()
