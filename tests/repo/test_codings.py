"""Repositories that hold what the first version of the format did not know."""

from pathlib import Path

import numpy as np
import pytest

from mvc.api.repository import Repository
from mvc.io.files import FileSystem
from mvc.maintenance.repair.journal import before_opening
from mvc.store.format import FORMAT, read_features
from tests.codecs.samples import quantised

NEW = (
    "xor | sparse | zstd:1",
    "xor | planes | zstd:22",
    "xor | sparse:values | lzma",
    "sub | planes:concat | zlib:9",
    "planes | bz2:9",
)
OLD = ("lossless", "vsol", "none", "sub | zigzag | planes:all | zstd:19")


def states(count: int) -> list[dict[str, np.ndarray]]:
    rng = np.random.default_rng(0)
    made = [{"w": rng.normal(size=(100, 40)).astype("f4"), "b": np.zeros(7, "f4")}]
    for _ in range(count - 1):
        w = made[-1]["w"].copy()
        at = rng.random(w.shape) < 0.05
        w[at] += np.float32(0.25)
        made.append({"w": w, "b": made[-1]["b"] - np.float32(0)})
    return made


def commit_all(folder: Path, pipeline: str) -> list[str]:
    with Repository.init(folder) as repo:
        return [str(repo.commit(state, pipeline=pipeline).id) for state in states(6)]


def features(folder: Path) -> frozenset[str]:
    return read_features(FileSystem(), folder / ".mvc")


@pytest.mark.parametrize("pipeline", NEW)
def test_the_format_names_them_before_they_are_written(tmp_path: Path, pipeline: str) -> None:
    ids = commit_all(tmp_path, pipeline)
    assert features(tmp_path) == {"stages"}
    with Repository.open(tmp_path) as repo:
        assert repo.storage.fsck(full=True).problems == ()
        for id_, state in zip(ids, states(6), strict=True):
            back = repo.checkout(id_)
            assert all(back[name].tobytes() == state[name].tobytes() for name in state)


@pytest.mark.parametrize("pipeline", OLD)
def test_and_no_others(tmp_path: Path, pipeline: str) -> None:
    commit_all(tmp_path, pipeline)
    assert features(tmp_path) == frozenset()


def test_quantised_blocks_are_named_too(tmp_path: Path) -> None:
    weights = np.random.default_rng(0).standard_normal((200, 320))
    versions = [{"w": quantised(weights + step / 1000)} for step in range(3)]
    with Repository.init(tmp_path) as repo:
        ids = [repo.commit({"w": versions[0]["w"][:, :199]}).id]
        assert features(tmp_path) == frozenset()
        ids = [repo.commit(state).id for state in versions]
        assert features(tmp_path) == {"blocks"}
        assert repo.storage.fsck(full=True).problems == ()
        for id_, state in zip(ids, versions, strict=True):
            assert np.array_equal(repo.checkout(id_)["w"], state["w"])


def test_repacking_under_another_pipeline(tmp_path: Path) -> None:
    ids = commit_all(tmp_path, "lossless")
    (tmp_path / ".mvc" / "config.yaml").write_text("commit:\n  pipeline: vsol-0.1-fast\n")
    with Repository.open(tmp_path) as repo:
        repo.storage.repack(interval=3)
        assert features(tmp_path) == {"stages"}
        assert repo.storage.fsck(full=True).problems == ()
        assert repo.checkout(ids[4])["w"].tobytes() == states(6)[4]["w"].tobytes()


@pytest.mark.parametrize("pipeline", [NEW[0], OLD[1]])
def test_a_lost_format_file_is_made_anew(tmp_path: Path, pipeline: str) -> None:
    commit_all(tmp_path, pipeline)
    (tmp_path / ".mvc" / FORMAT).write_bytes(b"")
    before = frozenset({"stages"}) if pipeline == NEW[0] else frozenset()
    before_opening(FileSystem(), tmp_path / ".mvc")
    assert features(tmp_path) == before
