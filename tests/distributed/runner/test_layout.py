"""Which tensors are trained together: tied and frozen ones, buffers, states there and back."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from torch import nn

from mvc.distributed.runner.layout import ModelLayout
from mvc.errors import CannotDistribute
from tests.cli.program import ROOT


class Net(nn.Module):
    """Tied weights, a frozen layer, statistics, a counter, a buffer that no state holds."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(5, 3)
        self.frozen = nn.Linear(3, 3).requires_grad_(False)
        self.norm = nn.BatchNorm1d(3)
        self.out = nn.Linear(3, 5, bias=False)
        self.out.weight = self.words.weight
        self.register_buffer("mask", torch.ones(3, dtype=torch.bool))
        self.register_buffer("scratch", torch.zeros(7), persistent=False)


def test_what_is_in_the_vector() -> None:
    layout = ModelLayout.of(Net())
    assert [*layout.vector] == [
        "words.weight", "norm.weight", "norm.bias", "norm.running_mean", "norm.running_var",
    ]  # fmt: skip
    assert {*layout.carried} == {
        *("frozen.weight", "frozen.bias", "norm.num_batches_tracked", "mask")
    }
    assert (layout.flat.measured, layout.flat.length) == (21, 27)


def test_there_and_back() -> None:
    torch.manual_seed(0)
    one, other = Net(), Net()
    layout = ModelLayout.of(one)
    vector, carried = layout.read(one), layout.carried_of(one)
    state = layout.state(vector, carried)
    assert list(state) == list(one.state_dict())
    assert all(torch.equal(state[name], value) for name, value in one.state_dict().items())
    other.load_state_dict(state)
    again, rest = layout.split(other.state_dict())
    assert (again == vector).all()
    assert all(torch.equal(rest[name], value) for name, value in carried.items())
    layout.write(other, vector + 1, {**carried, "mask": torch.zeros(3, dtype=torch.bool)})
    assert torch.equal(other.words.weight, one.words.weight + 1)
    assert other.out.weight is other.words.weight
    assert not other.mask.any()
    vector[:] = 0  # a copy
    assert one.words.weight.any()


def test_another_state_is_refused() -> None:
    layout = ModelLayout.of(Net())
    with pytest.raises(CannotDistribute, match=r"does not match the model: words\.weight"):
        layout.split({"words.weight": torch.zeros(5, 4)})


def test_torch_is_imported_only_by_who_trains() -> None:
    code = "import sys, mvc.distributed, mvc.cli.commands.start.train_distributed; "
    code += "sys.exit('torch' in sys.modules)"
    environment = {"PYTHONPATH": str(ROOT), "PATH": ""}
    assert subprocess.run([sys.executable, "-c", code], env=environment).returncode == 0
