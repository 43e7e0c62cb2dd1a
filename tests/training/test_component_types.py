"""A scheduler or scaler of another kind is refused, before anything is changed."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler

import mvc
from mvc.errors import CannotResume
from mvc.training.state.component_types import check_type, component_type, type_name


def made() -> tuple[nn.Module, torch.optim.Optimizer]:
    model = nn.Linear(2, 2)
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def cosine(optimizer: torch.optim.Optimizer) -> Any:
    return lr_scheduler.CosineAnnealingLR(optimizer, T_max=100)


def step_down(optimizer: torch.optim.Optimizer) -> Any:
    return lr_scheduler.StepLR(optimizer, 2)


def chain(optimizer: torch.optim.Optimizer, *, last: Any) -> Any:
    warm = lr_scheduler.LinearLR(optimizer, total_iters=5)
    return lr_scheduler.SequentialLR(optimizer, [warm, last(optimizer)], [5])


def warm_up(step: int, *, steps: int = 10) -> float:
    return min(1.0, step / steps)


def decay(step: int, *, steps: int = 10) -> float:
    return max(0.0, 1 - step / steps)


class Scaler:
    """Has a state, and that is all that is asked."""

    def state_dict(self) -> dict[str, Any]:
        return {"scale": 1.0}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        raise AssertionError("nothing may be changed")


def recorded(repo: mvc.Repository, make: Any, scaler: Any = None) -> None:
    model, optimizer = made()
    with mvc.Recorder(repo, model, optimizer, scheduler=make(optimizer), scaler=scaler) as rec:
        rec.step()


@pytest.mark.parametrize(
    ("then", "now"),
    [
        (cosine, step_down),
        (partial(chain, last=cosine), partial(chain, last=step_down)),
        (partial(chain, last=cosine), cosine),
    ],
    ids=["other", "other-inside", "not-a-chain"],
)
def test_another_scheduler_is_refused(tmp_path: Path, then: Any, now: Any) -> None:
    with mvc.Repository.init(tmp_path) as repo:
        recorded(repo, then)
        model, optimizer = made()
        scheduler = now(optimizer)
        before = scheduler.state_dict(), model.weight.clone()
        with pytest.raises(CannotResume, match=r"the scheduler was torch.*, not torch") as caught:
            mvc.resume(repo, model, optimizer, scheduler=scheduler)
        assert "of the recorded type" in str(caught.value.hint)
        assert (scheduler.state_dict(), True) == (before[0], torch.equal(before[1], model.weight))
        again = then(optimizer)
        assert mvc.resume(repo, model, optimizer, scheduler=again).differs == ()


def test_another_scaler_is_refused(tmp_path: Path) -> None:
    with mvc.Repository.init(tmp_path) as repo:
        recorded(repo, cosine, torch.amp.GradScaler("cpu"))
        model, optimizer = made()
        with pytest.raises(CannotResume, match=r"scaler was torch.*GradScaler, not .*\.Scaler"):
            mvc.resume(repo, model, optimizer, scheduler=cosine(optimizer), scaler=Scaler())


def test_another_function_differs() -> None:
    _, optimizer = made()

    def rule(function: Any) -> Any:
        return lr_scheduler.LambdaLR(optimizer, function)

    kept = component_type(rule(partial(warm_up, steps=3)))
    assert kept is not None
    assert kept["functions"] == ["warm_up"]
    assert check_type("scheduler", kept, rule(warm_up)) == ()
    assert check_type("scheduler", kept, rule(decay)) == ("scheduler: decay, not warm_up",)
    assert check_type("scheduler", kept, rule(lambda step: 1.0)) == ()  # says nothing of itself


def test_a_version_that_does_not_say_its_kinds_still_resumes(tmp_path: Path) -> None:
    with mvc.Repository.init(tmp_path) as repo:
        recorded(repo, cosine)
        kept = repo.checkout(path="model.training.safetensors")
        model, optimizer = made()
        assert kept["kinds"]["scheduler"]["kind"] == type_name(cosine(optimizer))
        del kept["kinds"]
        repo.commit(kept, path="model.training.safetensors")
        scheduler = cosine(optimizer)
        assert mvc.resume(repo, model, optimizer, scheduler=scheduler).step == 1
