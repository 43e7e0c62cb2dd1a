"""Small trainings with the Trainer, every bit of which depends on what resuming restores.

As a program it trains until it is killed or done: see ``main``.
"""

from __future__ import annotations

import os
import random
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch

os.environ["HF_HUB_OFFLINE"] = "1"

from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

from mvc.frameworks.huggingface.callback import MVCCallback

SAMPLES, BATCH = 44, 4  # 11 batches an epoch
SAID = "step"


def tokens() -> list[dict[str, torch.Tensor]]:
    drawn = torch.randint(32, (SAMPLES, 8), generator=torch.Generator().manual_seed(5))
    return [{"input_ids": row, "labels": row} for row in drawn]


def model() -> GPT2LMHeadModel:
    """Tied embeddings and dropout."""
    config = GPT2Config(
        vocab_size=32, n_positions=8, n_embd=16, n_layer=1, n_head=2,
        resid_pdrop=0.3, embd_pdrop=0.2, attn_pdrop=0.2, bos_token_id=0, eos_token_id=0,
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
    more = {k: options.pop(k) for k in ("data_collator", "eval_dataset") if k in options}
    args = TrainingArguments(str(folder / "out"), **{**given, **options})
    return Trainer(net, args, train_dataset=tokens(), callbacks=callbacks, **more)


def disturb() -> None:
    """Whatever is not restored is other than it was."""
    torch.manual_seed(99)
    np.random.seed(99)
    random.seed(99)


def bits(trained: Trainer) -> dict[str, bytes]:
    """Weights, moments, learning rate and generators."""
    found = {f"model/{k}": raw(v) for k, v in trained.model.state_dict().items()}
    optimizer = trained.optimizer.optimizer
    names = {id(p): n for n, p in trained.model.named_parameters()}
    for parameter, values in optimizer.state.items():
        found.update({f"{names[id(parameter)]}/{k}": raw(v) for k, v in values.items()})
    found["lr"] = repr(trained.lr_scheduler.get_last_lr()).encode()
    found["torch"] = raw(torch.get_rng_state())
    found["numpy"] = np.asarray(np.random.get_state(legacy=True)[1]).tobytes()
    found["python"] = repr(random.getstate()).encode()
    return found


def raw(tensor: Any) -> bytes:
    if not isinstance(tensor, torch.Tensor):
        return repr(tensor).encode()
    return tensor.detach().clone().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def losses(trained: Trainer) -> list[float]:
    return [entry["loss"] for entry in trained.state.log_history if "loss" in entry]


class Saying(MVCCallback):
    """Says each step on standard output."""

    def on_step_end(self, args: Any, state: Any, control: Any, **live: Any) -> None:
        super().on_step_end(args, state, control, **live)
        os.write(1, f"{SAID} {state.global_step}\n".encode())


def main() -> None:
    """``train FOLDER STEPS`` from the beginning, ``resume FOLDER STEPS RESULT`` from HEAD."""
    what, folder, steps, *result = sys.argv[1:]
    torch.set_num_threads(1)
    callback = Saying(Path(folder) / "models")
    run = trainer(Path(folder), [callback], max_steps=int(steps))
    if what == "train":
        run.train()
    else:
        disturb()
        callback.resume(run)
        torch.save({"bits": bits(run), "losses": losses(run)}, result[0])


if __name__ == "__main__":
    main()
