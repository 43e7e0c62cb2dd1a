"""Versions that frameworks make hold an optimizer's step: most of it is predicted, bit for bit."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from torch import nn

import mvc
from mvc.repo.lookup import manifests
from tests.frameworks.need import need

need("transformers", "accelerate", "lightning")

import accelerate  # noqa: E402
import lightning.pytorch as pl  # noqa: E402
from lightning.pytorch.callbacks import ModelCheckpoint  # noqa: E402
from transformers import GPT2Config, GPT2LMHeadModel  # noqa: E402

from mvc.frameworks.lightning import MVCCallback as LightningCallback  # noqa: E402
from mvc.frameworks.lightning import MVCCheckpointIO  # noqa: E402
from tests.frameworks import huggingface_runs  # noqa: E402

WIDTH = 48


def predicted(repo: mvc.Repository) -> Counter[str]:
    """How many of the newest version's tensors of a thousand bytes are predicted, by the last part
    of their names; those that are not are ``plain``.
    """
    found: Counter[str] = Counter()
    graph = repo.handle.store.graph
    for entry in manifests.of_commit(repo.handle.store, repo.log()[0].id).entries:
        for tensor in entry.tensors:
            if tensor.spec.nbytes >= 1000 and tensor.spec.dtype == "float32":
                codings = graph.codings(tensor.id, 0)
                name = tensor.key.rpartition(".")[2]
                found[name if any(c.member.coding.predicted for c in codings) else "plain"] += 1
    return found


def gpt() -> GPT2LMHeadModel:
    config = GPT2Config(
        vocab_size=64, n_positions=8, n_embd=WIDTH, n_layer=2, n_head=2, bos_token_id=0,
        eos_token_id=0,
    )  # fmt: skip
    return GPT2LMHeadModel(config)


class Module(pl.LightningModule):
    """Layers of equal shapes; groups from the last layer to the first."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        x = batch
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return (x - batch.flip(1)).square().mean()

    def configure_optimizers(self) -> Any:
        groups = [{"params": list(layer.parameters())} for layer in reversed(self.layers)]
        optimizer = torch.optim.AdamW(groups, lr=0.01)
        return [optimizer], [torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)]


def fit(folder: Path, *callbacks: pl.Callback, plugins: Any = None) -> Module:
    torch.manual_seed(3)
    module = Module()
    trainer = pl.Trainer(
        max_steps=4, accelerator="cpu", logger=False, enable_progress_bar=False,
        enable_model_summary=False, callbacks=list(callbacks), default_root_dir=folder,
        plugins=plugins, gradient_clip_val=1.0,
    )  # fmt: skip
    trainer.fit(module, torch.utils.data.DataLoader(torch.randn(64, WIDTH), batch_size=8))
    return module


def whole(module: nn.Module) -> dict[str, bytes]:
    return {name: tensor.numpy().tobytes() for name, tensor in module.state_dict().items()}


def test_trainer(tmp_path: Path) -> None:
    with mvc.Repository.init(tmp_path) as repo:
        with huggingface_runs.recorder(repo) as callback:
            run = huggingface_runs.trainer(tmp_path, [callback], net=gpt, max_steps=4)
            run.train()
        seen = predicted(repo)
        assert seen["exp_avg"] == seen["exp_avg_sq"] >= 10 and seen["plain"] <= 2, seen
        kept = repo.checkout(path="model.safetensors")
        assert all(torch.equal(kept[k], v) for k, v in run.model.state_dict().items())


def test_lightning(tmp_path: Path) -> None:
    with mvc.Repository.init(tmp_path) as repo:
        module = fit(tmp_path, LightningCallback(repo))
        seen = predicted(repo)
        assert seen == {"exp_avg": 4, "exp_avg_sq": 4, "weight": 4}, seen
        kept = repo.checkout(path="model.safetensors")
        assert {k: v.numpy().tobytes() for k, v in kept.items()} == whole(module)


def test_checkpoints_of_lightning(tmp_path: Path) -> None:
    with mvc.Repository.init(tmp_path) as repo:
        every = ModelCheckpoint(every_n_train_steps=1, save_top_k=1, filename="last")
        module = fit(tmp_path, every, plugins=MVCCheckpointIO(repo))
        seen = predicted(repo)
        assert seen == {"exp_avg": 4, "exp_avg_sq": 4, "weight": 4}, seen
        kept = repo.checkout(path="checkpoints/last.safetensors")
        assert {k: v.numpy().tobytes() for k, v in kept.items()} == whole(module)


def test_files_of_lightning(tmp_path: Path) -> None:
    class Committed(pl.Callback):
        def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
            trainer.save_checkpoint(tmp_path / "last.ckpt")
            repo.commit([tmp_path / "last.ckpt"])

    with mvc.Repository.init(tmp_path) as repo:
        fit(tmp_path, Committed())
        seen = predicted(repo)
        assert seen == {"exp_avg": 4, "exp_avg_sq": 4, "weight": 4}, seen
        repo.checkout(path="last.ckpt", to=tmp_path / "back.ckpt")
        assert (tmp_path / "back.ckpt").read_bytes() == (tmp_path / "last.ckpt").read_bytes()


def test_checkpoint_folders_of_the_trainer(tmp_path: Path) -> None:
    """Weights in one file, in the order of names, and the optimizer in another."""
    run = huggingface_runs.trainer(
        tmp_path, [], net=gpt, max_steps=4, save_strategy="steps", save_steps=1
    )
    run.train()
    place = tmp_path / "checkpoint"
    with mvc.Repository.init(tmp_path) as repo:
        for number in range(2, 5):
            shutil.rmtree(place, ignore_errors=True)
            shutil.copytree(tmp_path / "out" / f"checkpoint-{number}", place)
            repo.commit([place])
        seen = predicted(repo)
        assert seen["exp_avg"] == seen["exp_avg_sq"] >= 10 and seen["plain"] <= 2, seen
        repo.checkout(path="checkpoint", to=tmp_path / "back")
        for file in place.iterdir():
            (back,) = (tmp_path / "back").rglob(file.name)
            assert back.read_bytes() == file.read_bytes()


def test_saved_states_of_accelerate(tmp_path: Path) -> None:
    torch.manual_seed(3)
    accelerator = accelerate.Accelerator(cpu=True)
    net = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(4)))
    optimizer = torch.optim.AdamW(reversed(list(net.parameters())), lr=0.01)
    net, optimizer = accelerator.prepare(net, optimizer)
    with mvc.Repository.init(tmp_path) as repo:
        for _ in range(3):
            optimizer.zero_grad()
            accelerator.backward(net(torch.randn(8, WIDTH)).square().mean())
            optimizer.step()
            accelerator.save_state(str(tmp_path / "saved"))
            repo.commit([tmp_path / "saved"])
        seen = predicted(repo)
        assert seen == {"exp_avg": 4, "exp_avg_sq": 4, "weight": 4}, seen
