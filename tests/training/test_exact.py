"""What of a model's state is no parameter is never changed by a lossy pipeline."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import mvc
from mvc.errors import WrongUsage
from mvc.training.state.parts import no_weights
from tests.training.runs import bits_of


class Scaled(nn.Module):
    """Tensors beside its weight: a buffer, and what it adds to its state by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((64,), 1.0))
        self.register_buffer("mean", torch.full((64,), 1.0))
        self.register_buffer("passing", torch.full((64,), 1.0), persistent=False)
        self.scales = torch.full((64,), 1.0)

    def get_extra_state(self) -> dict[str, Any]:
        return {"scales": self.scales, "steps": 3}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        self.scales = state["scales"]


def test_only_parameters_are_weights() -> None:
    first, second = Scaled(), Scaled()
    second.weight = first.weight  # tied: a weight under both names
    names = no_weights(nn.ModuleList([first, second]))
    assert sorted(names) == [f"{i}.{n}" for i in (0, 1) for n in ("_extra_state.scales", "mean")]


def test_exact_names_that_no_tensor_has(tmp_path: Path) -> None:
    """A slip of the pen must not make lossy what had to stay."""
    with mvc.Repository.init(tmp_path) as repo:
        for names, hint in (["weigth"], "did you mean weight?"), (["weight", "0"], "state_dict()"):
            with mvc.Recorder(repo, Scaled(), pipeline="vsol-0-fast", exact=names) as recorder:
                for _ in range(2):
                    with pytest.raises(WrongUsage, match=f"exact names {names[-1]}, but") as raised:
                        recorder.step()
                    assert hint in (raised.value.hint or "")
                assert recorder.report.taken == 0
        named = (name for name in ["weight", "_extra_state.scales"])
        with mvc.Recorder(repo, Scaled(), pipeline="vsol-0-fast", exact=named) as recorder:
            assert recorder.step(wait=True)


def test_extra_state_is_exact(tmp_path: Path) -> None:
    model = Scaled()
    with mvc.Repository.init(tmp_path) as repo:
        with mvc.Recorder(repo, model, pipeline="vsol-0-fast") as recorder:
            recorder.step()
            with torch.no_grad():
                for tensor in (model.weight, model.mean, model.scales):
                    tensor.mul_(1.3)
            recorder.step()
        state = repo.checkout(path="model.safetensors")
        assert bits_of(state["mean"]) == bits_of(model.mean)
        assert bits_of(state["_extra_state"]["scales"]) == bits_of(model.scales)
        assert bits_of(state["weight"]) != bits_of(model.weight)
