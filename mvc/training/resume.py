"""resume: training goes on from a recorded version, bit for bit on the same machine.

Everything is compared before anything is changed: a refusal leaves model, optimizer and
random generators as they were.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from mvc.errors import CannotResume
from mvc.ids import CommitId
from mvc.repo.checkout.checkout import DEFAULT_STATE
from mvc.repo.repository import Repository
from mvc.training.checks import check_objects
from mvc.training.state.component_types import check_kind
from mvc.training.state.optimizers import Placement
from mvc.training.state.parts import (
    PRODUCTION,
    SCHEMA,
    passing_buffers,
    setting,
    tied_names,
    training_path,
)
from mvc.training.state.rng import check_rng, set_rng_state
from mvc.training.unwrap import PREFIXES, without_wrappers

__all__ = [
    "Resumed",
    "check_kinds",
    "check_model",
    "differences",
    "load_model",
    "resume",
    "training_state",
    "training_weights",
    "typed_as",
]


_OWN = (SCHEMA, PRODUCTION)


@dataclass(frozen=True)
class Resumed:
    """Where training goes on: after step ``step``, at ``batch`` as it was given to ``step``.

    ``differs`` names what the next bits also depend on and is not as it was, such as
    ``threads: 4, not 2``; empty on the same machine and setting.
    """

    commit: CommitId
    step: int
    batch: Any
    differs: tuple[str, ...]


def resume(
    repo: Repository,
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer | None = None,
    *,
    scheduler: Any = None,
    scaler: Any = None,
    rev: str | CommitId = "HEAD",
    name: str = DEFAULT_STATE,
) -> Resumed:
    """Sets model, optimizer, scheduler, scaler and random generators back to a version.

    Raises CannotResume with the reason where the version lacks a part, has one that was not
    passed, or where names, shapes, dtypes, ties or kinds are other than they were. A model in
    ``torch.compile`` or a data-parallel wrapper fits what the model by itself fits.
    """
    check_objects(model, optimizer, scheduler, scaler)
    commit = repo.find(rev)
    kept = training_state(repo, commit, name, production=True)
    passed = {"optimizer": optimizer, "scheduler": scheduler, "scaler": scaler}
    for part, value in passed.items():
        _check_part(commit, part, kept.get(part), value)
    if kept.get("rng") is None:
        raise CannotResume(
            f"{commit.short} was recorded without the state of the random generators",
            hint="record with 'rng' in include",
        )
    check_rng(kept["rng"])
    weights = training_weights(repo, commit, name, kept)
    if set(weights) != set(model.state_dict()):  # else it was recorded with the wrapper's names
        model = without_wrappers(model)
    check_model(model, weights, kept)
    more = check_kinds(kept, scheduler=scheduler, scaler=scaler)
    placement = None if optimizer is None else Placement(model, optimizer, kept["optimizer"])

    load_model(model, weights, kept["buffers"])
    if placement is not None:
        placement.apply()
    if scheduler is not None:
        scheduler.load_state_dict(typed_as(scheduler.state_dict(), kept["scheduler"]))
    if scaler is not None:
        scaler.load_state_dict(kept["scaler"])
    set_rng_state(kept["rng"])
    differs = (*differences(kept["setting"]), *more)
    return Resumed(commit, kept["step"], kept["batch"], differs)


def check_kinds(kept: Mapping[str, Any], **passed: Any) -> tuple[str, ...]:
    """``check_kind`` for objects by their part; nothing for versions that do not know kinds."""
    kinds = kept.get("kinds", {})
    found = [check_kind(part, kinds.get(part), value) for part, value in passed.items()]
    return tuple(line for lines in found for line in lines)


def training_state(
    repo: Repository, commit: CommitId, name: str, *, production: bool = False
) -> Mapping[str, Any]:
    """What was kept beside the model ``name``; CannotResume where it belongs to another model.

    Where production weights are kept under ``name``, training does not go on from those:
    only who asks for ``production``, and takes the weights from ``training_weights``, gets
    what is beside them.
    """
    entries = repo.manifest(commit).by_path
    path = training_path(name)
    if name not in entries or path not in entries:
        missing = name if name not in entries else path
        raise CannotResume(
            f"{commit.short} has no {missing}", hint="only versions of a Recorder can be resumed"
        )
    kept = repo.checkout(commit, path=path)
    schemas = (kept.get("schema"), kept.get("of", SCHEMA)) if isinstance(kept, Mapping) else ()
    if not isinstance(kept, Mapping) or schemas not in {(SCHEMA, SCHEMA), (PRODUCTION, SCHEMA)}:
        made = next((s for s in schemas if isinstance(s, str) and s not in _OWN), None)
        raise CannotResume(
            f"{path} of {commit.short} is no training state of a Recorder"
            + (f", but of {made}" if made else ""),
            hint="go on with what recorded it, such as a framework's callback" if made else None,
        )
    if "root" not in kept:
        raise CannotResume(
            f"{commit.short} was recorded without the model", hint="record with 'model' in include"
        )
    if kept["root"] != entries[name].state.root.hex():
        raise CannotResume(
            f"{path} of {commit.short} belongs to another version of {name}: "
            "the model was committed later, without its training state",
            hint="resume from the version before",
        )
    if kept["schema"] == PRODUCTION:
        _check_production(commit, kept, production)
    return kept


def _check_production(commit: CommitId, kept: Mapping[str, Any], production: bool) -> None:
    if kept["weights"] is None:
        raise CannotResume(
            f"{commit.short} holds production weights, made by {kept['pipeline']!r}; the "
            "training weights that they were made of were not kept",
            hint="record with keep_training=True; for the production weights alone use "
            "model.load_state_dict(repo.checkout(rev))",
        )
    if not production:
        raise CannotResume(
            f"{commit.short} holds production weights; its training weights lie beside them, "
            "where this way of resuming does not look",
            hint="use repo.resume",
        )


def training_weights(
    repo: Repository, commit: CommitId, name: str, kept: Mapping[str, Any]
) -> Mapping[str, Any]:
    """The weights that training goes on from; ``kept`` as ``training_state`` gave it."""
    if kept["schema"] == PRODUCTION:
        weights: Mapping[str, Any] = kept["weights"]
        return weights
    return repo.checkout(commit, path=name)  # type: ignore[no-any-return]


def _check_part(commit: CommitId, part: str, kept: Any, passed: Any) -> None:
    if passed is not None and kept is None:
        raise CannotResume(
            f"{commit.short} was recorded without the {part}", hint=f"pass the {part} to Recorder"
        )
    if passed is None and kept is not None:
        raise CannotResume(
            f"{commit.short} has the state of {_a(part)}, but none was passed: "
            "training would not go on as it was",
            hint=f"pass the {part}; for the weights alone use "
            "model.load_state_dict(repo.checkout(rev))",
        )


def _a(word: str) -> str:
    return f"an {word}" if word[0] in "aeiou" else f"a {word}"


def check_model(
    model: torch.nn.Module, weights: Mapping[str, Any], kept: Mapping[str, Any]
) -> None:
    """Raises CannotResume for a model of other names, shapes, dtypes or ties."""
    here = model.state_dict()
    for key in [*here, *weights]:
        if key not in weights:
            raise CannotResume(
                f"the version has no {key}, which the model has", hint=_names_hint(here, weights)
            )
        if key not in here:
            raise CannotResume(
                f"the version has {key}, which the model does not have",
                hint=_names_hint(here, weights),
            )
        mine, theirs = here[key], weights[key]
        if not isinstance(mine, torch.Tensor):
            continue
        if not isinstance(theirs, torch.Tensor):
            raise CannotResume(f"{key} is no tensor in the version")
        if mine.is_meta:
            raise CannotResume(
                f"{key} of the model has no data (device meta)", hint="model.to_empty(device=...)"
            )
        if (mine.dtype, mine.shape) != (theirs.dtype, theirs.shape):
            raise CannotResume(
                f"{key} is {_kind(theirs)} in the version, {_kind(mine)} in the model",
                hint="make the model as it was when the version was recorded",
            )
    if kept["tied"] != tied_names(model):
        raise CannotResume(
            f"the model ties {tied_names(model) or 'no parameters'}, the version {kept['tied']}",
            hint="tie the same parameters before resuming",
        )


def _names_hint(here: Mapping[str, Any], there: Mapping[str, Any]) -> str:
    """For another model, or one whose names differ by a wrapper around some of its layers."""

    def bare(names: Mapping[str, Any]) -> set[str]:
        found = set(names)
        for prefix in PREFIXES:
            found = {name.replace(prefix, "") for name in found}
        return found

    if bare(here) == bare(there):
        return "a layer is compiled or wrapped in one of the two: wrap the same layers as then"
    return "make the model as it was when the version was recorded"


def _kind(tensor: torch.Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {tuple(tensor.shape)}"


def load_model(
    model: torch.nn.Module, weights: Mapping[str, Any], buffers: Mapping[str, torch.Tensor]
) -> None:
    """By the model's own method; version numbers of modules are not kept, so they are its own."""
    state = OrderedDict(weights)
    state._metadata = model.state_dict()._metadata  # type: ignore[attr-defined]
    model.load_state_dict(state, strict=True)
    present = passing_buffers(model)
    for name, value in buffers.items():
        owner, _, leaf = name.rpartition(".")
        device = present[name].device if name in present else value.device
        model.get_submodule(owner)._buffers[leaf] = value.to(device)


def typed_as(pattern: Any, value: Any) -> Any:
    """A kept value with the types of a live one where keeping made a Counter a dictionary."""
    if isinstance(pattern, Mapping) and isinstance(value, Mapping):
        made = {key: typed_as(pattern.get(key), item) for key, item in value.items()}
        return Counter(made) if type(pattern) is Counter else made
    return value


def differences(kept: Mapping[str, str]) -> tuple[str, ...]:
    """What of a kept ``setting`` is not as it was."""
    here = setting()
    return tuple(
        f"{what}: {here.get(what)}, not {value}"
        for what, value in kept.items()
        if here.get(what) != value
    )
