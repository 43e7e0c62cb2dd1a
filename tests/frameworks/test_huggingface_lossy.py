"""The Trainer's callback with lossy pipelines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import mvc
from mvc.errors import CannotResume, WrongUsage
from tests.frameworks.need import need

transformers = need("transformers", "accelerate")

from mvc.frameworks.huggingface.callback import MVCCallback  # noqa: E402
from tests.frameworks.huggingface_runs import bits, disturb, model, trainer  # noqa: E402
from tests.frameworks.lossy_runs import (  # noqa: E402
    BY_DATA,
    PIPELINE,
    TRAINING,
    Served,
    check_versions,
)
from tests.training.runs import tensor_bits  # noqa: E402

STEPS = 6
BUFFERS = ["norm.running_mean", "norm.running_var", "norm.num_batches_tracked"]


class Normed(transformers.GPT2LMHeadModel):  # type: ignore[misc, name-defined]
    """Tied embeddings, dropout, and the statistics of a batch norm."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.norm = nn.BatchNorm1d(8)

    def forward(self, input_ids: Any = None, labels: Any = None, **options: Any) -> Any:
        made = super().forward(input_ids=input_ids, labels=labels, **options)
        made.loss = made.loss + 0.01 * self.norm(made.logits).square().mean()
        return made


def normed() -> Normed:
    return Normed(model().config)


@pytest.fixture
def repo(tmp_path: Path) -> Any:
    with mvc.Repository.init(tmp_path / "models") as made:
        yield made


def test_versions_and_going_on(tmp_path: Path, repo: mvc.Repository) -> None:
    whole = trainer(tmp_path / "a", [], net=normed, max_steps=STEPS)
    whole.train()
    served = Served()
    recording = MVCCallback(
        repo, deploy="prod", pipeline=PIPELINE, on_deploy=served, keep_training=True
    )
    recorded = trainer(tmp_path / "b", [recording], net=normed, max_steps=STEPS)
    recorded.train()
    assert bits(recorded) == bits(whole)
    check_versions(repo, served, STEPS, BUFFERS)
    live = repo.checkout(target="prod")
    assert torch.equal(live["lm_head.weight"], live["transformer.wte.weight"])

    disturb()
    recording = MVCCallback(repo, every_n_steps=100)
    again = trainer(tmp_path / "c", [recording], seed=8, net=normed, max_steps=STEPS)
    recording.resume(again, "HEAD~3")
    assert recording.resumed is not None
    assert (recording.resumed.step, recording.resumed.differs) == (3, ())
    assert bits(again) == bits(whole)

    folder = recording.checkpoint("HEAD~3", tmp_path / "checkpoint-3")
    trained = repo.checkout("HEAD~3", path=TRAINING)["weights"]
    assert tensor_bits(load_file(Path(folder) / "model.safetensors")) == tensor_bits(trained)
    disturb()
    third = trainer(tmp_path / "d", [], net=normed, max_steps=STEPS)
    third.train(resume_from_checkpoint=folder)
    assert bits(third) == bits(whole)


def test_refused_without_the_training_weights(tmp_path: Path, repo: mvc.Repository) -> None:
    trainer(tmp_path, [MVCCallback(repo, pipeline=PIPELINE)], max_steps=2).train()
    recording = MVCCallback(repo)
    with pytest.raises(CannotResume, match="production weights") as caught:
        recording.resume(trainer(tmp_path, [recording], max_steps=2))
    assert "keep_training" in (caught.value.hint or "")
    with pytest.raises(CannotResume, match="production weights"):
        recording.checkpoint("HEAD", tmp_path / "checkpoint")
    assert not (tmp_path / "checkpoint").exists()
    model().load_state_dict(repo.checkout("HEAD"))


def test_stages_that_go_by_the_loss(tmp_path: Path, repo: mvc.Repository) -> None:
    recording = MVCCallback(repo, pipeline="vsol-0.1-fast")
    trainer(tmp_path, [recording], max_steps=3).train()
    assert recording.report is not None and recording.report.durable == 3
    with pytest.raises(WrongUsage, match=r"topk:0\.075.* does not log") as caught:
        trainer(tmp_path, [recording], max_steps=3, logging_steps=2).train()
    assert "logging_steps=1" in (caught.value.hint or "")
    with pytest.raises(WrongUsage, match="does not log"):
        trainer(tmp_path, [recording], max_steps=3, logging_strategy="epoch").train()
    given = MVCCallback(repo, pipeline="vsol-0.1-fast", metrics={"loss": 0.5})
    trainer(tmp_path, [given], max_steps=2, logging_steps=2).train()
    assert given.report is not None and given.report.durable == 2


def test_decisions(tmp_path: Path, repo: mvc.Repository) -> None:
    """Those that count steps; the Trainer has no data for the others."""
    recording = MVCCallback(repo, pipeline="every:1/2 | xor | lsb:20 | planes | zstd:1")
    trainer(tmp_path, [recording], max_steps=STEPS).train()
    assert recording.report is not None
    assert (recording.report.durable, recording.report.skipped) == (2, 4)
    for pipeline, stage in BY_DATA.items():
        with pytest.raises(WrongUsage, match=f"stage {stage} goes by the data .* Trainer"):
            MVCCallback(repo, pipeline=pipeline)
