"""Small trainings with the Trainer, every bit of which depends on what resuming restores."""

from __future__ import annotations

import os
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch

os.environ["HF_HUB_OFFLINE"] = "1"

from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

from mvc.frameworks.huggingface.callback import MVCCallback
from tests.frameworks.trainings import Act, Trained, bits_of_all, buffers, disturb

SAMPLES, BATCH = 44, 4
EPOCH = 6  # 11 batches, the last one of which is a step by itself
LOGS, ENDS = True, False
HYPER = {
    "learning_rate": "0.01", "lr_scheduler_type": "cosine", "gradient_accumulation_steps": "2",
    "weight_decay": "0.0", "seed": "3",
}  # fmt: skip
_OBJECTS = ("data_collator", "eval_dataset", "processing_class", "train_dataset")


def tokens() -> list[dict[str, torch.Tensor]]:
    drawn = torch.randint(32, (SAMPLES, 8), generator=torch.Generator().manual_seed(5))
    return [{"input_ids": row, "labels": row} for row in drawn]


def model(**options: Any) -> GPT2LMHeadModel:
    """Tied embeddings and dropout."""
    config = GPT2Config(
        vocab_size=32, n_positions=8, n_embd=16, n_layer=1, n_head=2,
        resid_pdrop=0.3, embd_pdrop=0.2, attn_pdrop=0.2, bos_token_id=0, eos_token_id=0,
        **options,
    )  # fmt: skip
    return GPT2LMHeadModel(config)


def trainer(folder: Path, callbacks: list[Any], seed: int = 3, **options: Any) -> Trainer:
    """A fresh one, whose generators begin at ``seed``; shuffles and accumulates gradients."""
    torch.manual_seed(seed)
    given = {
        "max_steps": 10, "per_device_train_batch_size": BATCH, "gradient_accumulation_steps": 2,
        "learning_rate": 0.01, "lr_scheduler_type": "cosine", "warmup_steps": 2,
        "logging_steps": 1, "save_strategy": "no", "report_to": [], "disable_tqdm": True,
        "use_cpu": True, "seed": seed,
    }  # fmt: skip
    net = options.pop("net", model)()
    more = {"train_dataset": tokens()} | {k: options.pop(k) for k in _OBJECTS if k in options}
    args = TrainingArguments(str(folder / "out"), **{**given, **options})
    return Trainer(net, args, callbacks=callbacks, **more)


def bits(trained: Trainer) -> dict[str, bytes]:
    return bits_of_all(trained.model, [trained.optimizer])


def losses(trained: Trainer) -> list[float]:
    return [entry["loss"] for entry in trained.state.log_history if "loss" in entry]


class Normed(GPT2LMHeadModel):
    """With the statistics of a batch norm as well."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.norm = torch.nn.BatchNorm1d(8)

    def forward(self, input_ids: Any = None, labels: Any = None, **options: Any) -> Any:
        made = super().forward(input_ids=input_ids, labels=labels, **options)
        made.loss = made.loss + 0.01 * self.norm(made.logits).square().mean()
        return made


class Acts(TrainerCallback):
    def __init__(self, act: Act) -> None:
        self._act = act

    def on_step_end(self, args: Any, state: Any, control: Any, **live: Any) -> None:
        self._act(state.global_step, live["model"].state_dict().values())


def recorder(repo: Any, every: int = 1, **options: Any) -> MVCCallback:
    return MVCCallback(repo, every_n_steps=every, **options)


def train(
    folder: Path, steps: int, recording: Any = None, *, resume: str | None = None, seed: int = 3,
    act: Act | None = None, wide: bool = False,
) -> Trained:  # fmt: skip
    def net() -> Normed:
        return Normed(model(n_inner=7 if wide else None).config)

    callbacks = [*([] if act is None else [Acts(act)]), *([] if recording is None else [recording])]
    run = trainer(folder, callbacks, seed, net=net, max_steps=steps)
    disturb(seed)
    with nullcontext() if recording is None else recording:
        if resume is None:
            run.train()
        else:
            recording.resume(run, resume or None)
    resumed = None if recording is None else recording.resumed
    return Trained(bits(run), buffers(run.model), resumed)
