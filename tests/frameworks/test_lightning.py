"""MVCCallback: what is recorded when, and what goes wrong."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from tests.frameworks.need import need

need("lightning", "lightning.pytorch")

import lightning.pytorch as pl  # noqa: E402
from lightning.pytorch.strategies import FSDPStrategy  # noqa: E402

import mvc  # noqa: E402
from mvc.errors import (  # noqa: E402
    InvalidPipeline,
    NotARepository,
    StorageFull,
    UnknownRevision,
    UnsupportedTensor,
    WrongUsage,
)
from mvc.frameworks.lightning.callback import MVCCallback, MVCCheckpointIO  # noqa: E402
from tests.frameworks.lightning_runs import (  # noqa: E402
    BATCHES,
    SIZE,
    Net,
    digest,
    existing,
    fit,
    loader,
    validation,
)
from tests.frameworks.trainings import MODEL, PIPELINE, TRAINING  # noqa: E402
from tests.training.gate import Gate  # noqa: E402
from tests.training.runs import tensor_bits  # noqa: E402


def history(repo: mvc.Repository) -> list[Any]:
    return list(repo.log())[::-1]


def test_the_end_of_an_epoch_is_a_version_of_its_own(tmp_path: Path) -> None:
    with mvc.Repository.init(tmp_path) as repo:
        callback = MVCCallback(repo, deploy="prod")
        model, _ = fit(callback, validate=validation(), max_epochs=2)
        report = callback.report
        assert (report.steps, report.taken, report.durable, report.failed) == (10, 12, 12, 0)
        log = history(repo)
        wanted = [1, 2, 3, 4, 5, 5, 6, 7, 8, 9, 10, 10]  # an epoch's end is one of its own
        assert [entry.commit.message for entry in log] == [f"step {n}" for n in wanted]
        assert all("train_loss" in entry.commit.metrics for entry in log)
        assert "val_loss" not in log[4].commit.metrics
        assert "val_loss" in log[5].commit.metrics
        assert log[3].commit.metrics["loss"] == log[3].commit.metrics["train_loss"]
        live = repo.checkout(target="prod")
        assert digest(live) == digest(model.state_dict())
        Net().load_state_dict(live)


def test_accumulated_gradients_are_no_version(tmp_path: Path) -> None:
    callback = MVCCallback(existing(tmp_path))
    fit(callback, max_epochs=1, accumulate_grad_batches=2)
    kept = [
        callback.repo.checkout(entry.id, path="model.training.safetensors")["batch"]
        for entry in history(callback.repo)
    ]
    assert [(k["epoch"], k["batch"], k["global_step"]) for k in kept] == [
        (0, 2, 1), (0, 4, 2), (0, 5, 3), (1, 0, 3)
    ]  # fmt: skip


def test_evaluation_and_trial_runs_record_nothing(tmp_path: Path) -> None:
    callback = MVCCallback(existing(tmp_path))
    model, trainer = fit(callback, validate=validation(), fast_dev_run=True)
    trainer.validate(model, validation(), verbose=False)
    assert callback.report is None
    assert callback.repo.refs() == []


def test_arguments_of_the_plugin(tmp_path: Path) -> None:
    with pytest.raises(WrongUsage, match=r"repo must be .*, not of type Linear"):
        MVCCheckpointIO(torch.nn.Linear(1, 1))
    with pytest.raises(NotARepository, match="not a repository"):
        MVCCheckpointIO(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_the_callback_is_the_last(tmp_path: Path) -> None:
    class Doubles(pl.Callback):
        def on_train_batch_end(self, trainer: Any, pl_module: Any, *_: Any) -> None:
            with torch.no_grad():
                pl_module.last.bias.mul_(2)

    callback = MVCCallback(existing(tmp_path))
    model, _ = fit(callback, Doubles(), max_steps=2)
    assert digest(callback.repo.checkout("HEAD")) == digest(model.state_dict())


class Clips(Net):
    """Changes its weights when all callbacks have seen the batch, and draws a number."""

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        with torch.no_grad():
            self.last.weight.clamp_(-0.1, 0.1).add_(0.001 * torch.rand(()))


def test_after_the_hook_of_the_module(tmp_path: Path) -> None:
    whole, _ = fit(module=Clips, max_epochs=2)
    callback = MVCCallback(existing(tmp_path))
    model, _ = fit(callback, module=Clips, max_steps=7)
    assert digest(callback.repo.checkout("HEAD")) == digest(model.state_dict())
    assert "on_train_batch_end" not in vars(model)
    rest, _ = fit(callback, module=Clips, resume=callback.resume(), max_epochs=2, first_seed=8)
    assert model.trace + rest.trace == whole.trace


def test_weights_only(tmp_path: Path) -> None:
    callback = MVCCallback(existing(tmp_path), include="model")
    fit(callback, max_steps=1)
    kept = callback.repo.checkout("HEAD", path="model.training.safetensors")
    assert (kept["optimizer"], kept["scheduler"], kept["rng"]) == (None, None, None)
    with pytest.raises(WrongUsage, match="include names 'weights'"):
        MVCCallback(existing(tmp_path), include=["weights"])


class Breaks(Net):
    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        if batch_idx == 3:
            raise RuntimeError("the data ended")
        return super().training_step(batch, batch_idx)


def test_a_failure_behind_is_noted_on_another_error(tmp_path: Path) -> None:
    class BreaksSoon(Net):
        def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
            if batch_idx:
                raise RuntimeError("the data ended")

    with mvc.Repository.init(tmp_path) as repo:
        Gate(repo, {1: StorageFull("no space left")}).open()
        with pytest.raises(RuntimeError, match="the data ended") as caught:
            fit(MVCCallback(repo), module=BreaksSoon)
    assert "a version could not be recorded either: no space left" in caught.value.__notes__[0]


def test_what_cannot_be_kept_is_refused_by_name(tmp_path: Path) -> None:
    class Adds(Net):
        def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
            checkpoint["mine"] = {"tools": [print]}

    with pytest.raises(UnsupportedTensor, match=r"checkpoint\.mine\.tools\.0 is of type"):
        fit(MVCCallback(existing(tmp_path)), module=Adds)


def test_hyper_parameters_are_left_out(tmp_path: Path) -> None:
    class Has(Net):
        def __init__(self) -> None:
            super().__init__()
            self.hparams.update(tool=print)

    callback = MVCCallback(existing(tmp_path))
    fit(callback, module=Has, max_steps=1)
    kept = callback.repo.checkout("HEAD", path="model.training.safetensors")
    assert "hyper_parameters" not in kept["lightning"]["checkpoint"]["value"]


class Configured(Net):
    def __init__(self, **config: Any) -> None:
        super().__init__()
        self.save_hyperparameters()


CONFIG: dict[str, Any] = {
    "rate": 0.01, "layers": [4, 8], "net": {"width": 16, "act": "relu"}, "max_tokens": 512,
    "flags": SimpleNamespace(half=True), "nothing": None, "scale": torch.tensor(0.5),
    "tokenizer_name": "gpt2",
    "api_key": "sk-1", "hub": {"token": "hf-2"}, "password": 4711, "tracking": "http://me:pw3@host",
    "text": "x" * 5000, "lines": "a\nb", "function": print, "many": list(range(5000)),
}  # fmt: skip


def test_hyper_parameters_are_params(tmp_path: Path) -> None:
    """Plain values, as texts that parse back; no secrets, no objects, nothing long."""
    fit(MVCCallback(existing(tmp_path)), module=lambda: Configured(**CONFIG), max_steps=1)
    with mvc.Repository.open(tmp_path) as repo:
        params = dict(repo.version().params)
    assert params.pop("plateau", "false") == "false"
    assert params == {
        "rate": "0.01", "layers": "[4, 8]", "net.width": "16", "net.act": "relu",
        "max_tokens": "512", "tokenizer_name": "gpt2",
        "flags.half": "true", "nothing": "null", "scale": "0.5",
    }  # fmt: skip


def test_a_foreign_parameter_is_refused_by_name(tmp_path: Path) -> None:
    class Foreign(Net):
        def configure_optimizers(self) -> Any:
            return torch.optim.SGD([*self.parameters(), torch.nn.Parameter(torch.ones(1))], lr=0.1)

    with pytest.raises(UnsupportedTensor, match="parameter 8 of the optimizer's group 0"):
        fit(MVCCallback(existing(tmp_path)), module=Foreign)


def test_sharded_strategies_are_refused(tmp_path: Path) -> None:
    trainer = SimpleNamespace(strategy=FSDPStrategy())
    with pytest.raises(WrongUsage, match="does not work with FSDPStrategy"):
        MVCCallback(existing(tmp_path)).setup(trainer, None, "fit")


@pytest.mark.parametrize("fails", [False, True], ids=["ends", "fails"])
def test_loops_have_their_own_methods_back(tmp_path: Path, fails: bool) -> None:
    callback = MVCCallback(existing(tmp_path))
    trainer = pl.Trainer(
        callbacks=[callback], accelerator="cpu", logger=False, max_epochs=1,
        enable_progress_bar=False, enable_model_summary=False, enable_checkpointing=False,
    )  # fmt: skip
    if fails:
        with pytest.raises(RuntimeError):
            trainer.fit(Breaks(), loader())
    else:
        trainer.fit(Net(), loader())
    assert "_load_combined_loader_states" not in vars(trainer.fit_loop)
    assert "on_run_start" not in vars(trainer.fit_loop.epoch_loop)


def test_two_processes_and_one_writer(tmp_path: Path) -> None:
    """Rank 0 writes; the versions are as many as its steps, and it cannot be gone on from alone."""
    callback = MVCCallback(existing(tmp_path))
    fit(callback, max_epochs=1, strategy="ddp_fork", devices=2)
    messages = [entry.commit.message for entry in history(callback.repo)]
    assert messages == ["step 1", "step 2", "step 3", "step 3"]
    names = list(callback.repo.checkout("HEAD"))
    assert names == list(Net().state_dict())


def test_checkpoints_of_a_training_go_onto_one_branch(tmp_path: Path) -> None:
    with mvc.Repository.init(tmp_path / "models") as repo:
        plugin = MVCCheckpointIO(repo, run="a")
        plugin.save_checkpoint({"epoch": 1}, tmp_path / "a.ckpt")
        assert repo.version().run == "a"
        repo.switch("aside", create=True)
        plugin.save_checkpoint({"epoch": 2}, tmp_path / "b.ckpt")
        assert len(list(repo.log("main"))) == 2 and len(list(repo.log("aside"))) == 1
        plugin.teardown()
        plugin.save_checkpoint({"epoch": 3}, tmp_path / "c.ckpt")
        assert len(list(repo.log("main"))) == 2 and len(list(repo.log("aside"))) == 2
        with pytest.raises(UnknownRevision, match="no branch nowhere"):
            MVCCheckpointIO(repo, branch="nowhere").save_checkpoint({}, tmp_path / "d.ckpt")


# -- lossy pipelines: production weights beside a training that goes its own way ------------


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
    assert report.failed == 0
    # The ends of epochs, to which no batch belongs, are not among them.
    assert report.taken == report.durable + report.skipped == 2 * BATCHES
    assert report.skipped
    assert {(tuple(x.shape), tuple(y.shape)) for x, y in judge.asked} == {((SIZE, 6), (SIZE,))}
    assert trained.trace == whole.trace


def test_guards_see_the_batches(tmp_path: Path) -> None:
    judge = Judge()
    recording = MVCCallback(existing(tmp_path), pipeline="frontier-1-guarded", evaluate=judge)
    fit(recording, max_epochs=1)
    assert (recording.report.failed, recording.report.durable) == (0, BATCHES)
    assert judge.asked


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
    assert (report.durable, report.skipped) == (1, BATCHES - 1)


def test_stages_that_go_by_the_loss(tmp_path: Path) -> None:
    """The end of an epoch needs the loss of its last batch."""
    recording = MVCCallback(existing(tmp_path / "a"), pipeline="vsol-0.1-fast")
    fit(recording, max_epochs=1)
    assert recording.report.durable == BATCHES + 1
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

    with pytest.raises(WrongUsage, match=r"topk:0\.075.* needs the loss") as caught:
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
    with pytest.raises(WrongUsage, match="keep_training is only for lossy pipelines"):
        fit(MVCCallback(existing(tmp_path), keep_training=True), max_epochs=1)


# -- docs/frameworks/lightning.md: the example prints what the page says --------------------

PAGE = Path(__file__).parents[2] / "docs" / "frameworks" / "lightning.md"


def without_ids(text: str) -> list[str]:
    return re.sub(r"\b[0-9a-f]{64}\b", "ID", text).split()


def test_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = re.search(
        r"```python\n(.*?)```\n\nThis prints\n\n```\n(.*?)```", PAGE.read_text(), re.S
    )
    assert found is not None
    monkeypatch.chdir(tmp_path)
    exec(compile(found[1], str(PAGE), "exec"), {"__name__": "page"})
    assert without_ids(capsys.readouterr().out) == without_ids(found[2])
