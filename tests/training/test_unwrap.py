"""A version holds the names of the module itself, whatever is put around it."""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import mvc
from mvc.errors import CannotResume
from mvc.training.state.parts import unwrap
from tests.training.runs import tensor_bits


def plain() -> nn.Module:
    return nn.Sequential(OrderedDict(first=nn.Linear(3, 4), last=nn.Linear(4, 2)))


def compiled(model: nn.Module) -> Any:
    return torch.compile(model, backend="eager")


WRAPPERS = {
    "compiled": compiled,
    "parallel": nn.DataParallel,
    "both": lambda model: nn.DataParallel(compiled(model)),
}


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_names_are_the_modules_own(tmp_path: Path, wrapper: str) -> None:
    inside = plain()
    model = WRAPPERS[wrapper](inside)
    assert unwrap(model) is inside
    optimizer = torch.optim.Adam(model.parameters())
    with mvc.Repository.init(tmp_path) as repo:
        with mvc.Recorder(repo, model, optimizer) as recorder:
            model(torch.ones(1, 3)).sum().backward()
            optimizer.step()
            recorder.step()
        state = repo.checkout(path="model.safetensors")
        assert sorted(state) == ["first.bias", "first.weight", "last.bias", "last.weight"]
        for around in (lambda m: m, WRAPPERS[wrapper]):
            fresh = plain()
            again = around(fresh)
            adam = torch.optim.Adam(again.parameters())
            assert mvc.resume(repo, again, adam).step == 1
            assert tensor_bits(fresh.state_dict()) == tensor_bits(inside.state_dict())
            assert torch.equal(
                adam.state[fresh.first.weight]["exp_avg"],
                optimizer.state[inside.first.weight]["exp_avg"],
            )


def test_a_version_with_a_wrappers_names_fits_that_wrapper(tmp_path: Path) -> None:
    model = nn.DataParallel(plain())
    with mvc.Repository.init(tmp_path) as repo:
        with mvc.Recorder(repo, nn.ModuleDict({"module": model.module})) as recorder:
            recorder.step()
        again = nn.DataParallel(plain())
        mvc.resume(repo, again)
        assert tensor_bits(again.state_dict()) == tensor_bits(model.state_dict())


def test_a_layer_that_is_compiled_is_hinted_at(tmp_path: Path) -> None:
    model = plain()
    model.first = compiled(model.first)
    with mvc.Repository.init(tmp_path) as repo:
        with mvc.Recorder(repo, model) as recorder:
            recorder.step()
        with pytest.raises(CannotResume, match=r"first\.weight: the version lacks it") as caught:
            mvc.resume(repo, plain())
        assert "wrap the same layers" in str(caught.value.hint)
        other = plain()
        other.more = nn.Linear(1, 1)
        with pytest.raises(CannotResume) as caught:
            mvc.resume(repo, other)
        assert "the architecture that was recorded" in str(caught.value.hint)
