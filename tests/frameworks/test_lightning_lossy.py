"""MVCCallback with lossy pipelines: production weights beside a training that goes its own way."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.frameworks.need import need

need("lightning", "lightning.pytorch")

from mvc.errors import InvalidPipeline, WrongUsage  # noqa: E402
from mvc.frameworks.lightning.callback import MVCCallback  # noqa: E402
from tests.frameworks.lightning_runs import (  # noqa: E402
    BATCHES,
    SIZE,
    Net,
    existing,
    fit,
)
from tests.frameworks.lossy_runs import (  # noqa: E402
    MODEL,
    PIPELINE,
    TRAINING,
)
from tests.training.runs import tensor_bits  # noqa: E402

BUFFERS = ["norm.running_mean", "norm.running_var", "norm.num_batches_tracked"]


class Judge:
    """Accuracy on a batch, by a network of its own, which is made before the training begins."""

    def __init__(self) -> None:
        self.model = Net().eval()
        self.asked: list[Any] = []

    def __call__(self, state: Any, data: Any) -> float:
        self.asked.append(data)
        self.model.load_state_dict(state)
        with torch.no_grad():
            return (self.model(data[0]).argmax(1) == data[1]).float().mean().item()


def test_decisions_see_the_batches(tmp_path: Path) -> None:
    whole, _ = fit(max_epochs=2)
    judge = Judge()
    recording = MVCCallback(existing(tmp_path), pipeline="vsol-0-slow", evaluate=judge)
    trained, _ = fit(recording, max_epochs=2)
    report = recording.report
    assert report is not None and report.failed == 0
    # The ends of epochs, to which no batch belongs, are not among them.
    assert report.taken == report.durable + report.skipped == 2 * BATCHES
    assert report.skipped
    assert {(tuple(x.shape), tuple(y.shape)) for x, y in judge.asked} == {((SIZE, 6), (SIZE,))}
    assert trained.trace == whole.trace


def test_drift_watches_the_batches(tmp_path: Path) -> None:
    need("river")
    watched: list[Any] = []

    def monitor(data: Any) -> float:
        watched.append(data)
        return 0.0

    recording = MVCCallback(
        existing(tmp_path), pipeline="drift:adwin | xor | zstd:1", monitor=monitor
    )
    fit(recording, max_epochs=1)
    assert len(watched) == BATCHES
    report = recording.report
    assert report is not None and (report.durable, report.skipped) == (1, BATCHES - 1)


def test_stages_that_go_by_the_loss(tmp_path: Path) -> None:
    """The end of an epoch goes by the loss of its last batch."""
    recording = MVCCallback(existing(tmp_path / "a"), pipeline="vsol-0.1-fast")
    fit(recording, max_epochs=1)
    assert recording.report is not None and recording.report.durable == BATCHES + 1
    first, second = (entry.commit.metrics["loss"] for entry in recording.repo.log(limit=2))
    assert first == second

    class Manual(Net):
        def __init__(self) -> None:
            super().__init__()
            self.automatic_optimization = False

        def training_step(self, batch: Any, batch_idx: int) -> None:
            loss = super().training_step(batch, batch_idx)
            self.optimizers().zero_grad()
            self.manual_backward(loss)
            self.optimizers().step()

    with pytest.raises(WrongUsage, match=r"topk:0\.075.* goes by the loss") as caught:
        fit(
            MVCCallback(existing(tmp_path / "b"), pipeline="vsol-0.1-fast"),
            module=Manual,
            max_epochs=1,
        )
    assert "training_step" in (caught.value.hint or "")


def test_buffers_of_layers_that_are_made_late(tmp_path: Path) -> None:
    """In ``configure_model``, which Lightning calls after the callback was set up."""

    class Late(Net):
        def __init__(self) -> None:
            super().__init__()
            self.late: nn.Module | None = None

        def configure_model(self) -> None:
            if self.late is None:
                self.late = nn.BatchNorm1d(6)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            assert self.late is not None
            return super().forward(self.late(x))

    recording = MVCCallback(
        existing(tmp_path), pipeline=PIPELINE, keep_training=True, exact=["first.weight"]
    )
    fit(recording, module=Late, max_epochs=1)
    made = tensor_bits(recording.repo.checkout(path=MODEL))
    trained = tensor_bits(recording.repo.checkout(path=TRAINING)["weights"])
    for name in ("late.running_mean", "late.running_var", "first.weight"):
        assert made[name] == trained[name]
    assert made["last.weight"] != trained["last.weight"]


def test_what_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(InvalidPipeline):
        MVCCallback(existing(tmp_path), pipeline="vsol-2-fast")
    with pytest.raises(WrongUsage, match="dsed:0 compares accuracies"):
        fit(MVCCallback(existing(tmp_path), pipeline="vsol-0-slow"), max_epochs=1)
    with pytest.raises(WrongUsage, match="the model is not recorded"):
        fit(MVCCallback(existing(tmp_path), pipeline=PIPELINE, include=["optimizer"]), max_epochs=1)
    with pytest.raises(WrongUsage, match="keep_training is for lossy pipelines"):
        fit(MVCCallback(existing(tmp_path), keep_training=True), max_epochs=1)
