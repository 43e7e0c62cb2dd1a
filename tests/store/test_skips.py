"""Skip deltas in repositories: what is stored, whatever happens to them meanwhile."""

from __future__ import annotations

import shutil
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from mvc.errors import DamagedData
from mvc.repo.commit.request import CommitOptions
from mvc.store.writing.bases import StoredBase
from tests.store.skipping import CheckedHistory

PIPELINES = ["vsol", "topk:0.075,min=0.001 | xor | lsb:20 | sparse | zstd:1", "frontier-1",
             "xor | lzma:6"]  # fmt: skip


def digits(number: int, step: int) -> int:
    return number % step + digits(number // step, step) if number else 0


@pytest.mark.parametrize("step", [2, 4])
@pytest.mark.parametrize("anew", [False, True])
def test_versions_and_their_manifests_skip(tmp_path: Path, step: int, anew: bool) -> None:
    """With the last version in memory, and in processes of their own without an index."""
    history = CheckedHistory(tmp_path / "r", f"skip:{step}", interval=20)
    repo = history.open()
    for i in range(23):
        if anew and i % 3 == 2:
            repo.close()
            shutil.rmtree(history.root / ".mvc/index.lmdb")
            repo = history.open()
        history.commit(repo, deploy="prod")
    graph = repo.handle.store.graph
    for i, id_ in enumerate(history.blobs(repo)):
        for each in (id_, history.manifest(repo, i).id):
            deltas = [s for s in graph.codings(each) if s.member.base]
            assert graph.path(each).depth <= digits(i % 20, step)
            assert len(deltas) == (1 if i % 20 or (i and each is id_) else 0)
    assert [i for i, depth in enumerate(history.depths(repo)) if not depth] == [0, 20]
    history.check(repo)
    repo.close()


def test_files_skip_and_each_copy_is_the_same(tmp_path: Path) -> None:
    history = CheckedHistory(tmp_path / "r", "skip:3")
    rng = np.random.default_rng(0)
    state = {"a": rng.standard_normal(5000).astype(np.float32), "n": np.arange(9)}
    kept = []
    for i in range(14):
        state["a"] = np.where(rng.random(5000) < 0.2, state["a"] * np.float32(1.000002), state["a"])
        save_file(state, history.root / "m.safetensors", {"epoch": str(i) * 40})
        (history.root / "notes.bin").write_bytes(bytes(rng.integers(0, 9, 3000 + i, np.uint8)))
        with history.open() as repo:
            paths = [history.root / "m.safetensors", history.root / "notes.bin"]
            kept.append((repo.commit(paths).id, [p.read_bytes() for p in paths]))
    with history.open() as repo:
        depth = {
            repo.handle.store.graph.path(c.id).depth
            for c in repo.manifest("HEAD").by_path["m.safetensors"].contents
        }
        assert max(depth) == digits(13, 3)
        for id_, want in kept:
            repo.checkout(id_, to=tmp_path / "out")
            there = [tmp_path / "out" / name for name in ("m.safetensors", "notes.bin")]
            assert [p.read_bytes() for p in there] == want
            shutil.rmtree(tmp_path / "out")
        assert not repo.storage.fsck(full=True).problems


@pytest.mark.parametrize("pipeline", PIPELINES)
def test_pipelines_skip(tmp_path: Path, pipeline: str) -> None:
    """Groups and lossy ones, too."""
    history = CheckedHistory(tmp_path / "r", "skip:4")
    made = []
    with history.open() as repo:
        for _ in range(18):
            history.commit(repo, pipeline=pipeline)
            state = repo.checkout("HEAD")
            made.append(state["w"].tobytes())
    with history.open() as repo:
        assert max(history.depths(repo)) <= 6
        got = [repo.checkout(id_)["w"].tobytes() for id_ in history.ids]
        assert got == made
        assert not repo.storage.fsck(full=True).problems


def test_branches_grow_from_their_own_line(tmp_path: Path) -> None:
    history = CheckedHistory(tmp_path / "r", "skip:4")
    with history.open() as repo:
        for i in range(40):
            if i in (10, 25):
                repo.switch(f"b{i}", create=True, start=history.ids[i // 3], force=True)
            history.commit(repo)
        assert max(history.depths(repo)) <= 8
        history.check(repo)


def test_the_layout_goes_on_after_gc_and_forget(tmp_path: Path) -> None:
    history = CheckedHistory(tmp_path / "r", "skip:4")
    with history.open() as repo:
        for _ in range(22):
            history.commit(repo)
        repo.storage.forget([history.ids[i] for i in (3, 4, 8, 16, 17)])
        repo.storage.gc(grace=timedelta(0))
        left = set(range(22)) - {3, 4, 8, 16, 17}
        history.check(repo, left)
    with history.open() as repo:
        for _ in range(20):
            history.commit(repo)
        left |= set(range(22, 42))
        history.check(repo, left)
        graph = repo.handle.store.graph
        for i in sorted(left):
            assert graph.path(history.manifest(repo, i).entries[0].contents[0].id).depth <= 9


def test_layouts_are_mixed_in_one_repository(tmp_path: Path) -> None:
    history = CheckedHistory(tmp_path / "r", "chain")
    for layout in ("chain", "skip:4", "chain:9", "skip:2"):
        history.configure("store.layout", layout)
        with history.open() as repo:
            for i in range(12):
                history.commit(
                    repo, options=CommitOptions(reset_point=layout == "skip:2" and i == 5)
                )
            history.check(repo)
    with history.open() as repo:
        assert repo.storage.repack().now is not None
        assert max(history.depths(repo)) <= 6
        history.check(repo)


def test_a_damaged_base_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The version before is the base where the one that the layout names cannot be read."""
    history = CheckedHistory(tmp_path / "r", "skip:4")
    with history.open() as repo:
        for _ in range(4):
            history.commit(repo)

    recovered = StoredBase.piece

    def piece(base: StoredBase, start: int) -> memoryview:
        if base.id == first:
            raise DamagedData("not readable")
        return recovered(base, start)

    with history.open() as repo:
        first = history.blobs(repo)[0]
        with monkeypatch.context() as patched:
            patched.setattr(StoredBase, "piece", piece)
            history.commit(repo)
        history.check(repo)
    with history.open() as repo:
        assert history.depths(repo)[4] == 4
