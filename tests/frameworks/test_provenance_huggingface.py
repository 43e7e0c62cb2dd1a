"""A run of the Trainer is recorded, and trained again to the same bits in fresh processes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import mvc
from tests.frameworks.need import need

transformers = need("transformers", "accelerate")

from tests.frameworks.huggingface_service import finetune, tiny  # noqa: E402


def test_a_run_of_the_trainer_is_bit_equal_twice_in_fresh_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, one_thread: None
) -> None:
    monkeypatch.chdir(tmp_path)  # the Trainer makes a folder
    rng = np.random.default_rng(0)
    lines = ["".join(chr(97 + n) for n in rng.integers(0, 26, 8)) for _ in range(20)]
    (tmp_path / "lines.txt").write_text("\n".join(lines))
    with mvc.Repository.init(tmp_path / "repo") as repo:
        torch.manual_seed(0)
        model = mvc.constructed(tiny)
        start = repo.commit(model.state_dict())
        # The first of the two replays proves the recipe, and the weights are given up.
        with mvc.record(
            repo, model, data=tmp_path / "lines.txt", service=finetune, drop_weights=True
        ) as run:
            run.train(steps=4)
        repo.storage.gc(grace="0")
        assert run.result.root != start.root
        assert {"transformers", "torch"} <= run.recipe.packages.keys()
        again = mvc.retrain(repo, run.result.id, trust=True)
        there = model.state_dict()
        assert all(torch.equal(again.state[name], there[name]) for name in there)
