"""Accelerate with lossy pipelines: the version holds production weights, the folder does not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

import mvc
from mvc.errors import CannotResume, WrongUsage
from tests.frameworks.need import need

need("accelerate")

from mvc.frameworks.accelerate.recording import attach  # noqa: E402
from tests.frameworks.accelerate_runs import Run  # noqa: E402
from tests.frameworks.lossy_runs import (  # noqa: E402
    BY_DATA,
    MODEL,
    PIPELINE,
    TRAINING,
    Served,
    check_versions,
)
from tests.training.runs import tensor_bits  # noqa: E402

UNTIL = 12
BUFFERS = ["1.running_mean", "1.running_var", "1.num_batches_tracked"]


@pytest.fixture
def repo(tmp_path: Path) -> Any:
    with mvc.Repository.init(tmp_path / "models") as made:
        yield made


def test_versions_and_going_on(tmp_path: Path, repo: mvc.Repository) -> None:
    saves = {n: tmp_path / f"at{n}" for n in (2, 4, 10)}
    plain = Run()
    with mvc.Repository.init(tmp_path / "plain") as other, attach(plain.accelerator, other) as both:
        plain.train(both, UNTIL)
    whole, served = Run(), Served()
    options = {"pipeline": PIPELINE, "on_deploy": served, "keep_training": True}
    with attach(whole.accelerator, repo, deploy="prod", **options) as attached:
        whole.train(attached, UNTIL, saves)
    assert whole.bits() == plain.bits()
    check_versions(repo, served, 3, BUFFERS)
    for (commit, _), folder in zip(served.versions, saves.values(), strict=True):
        trained = tensor_bits(repo.checkout(commit, path=TRAINING)["weights"])
        assert tensor_bits(load_file(folder / "model.safetensors")) == trained
    again = Run(seed=50)
    with attach(again.accelerator, repo) as attached:
        assert attached.load("HEAD~1").step == 2
        again.train(attached, UNTIL)
    assert again.bits() == whole.bits()


def test_refused_without_the_training_weights(tmp_path: Path, repo: mvc.Repository) -> None:
    run = Run()
    with attach(run.accelerator, repo, pipeline=PIPELINE) as attached:
        run.train(attached, 3, {3: tmp_path / "at3"})
        before = run.bits()
        with pytest.raises(CannotResume, match="production weights") as caught:
            attached.load()
    assert "keep_training" in (caught.value.hint or "")
    assert run.bits() == before
    run.net.load_state_dict(repo.checkout(path=MODEL))


def test_stages_that_ask_for_more_than_a_save_has(tmp_path: Path, repo: mvc.Repository) -> None:
    run = Run()
    for pipeline, stage in {**BY_DATA, "every:1/1 | xor | zstd:1": "every:1/1"}.items():
        with pytest.raises(WrongUsage, match=f"stage {stage} decides .* save_state always saves"):
            attach(run.accelerator, repo, pipeline=pipeline)
    with pytest.raises(WrongUsage, match=r"topk:0\.075.* goes by the loss") as caught:
        attach(run.accelerator, repo, pipeline="vsol-0.1-fast")
    assert "metrics" in (caught.value.hint or "")

    def loss() -> dict[str, float]:
        return {"loss": run.count.marks[-1]}

    with attach(run.accelerator, repo, pipeline="vsol-0.1-fast", metrics=loss) as attached:
        run.train(attached, 4, {n: tmp_path / f"at{n}" for n in (2, 4)})
        assert attached.report is not None and attached.report.durable == 2
