"""The frontier's presets through a repository: what was deployed comes back, from either side."""

from pathlib import Path

import numpy as np
import pytest

import mvc
from mvc.io.files import FileSystem
from mvc.pipelines.pipeline import Pipeline
from mvc.store.format import read_features

PRESETS = ("frontier-0", "frontier-0.1", "frontier-1")
VERSIONS = 12


def trained(seed: int) -> list[dict[str, np.ndarray]]:
    """Weights on a random walk, a bias that begins at zero, a counter."""
    rng = np.random.default_rng(seed)
    w, b = rng.normal(size=(300, 40)) * 0.05, np.zeros(40)
    made = []
    for i in range(VERSIONS):
        made.append({"w": w.astype("f4"), "b": b.astype("f4"), "steps": np.array(i)})
        w = w + rng.normal(size=w.shape) * 0.001
        b = b + rng.normal(size=b.shape) * 0.001
    return made


def open_repo(folder: Path) -> mvc.Repository:
    mvc.Repository.init(folder).close()
    (folder / ".mvc/config.yaml").write_text("store:\n  reset_interval: 5\n")
    return mvc.Repository.open(folder)


def same(a: dict[str, np.ndarray], b: dict[str, np.ndarray]) -> bool:
    return all(np.asarray(a[n]).tobytes() == b[n].tobytes() for n in b) and a.keys() == b.keys()


@pytest.mark.parametrize("preset", PRESETS)
def test_every_version_comes_back(tmp_path: Path, preset: str) -> None:
    deployed = []
    with open_repo(tmp_path) as repo:
        for state in trained(1):
            committed = repo.commit(state, pipeline=preset)
            deployed.append((committed.id, dict(committed.state)))
        assert read_features(FileSystem(), tmp_path / ".mvc") == {"codings-2"}
        assert repo.storage.fsck(full=True).sound
        # Every spread is that of a tensor, so all of them are coarser than what was trained.
        assert all(len(np.unique(state["w"])) < 100 for _, state in deployed)
        repo.storage.repack(interval=3)
    with mvc.Repository.open(tmp_path) as repo:
        for id_, state in deployed:
            assert same(repo.checkout(id_), state)
        assert repo.storage.fsck(full=True).sound


def test_coarser_presets_take_fewer_bytes(tmp_path: Path) -> None:
    sizes = []
    for preset in ("vsol-0-fast", *PRESETS):
        with open_repo(tmp_path / preset) as repo:
            for state in trained(2):
                repo.commit(state, pipeline=preset)
        sizes.append(sum(f.stat().st_size for f in (tmp_path / preset).rglob("*.pack")))
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[1] < sizes[0] / 2


def test_presets() -> None:
    for preset in PRESETS:
        pipeline = Pipeline.parse(preset)
        assert not pipeline.decisions
        assert pipeline.coding().text == "steps | gaps | zstd:huff"
