"""The layers that deterministic kernels slow down."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from reproduce.derived.layer_cost import cost_of


class _Doubled(torch.autograd.Function):
    """torch fills new memory where kernels must be deterministic: here forward or backward."""

    @staticmethod
    def forward(ctx, x, direction):
        ctx.backward_allocates = direction == "backward"
        if direction == "forward":
            torch.empty(1 << 22)
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        if ctx.backward_allocates:
            torch.empty(1 << 22)
        return gradient * 2, None


class Scratch(nn.Module):
    def __init__(self, direction: str) -> None:
        super().__init__()
        self.direction = direction

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return _Doubled.apply(x, self.direction)


class Around(nn.Module):
    """What it returns is what the layer inside of it returned."""

    def __init__(self, inside: nn.Module) -> None:
        super().__init__()
        self.inside = inside

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inside(x)


@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_layers_that_deterministic_kernels_slow_down_are_named(direction):
    model = nn.Sequential(nn.Linear(8, 8), Around(Scratch(direction)), nn.Linear(8, 8))
    cost = cost_of(model, lambda model: model(torch.rand(4, 8)).square().mean(), 20)
    slow = cost.slow[0]
    assert (slow.layer, slow.type) == ("1.inside", "Scratch")
    assert slow == cost.layers[0]
    at = direction == "backward"
    assert slow.deterministic[at] > 2 * slow.any[at]
    assert cost.deterministic > cost.any
    assert {each.layer for each in cost.layers} == {"0", "1", "1.inside", "2"}
    assert sum(each.extra for each in cost.slow) < 3 * slow.extra
    assert not torch.are_deterministic_algorithms_enabled()
