"""Restores a version into an accelerator. All checks come before the first change."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from mvc.errors import CannotResume
from mvc.frameworks.accelerate.data import Epochs
from mvc.frameworks.accelerate.state import model_of, optimizers_of
from mvc.frameworks.common.ranks import own_of
from mvc.ids import CommitId
from mvc.repo.repository import Repository
from mvc.training.resume import (
    Resumed,
    check_model,
    check_types,
    differences,
    load_model,
    training_state,
    training_weights,
    typed_as,
)
from mvc.training.state.component_types import check_type
from mvc.training.state.optimizers import Placement
from mvc.training.state.rng import check_rng, set_rng_state

__all__ = ["load"]


def load(
    repo: Repository, commit: CommitId, name: str, accelerator: Any, epochs: Epochs
) -> Resumed:
    """Restores models, optimizers, schedulers, scaler, objects, loaders and generators.

    Raises CannotResume with the first reason why the version does not fit.
    """
    kept = training_state(repo, commit, name, production=True)
    saved = kept.get("accelerate")
    if saved is None:
        raise CannotResume(
            f"{commit.short} was not saved by accelerate",
            hint="for a Recorder's version use repo.resume",
        )
    saved = {
        **saved,
        "optimizers": _all(kept["optimizer"], saved["optimizers"]),
        "schedulers": _all(kept["scheduler"], saved["schedulers"]),
    }
    live = {
        "optimizers": optimizers_of(accelerator),
        "schedulers": accelerator._schedulers,
        "objects": accelerator._custom_objects,
        "loaders": accelerator._dataloaders,
    }
    for what, objects in live.items():
        if len(saved[what]) != len(objects):
            raise CannotResume(
                f"{commit.short} has {len(saved[what])} {what}, here are {len(objects)}",
                hint="prepare and register the same things in the same order",
            )
    if (kept["scaler"] is None) != (accelerator.scaler is None):
        raise CannotResume("gradients were scaled then or are now, but not both")
    kinds = saved.get("kinds", [])  # versions of before do not say
    told = [*check_types(kept, scaler=accelerator.scaler)]
    for scheduler, kind in zip(live["schedulers"], kinds, strict=False):
        told += check_type("scheduler", kind, scheduler)
    told += epochs.check_sizes(saved["loaders"])
    rng = own_of(kept["rng"], saved["others"])
    check_rng(rng)
    model = model_of(accelerator)
    weights = training_weights(repo, commit, name, kept)
    check_model(model, weights, kept)
    placements = [
        Placement(model, optimizer, state)
        for optimizer, state in zip(live["optimizers"], saved["optimizers"], strict=True)
    ]

    load_model(model, weights, kept["buffers"])
    for placement in placements:
        placement.apply()
    for key, parameter in model.named_parameters():
        gradient = saved["gradients"].get(key)
        parameter.grad = None if gradient is None else gradient.to(parameter.device)
    for what in ("schedulers", "objects"):
        for obj, state in zip(live[what], saved[what], strict=True):
            obj.load_state_dict(typed_as(obj.state_dict(), state))
    if accelerator.scaler is not None:
        accelerator.scaler.load_state_dict(kept["scaler"])
    accelerator.step = saved["step"]
    set_rng_state(rng)
    epochs.restore(saved["loaders"], rng, draws=saved["draws"])
    resumed = Resumed(commit, kept["step"], kept["batch"], differences(kept["setting"]))
    return replace(resumed, differs=(*resumed.differs, *told, *_more(saved, accelerator)))


def _all(alone: Any, several: list[Any]) -> list[Any]:
    return several if alone is None else [alone]


def _more(saved: Mapping[str, Any], accelerator: Any) -> list[str]:
    found = []
    processes = saved["processes"]
    if processes != accelerator.num_processes:
        found.append(f"processes: {accelerator.num_processes}, not {processes}")
    if processes > 1 and saved["gradients"]:
        found.append("pending gradients: only those of the first process were kept")
    if saved["draws"] and any(loader["done"] for loader in saved["loaders"]):
        found.append("data: the next batches draw random numbers of their own")
    return found
