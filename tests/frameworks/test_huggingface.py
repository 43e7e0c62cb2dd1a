"""MVCCallback: what the Trainer does becomes versions, and any of them goes on bit for bit."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import mvc
from mvc.errors import CannotResume, UnknownRevision, WrongUsage
from tests.frameworks.need import need

transformers = need("transformers", "accelerate")

from mvc.frameworks.common import ranks  # noqa: E402
from mvc.frameworks.huggingface.callback import MVCCallback  # noqa: E402
from tests.frameworks.huggingface_runs import (  # noqa: E402
    EPOCH,
    bits,
    disturb,
    losses,
    model,
    tokens,
    trainer,
)
from tests.frameworks.trainings import PIPELINE  # noqa: E402

STEPS = 10


def steps(repo: mvc.Repository) -> list[int]:
    """The steps of which there are versions, from the first to the last."""
    return [int(e.commit.message.split()[1]) for e in repo.log()][::-1]


def bfloat16() -> Any:
    return model().to(torch.bfloat16)


def mask(rows: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    """A collator that draws, as that of masked language models does."""
    found = torch.stack([row["input_ids"] for row in rows])
    noise = torch.rand(found.shape) < 0.2
    return {"input_ids": found.masked_fill(noise, 0), "labels": found}


CASES: dict[str, dict[str, Any]] = {
    "evaluated": {"eval_strategy": "steps", "eval_steps": 1},
    "evaluated-by-epoch": {"eval_strategy": "epoch", "save_strategy": "epoch"},
    "order-from-global-generators": {"accelerator_config": {"use_seedable_sampler": False}},
    "plateau": {
        "lr_scheduler_type": "reduce_lr_on_plateau", "eval_strategy": "steps", "eval_steps": 2,
        "warmup_steps": 0, "metric_for_best_model": "eval_loss",
    },
    # Its moments are float32 beside bfloat16 weights: torch's own loading would round them.
    "adafactor-bfloat16": {"optim": "adafactor", "net": bfloat16},
}  # fmt: skip


def options_of(case: str) -> dict[str, Any]:
    given = dict(CASES[case])
    if "eval_strategy" in given:
        given["eval_dataset"] = tokens()[:4]
    return given


@pytest.mark.parametrize("case", CASES)
def test_goes_on_bit_for_bit(tmp_path: Path, repo: mvc.Repository, case: str) -> None:
    """From the end of the first epoch and the second; with dropout, shuffling, accumulation."""
    whole = trainer(tmp_path / "a", [MVCCallback(repo)], **options_of(case))
    whole.train()
    expected = bits(whole)
    assert steps(repo) == [*range(1, STEPS + 1)]
    for step in (6, 9):
        disturb()
        callback = MVCCallback(repo, every_n_steps=100)
        again = trainer(tmp_path / "c", [callback], seed=8, **options_of(case))
        callback.resume(again, f"HEAD~{STEPS - step}")
        assert (callback.resumed.step, callback.resumed.differs) == (step, ())
        assert bits(again) == expected
    assert losses(again) == losses(whole)[-len(losses(again)) :]
    assert not list((tmp_path / "c" / "out").glob("mvc-resume-*"))


def test_what_is_logged_and_kept(tmp_path: Path, repo: mvc.Repository) -> None:
    run = trainer(tmp_path, [MVCCallback(repo)])
    run.train()
    for entry, logged in zip(list(repo.log())[::-1], run.state.log_history, strict=False):
        names = ("loss", "epoch", "grad_norm")
        assert [entry.commit.metrics[n] for n in names] == [logged[n] for n in names]
    training = repo.checkout("HEAD~1", path="model.training.safetensors")
    assert training["trainer"]["global_step"] == training["step"] == STEPS - 1
    assert training["tied"] == [["lm_head.weight", "transformer.wte.weight"]]


def test_tokens_are_no_hyper_parameters(tmp_path: Path, repo: mvc.Repository) -> None:
    """What the training was told counts where the user gives no param of that name."""
    callback = MVCCallback(repo, params={"seed": "of my own"})
    trainer(tmp_path, [callback], max_steps=1, hub_token="hf_secret", warmup_steps=4).train()
    params = repo.version().params
    assert params["warmup_steps"] == "4" and params["seed"] == "of my own"
    assert "hf_secret" not in str(params) and "out" not in params.values()


def test_every_n_steps(tmp_path: Path, repo: mvc.Repository) -> None:
    """Counted as the Trainer counts, also after going on from elsewhere."""
    trainer(tmp_path, [MVCCallback(repo, every_n_steps=3)], max_steps=7).train()
    assert steps(repo) == [3, 6]
    callback = MVCCallback(repo, every_n_steps=4)
    callback.resume(trainer(tmp_path, [callback], max_steps=9))
    assert steps(repo) == [3, 6, 8]


def test_only_where_the_trainer_saves(tmp_path: Path, repo: mvc.Repository) -> None:
    run = trainer(
        tmp_path, [MVCCallback(repo, every_n_steps=None)], save_strategy="steps", save_steps=4
    )
    run.train()
    assert steps(repo) == [4, 8, 10]
    saved = transformers.GPT2LMHeadModel.from_pretrained(tmp_path / "out" / "checkpoint-8")
    kept = repo.checkout("HEAD~1")
    assert all(torch.equal(kept[k], v) for k, v in saved.state_dict().items())


def test_a_training_of_which_nothing_is_recorded_warns_once(
    tmp_path: Path, repo: mvc.Repository
) -> None:
    run = trainer(tmp_path, [MVCCallback(repo, every_n_steps=None)], max_steps=2)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        run.train()
    told = [str(one.message) for one in seen if str(one.message).startswith("mvc: ")]
    assert told == [
        "mvc: this training will not be recorded: the Trainer saves no checkpoint "
        "(save_strategy='no'), and every_n_steps is None"
    ]
    with pytest.raises(UnknownRevision):
        repo.find("HEAD")


@pytest.mark.parametrize("every, saves", [(1, "no"), (None, "steps")])
def test_a_training_that_is_recorded_does_not_warn(
    tmp_path: Path, repo: mvc.Repository, every: int | None, saves: str
) -> None:
    run = trainer(
        tmp_path, [MVCCallback(repo, every_n_steps=every)], max_steps=1, save_strategy=saves
    )
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="mvc: ")
        run.train()
    assert steps(repo) == [1]


def test_best_model_at_the_end_is_not_the_last_step(tmp_path: Path, repo: mvc.Repository) -> None:
    run = trainer(
        tmp_path, [MVCCallback(repo)], load_best_model_at_end=True, greater_is_better=True,
        metric_for_best_model="eval_loss", eval_strategy="steps", eval_steps=2,
        save_strategy="steps", save_steps=2, eval_dataset=tokens()[:4],
    )  # fmt: skip
    run.train()
    best = run.state.best_global_step
    assert best < STEPS
    assert torch.equal(
        run.model.lm_head.weight, repo.checkout(f"HEAD~{STEPS - best}")["lm_head.weight"]
    )
    assert not torch.equal(run.model.lm_head.weight, repo.checkout("HEAD")["lm_head.weight"])


def test_data_that_draw_are_told(tmp_path: Path, repo: mvc.Repository) -> None:
    trainer(tmp_path, [MVCCallback(repo)], data_collator=mask).train()
    callback = MVCCallback(repo, every_n_steps=100)
    callback.resume(trainer(tmp_path, [callback], data_collator=mask), "HEAD~3")
    assert any(text.startswith("data:") for text in callback.resumed.differs)


def test_what_is_not_as_it_was_is_told(tmp_path: Path, repo: mvc.Repository) -> None:
    trainer(tmp_path, [MVCCallback(repo)], max_steps=2).train()
    callback, rev = MVCCallback(repo), repo.find("HEAD")
    for given, told in (
        (
            {"per_device_train_batch_size": 2, "ignore_data_skip": True},
            {"batch size: 2, not 4", "data: ignore_data_skip restarts the epoch"},
        ),
        (
            {"lr_scheduler_type": "linear", "warmup_steps": 1},
            {"learning-rate schedule: linear, not cosine", "warmup steps: 1, not 2"},
        ),
    ):
        callback.resume(trainer(tmp_path, [callback], max_steps=3, **given), rev)
        assert {"steps in all: 3, not 2", *told} <= {*callback.resumed.differs}
    whole = {"lr_scheduler_type": "reduce_lr_on_plateau", "eval_strategy": "steps"}
    plateau = trainer(tmp_path, [callback], **whole, eval_dataset=tokens()[:4], eval_steps=1)
    with pytest.raises(CannotResume, match=r"scheduler was .*LambdaLR, not .*ReduceLROnPlateau"):
        callback.resume(plateau)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"train_dataset": tokens()[:42]}, "rows: 42, not 44"),
        ({"train_dataset": tokens() * 2, "per_device_train_batch_size": 8}, "rows: 88, not 44"),
        ({"per_device_train_batch_size": 2}, "batches an epoch: 22, not 11"),
        ({"gradient_accumulation_steps": 1}, "gradient accumulation: 1, not 2"),
    ],
    ids=["rows", "rows and batch size", "batch size", "accumulation"],
)
def test_other_data_within_an_epoch(
    tmp_path: Path, repo: mvc.Repository, given: dict[str, Any], told: str
) -> None:
    trainer(tmp_path, [MVCCallback(repo)]).train()
    callback, newest = MVCCallback(repo), repo.find("HEAD")
    with pytest.raises(CannotResume, match=rf"inside an epoch.*{told}"):
        callback.resume(trainer(tmp_path, [callback], **given), f"HEAD~{STEPS - EPOCH + 1}")
    assert repo.find("HEAD") == newest
    callback.resume(trainer(tmp_path, [callback], **given), f"HEAD~{STEPS - EPOCH}")
    assert told in callback.resumed.differs


def test_refusals(tmp_path: Path, repo: mvc.Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(WrongUsage, match="not in the trainer"):
        MVCCallback(repo).resume(trainer(tmp_path, []))
    callback = MVCCallback(repo)
    restoring = trainer(tmp_path, [callback], restore_callback_states_from_checkpoint=True)
    with pytest.raises(CannotResume, match="other callbacks"):
        callback.resume(restoring)

    class Sharded:
        class distributed_type:
            value = "FSDP"

    monkeypatch.setattr(ranks, "AcceleratorState", Sharded)
    with pytest.raises(WrongUsage, match="sharded"):
        trainer(tmp_path, [MVCCallback(repo)]).train()


def test_versions_of_a_plain_recorder_are_not_resumed(tmp_path: Path, repo: mvc.Repository) -> None:
    net = torch.nn.Linear(2, 2)
    with mvc.Recorder(repo, net) as recorder:
        recorder.step()
    callback = MVCCallback(repo, include=["model"])
    run = trainer(tmp_path, [callback], max_steps=1)
    with pytest.raises(CannotResume, match="Trainer"):
        callback.resume(run)
    run.train()
    with pytest.raises(CannotResume, match="without the state of the random generators"):
        callback.resume(run)


def test_numpy_metric_of_the_best_model(tmp_path: Path, repo: mvc.Repository) -> None:
    """A metric function may give numpy's numbers; they are kept and written."""
    callback = MVCCallback(repo)
    run = trainer(tmp_path, [callback], max_steps=2)
    run.state.best_metric = np.float32(0.5)
    run.train()
    callback.resume(trainer(tmp_path, [callback], max_steps=2))


def test_resumed_from_production_weights(tmp_path: Path, repo: mvc.Repository) -> None:
    """With the training weights, and refused without them; tied weights stay tied."""
    recording = MVCCallback(repo, deploy="prod", pipeline=PIPELINE, keep_training=True)
    whole = trainer(tmp_path / "a", [recording], max_steps=3)
    whole.train()
    live = repo.checkout(target="prod")
    assert torch.equal(live["lm_head.weight"], live["transformer.wte.weight"])
    disturb()
    again = trainer(tmp_path / "b", [recording], max_steps=3)
    recording.resume(again, "HEAD~1")
    assert bits(again) == bits(whole)
    trainer(tmp_path / "c", [MVCCallback(repo, pipeline=PIPELINE)], max_steps=1).train()
    with pytest.raises(CannotResume, match="production weights"):
        recording.resume(again, "HEAD")


def test_stages_that_go_by_the_loss(tmp_path: Path, repo: mvc.Repository) -> None:
    """Refused where the Trainer does not log the loss of every step."""
    recording = MVCCallback(repo, pipeline="vsol-0.1-fast")
    with pytest.raises(WrongUsage, match=r"topk:0\.075.* does not log") as caught:
        trainer(tmp_path, [recording], max_steps=3, logging_steps=2).train()
    assert "logging_steps=1" in (caught.value.hint or "")
    with pytest.raises(WrongUsage, match="does not log"):
        trainer(tmp_path, [recording], max_steps=3, logging_strategy="epoch").train()
    given = MVCCallback(repo, pipeline="vsol-0.1-fast", metrics={"loss": 0.5})
    trainer(tmp_path, [given], max_steps=2, logging_steps=2).train()
    assert given.report.durable == 2
