"""The frontier's presets. That all their versions come back is told in ``tests.training``."""

from pathlib import Path

import numpy as np

from mvc.io.files import FileSystem
from mvc.pipelines.pipeline import Pipeline
from mvc.store.format import read_features
from tests.histories import CheckedHistory

PRESETS = ("frontier-0", "frontier-0.1", "frontier-1")


def trained() -> list[dict[str, np.ndarray]]:
    """Weights on a random walk, a bias that begins at zero, a counter."""
    rng = np.random.default_rng(2)
    w, b = rng.normal(size=(300, 40)) * 0.05, np.zeros(40)
    made = []
    for i in range(12):
        made.append({"w": w.astype("f4"), "b": b.astype("f4"), "steps": np.array(i)})
        w = w + rng.normal(size=w.shape) * 0.001
        b = b + rng.normal(size=b.shape) * 0.001
    return made


def test_coarser_presets_take_fewer_bytes(tmp_path: Path) -> None:
    sizes = []
    for preset in ("vsol-0-fast", *PRESETS):
        folder = tmp_path / preset
        with CheckedHistory(folder, settings={"store.reset_interval": 5}).open() as repo:
            for state in trained():
                made = repo.commit(state, pipeline=preset).state
                # Every spread is that of a tensor, so all are coarser than what was trained.
                assert preset not in PRESETS or len(np.unique(made["w"])) < 100
        sizes.append(sum(f.stat().st_size for f in folder.rglob("*.pack")))
        wanted = {"stages"} if preset in PRESETS else set()
        assert read_features(FileSystem(), folder / ".mvc") == wanted
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[1] < sizes[0] / 2


def test_presets() -> None:
    for preset in PRESETS:
        pipeline = Pipeline.parse(preset)
        assert not pipeline.decisions
        assert pipeline.coding().text == "steps | gaps | zstd:huff"
