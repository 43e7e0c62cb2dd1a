"""What a transformer's whole training state costs through the frameworks' callbacks.

    python -m tests.benchmarks.bench_optim_transformer [--only trainer|lightning] [--steps 8]
        [--width 512] [--device cuda]

A GPT-2 of 24 million parameters learns a made-up language with AdamW: warm-up and cosine, clipped
gradients, no weight decay of biases and norms. The callback records every step. Then the recorded
states are committed twice from memory, as they are and, as ``plain``, with groups of the optimizer
under another key: then nothing in them says that they are an optimizer's. Bytes are those of
versions after the first, which is stored in full in either way; all three repositories must give
the last state back as the training had it.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

os.environ["HF_HUB_OFFLINE"] = "1"

import numpy as np
import torch
from transformers import GPT2Config, GPT2LMHeadModel

import mvc
from tests.benchmarks.measuring import bytes_below, head, row
from tests.benchmarks.measuring import folder as work_folder

MODEL, TRAINING = "model.safetensors", "model.training.safetensors"
LENGTH, BATCH, WORDS = 64, 4, 10_000
WARM_UP, DECAY, RATE = 3, 0.1, 6e-4


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", choices=RUNS)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--device", default="cpu", help="[%(default)s]")
    options = parser.parse_args()
    head("callback", "parameters", "recorded", "committed", "plain", "recorded / plain",
         "bits a parameter", "s a version", "plain")  # fmt: skip
    for name, run in RUNS.items():
        if options.only in (None, name):
            with work_folder() as place:
                measure(name, run, options, place)


def measure(name: str, run: Run, options: argparse.Namespace, place: Path) -> None:
    torch.manual_seed(1)
    network = transformer(options.width)
    count = sum(parameter.numel() for parameter in network.parameters())
    with mvc.Repository.init(place / "recorded") as recorded:
        run(recorded, network, options, place)
        every = [found.id for found in reversed(list(recorded.log()))]
        assert len(every) >= options.steps  # one more where an epoch ends
        with (
            mvc.Repository.init(place / "committed") as committed,
            mvc.Repository.init(place / "plain") as plain,
        ):
            made = [again(recorded, rev, committed, plain) for rev in every]
            last = checkout(recorded, every[-1])
            weights = {k.removeprefix("network."): v for k, v in last[MODEL].items()}
            equal(weights, dict(network.state_dict()))
            equal(last, checkout(committed, "HEAD"))
            equal(last, renamed(checkout(plain, "HEAD"), "sets", "groups"))
    stored = [
        per_step(place / kind, first, options.steps)
        for kind, first in zip(
            ("recorded", "committed", "plain"), (made[0][0], *made[0]), strict=True
        )
    ]
    row(
        name, f"{count:,}", *(f"{each / 1e6:.1f} MB" for each in stored),
        f"{stored[0] / stored[2]:.3f}", f"{8 * stored[0] / count:.1f}",
        *(f"{statistics.median(one.seconds for one in each[1:]):.2f}"
          for each in zip(*made, strict=True)),
    )  # fmt: skip


class Made(NamedTuple):
    """What a commit took and added."""

    seconds: float
    bytes: int


def again(recorded: mvc.Repository, rev: Any, *repos: mvc.Repository) -> list[Made]:
    """Commits a recorded version to two more repositories."""
    state = checkout(recorded, rev)
    made = []
    for repo, given in zip(repos, (state, renamed(state, "groups", "sets")), strict=True):
        begun = time.perf_counter()
        added = repo.commit(states=given).stored_bytes
        made.append(Made(time.perf_counter() - begun, added))
    return made


def checkout(repo: mvc.Repository, rev: Any) -> dict[str, Any]:
    return {path: repo.checkout(rev, path=path) for path in (MODEL, TRAINING)}


def renamed(state: Mapping[str, Any], old: str, new: str) -> dict[str, Any]:
    """The state with another name for the groups of its optimizer."""
    training = state[TRAINING]
    optimizer = {new if key == old else key: v for key, v in training["optimizer"].items()}
    return {MODEL: state[MODEL], TRAINING: {**training, "optimizer": optimizer}}


def per_step(root: Path, first: Made, versions: int) -> float:
    """Bytes of a version after the first, everything counted."""
    return (bytes_below(root) - first.bytes) / (versions - 1)


def equal(left: Any, right: Any) -> None:
    """Asserts that two nested states have the same bits."""
    if isinstance(left, torch.Tensor):
        assert left.dtype == right.dtype and left.shape == right.shape
        bits = [t.detach().cpu().reshape(-1).view(torch.uint8) for t in (left, right)]
        assert torch.equal(*bits)
    elif isinstance(left, Mapping):
        assert left.keys() == right.keys()
        for key in left:
            equal(left[key], right[key])
    elif isinstance(left, list | tuple):
        for one, other in zip(left, right, strict=True):
            equal(one, other)
    elif isinstance(left, np.ndarray):
        assert left.tobytes() == right.tobytes()
    else:
        assert left == right, (left, right)


# -- the training --------------------------------------------------------------------------


def transformer(width: int) -> GPT2LMHeadModel:
    config = GPT2Config(
        vocab_size=WORDS, n_positions=LENGTH, n_embd=width, n_layer=6, n_head=8,
        bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    return GPT2LMHeadModel(config)


def texts(count: int) -> torch.Tensor:
    """Lines in which each word is one of eight that may follow the word before it."""
    random = torch.Generator().manual_seed(3)
    followers = torch.randint(WORDS, (WORDS, 8), generator=random)
    words = [torch.randint(WORDS, (count,), generator=random)]
    for _ in range(LENGTH - 1):
        words.append(followers[words[-1], torch.randint(8, (count,), generator=random)])
    return torch.stack(words, dim=1)


def with_trainer(
    repo: mvc.Repository, network: Any, options: argparse.Namespace, place: Path
) -> None:
    from transformers import Trainer, TrainingArguments

    from mvc.frameworks.huggingface import MVCCallback

    arguments = TrainingArguments(
        str(place / "out"), max_steps=options.steps, per_device_train_batch_size=BATCH,
        learning_rate=RATE, lr_scheduler_type="cosine", warmup_steps=WARM_UP, weight_decay=DECAY,
        max_grad_norm=1.0, save_strategy="no", report_to=[], disable_tqdm=True,
        logging_strategy="no", use_cpu=options.device == "cpu",
    )  # fmt: skip
    rows = [{"input_ids": line, "labels": line} for line in texts(BATCH * options.steps)]
    with MVCCallback(repo) as callback:
        Trainer(network, arguments, train_dataset=rows, callbacks=[callback]).train()


def with_lightning(
    repo: mvc.Repository, network: Any, options: argparse.Namespace, place: Path
) -> None:
    import lightning.pytorch as pl

    from mvc.frameworks.lightning import MVCCallback

    class Module(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.network = network

        def training_step(self, batch: torch.Tensor, _: int) -> torch.Tensor:
            loss: torch.Tensor = self.network(input_ids=batch, labels=batch).loss
            return loss

        def configure_optimizers(self) -> Any:
            every = list(self.network.parameters())
            groups = [
                {"params": [p for p in every if p.ndim > 1], "weight_decay": DECAY},
                {"params": [p for p in every if p.ndim < 2], "weight_decay": 0.0},
            ]
            optimizer = torch.optim.AdamW(groups, lr=RATE)
            warm = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=WARM_UP)
            rest = max(1, options.steps - WARM_UP)
            down = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, rest)
            both = torch.optim.lr_scheduler.SequentialLR(optimizer, [warm, down], [WARM_UP])
            return [optimizer], [{"scheduler": both, "interval": "step"}]

    trainer = pl.Trainer(
        callbacks=MVCCallback(repo), max_steps=options.steps, gradient_clip_val=1.0,
        accelerator="cpu" if options.device == "cpu" else "gpu", devices=1, logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
        default_root_dir=place,
    )  # fmt: skip
    lines = torch.utils.data.DataLoader(texts(BATCH * options.steps), batch_size=BATCH)
    trainer.fit(module := Module(), lines)
    del module


Run = Callable[[mvc.Repository, Any, argparse.Namespace, Path], None]
RUNS: dict[str, Run] = {"trainer": with_trainer, "lightning": with_lightning}


if __name__ == "__main__":
    main()
