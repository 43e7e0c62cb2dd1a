"""A training on a CUDA device: what is recorded is the state of the step, though the copy into
pinned memory is still under way when the next step begins."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import mvc
from mvc.training.staging import Slot
from tests.training.runs import tensor_bits

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")

STEPS = 12


def network() -> nn.Module:
    torch.manual_seed(3)
    layers = [nn.Linear(512, 512), nn.BatchNorm1d(512), nn.ReLU(), nn.Dropout(0.2)]
    return nn.Sequential(*layers, nn.Linear(512, 512)).cuda()


def train(model: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> float:
    inputs = torch.randn(64, 512, generator=torch.Generator().manual_seed(step)).cuda()
    loss = model(inputs).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


def on_host(state: Any) -> dict[str, bytes]:
    return tensor_bits({name: tensor.cpu() for name, tensor in state.items()})


def test_a_copy_holds_what_was_there_when_it_was_asked_for() -> None:
    weight = torch.zeros(1 << 26, device="cuda")  # 256 MiB: the copy takes milliseconds
    slot = Slot()
    for value in range(1, 6):
        weight.fill_(value)
        slot.fill({"w": weight, "same": weight.detach(), "rows": weight[:7]})
        weight.fill_(-1)  # queued at once, and may not overtake the copy
        slot.ready()
        staged = slot.state
        assert staged["w"].is_pinned() and staged["same"] is staged["w"]
        assert (staged["w"].min().item(), staged["w"].max().item()) == (value, value)
        assert staged["rows"].tolist() == [value] * 7


def test_every_step_is_recorded_bit_for_bit(tmp_path: Path) -> None:
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    wanted = []
    with mvc.Repository.init(tmp_path) as repo:
        with mvc.Recorder(repo, model, optimizer, deploy="prod") as recorder:
            for step in range(STEPS):
                recorder.step(loss=train(model, optimizer, step))
                wanted.append({name: t.detach().clone() for name, t in model.state_dict().items()})
        kept = [repo.checkout(entry.id, path="model.safetensors") for entry in repo.log()][::-1]
        assert list(map(on_host, kept)) == list(map(on_host, wanted))
        assert repo.storage.fsck(full=True).sound


def test_a_training_goes_on_bit_for_bit(tmp_path: Path) -> None:
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    with mvc.Repository.init(tmp_path) as repo:
        with mvc.Recorder(repo, model, optimizer) as recorder:
            for step in range(STEPS):
                recorder.step(loss=train(model, optimizer, step))
        losses = [train(model, optimizer, STEPS + step) for step in range(STEPS)]
        again = network()
        other = torch.optim.Adam(again.parameters(), lr=1e-2)
        mvc.resume(repo, again, other)
        assert [train(again, other, STEPS + step) for step in range(STEPS)] == losses
        assert on_host(again.state_dict()) == on_host(model.state_dict())
