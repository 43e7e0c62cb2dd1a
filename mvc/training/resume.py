"""resume: sets a training back to a recorded version, bit for bit on the same machine.

``load`` takes a version's weights alone. Both compare everything before anything is changed, so
that a refusal leaves model, optimizer and random generators as they were.
"""

from __future__ import annotations

import re
from collections import Counter, OrderedDict
from collections.abc import Mapping
from itertools import chain
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import torch
from msgspec import Struct

from mvc.api import Repository, Rev
from mvc.errors import CannotResume, DoesNotFit
from mvc.ids import CommitId
from mvc.names import DEFAULT_STATE, an, training_path
from mvc.times import Time
from mvc.training.checks import check_objects
from mvc.training.state import parts
from mvc.training.state.component_types import check_type
from mvc.training.state.optimizers import Placement, bound_moments
from mvc.training.state.rng import check_rng, set_rng_state

_SHOWN = 10  # reasons in a message
_OTHERS = "go on with what recorded it: mvc.resume, or a framework's callback"
_WEIGHTS = "model.load_state_dict(repo.checkout(rev))"


class RecordedBy(Struct, frozen=True):
    """Who recorded a training state: its schema, and what messages call it and its recorder.

    ``weights`` is the call that takes the weights alone. ``part``: what else the state must have.
    """

    schema: str = parts.SCHEMA
    state: str = "training state of a Recorder"
    name: str = "a Recorder"
    weights: str = _WEIGHTS
    part: str = "schema"


class Resumed(Struct, frozen=True):
    """Where the training continues: ``step`` steps are done, the last one with this ``batch``.

    ``differs`` names every condition of the next bits that has changed, such as
    ``threads: 4, not 2``; it is empty on the same machine and setting.
    """

    commit: CommitId
    step: int
    batch: Any
    differs: tuple[str, ...]

    def __str__(self) -> str:
        done = f"{self.commit.short}: {self.step:,} steps done"
        return f"{done}; differs: {', '.join(self.differs)}" if self.differs else done


_resumed: WeakKeyDictionary[torch.nn.Module, tuple[Path, Resumed]] = WeakKeyDictionary()


def resume(
    repo: Repository,
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer | None = None,
    *,
    scheduler: Any = None,
    scaler: Any = None,
    rev: Rev | None = None,
    at: Time | None = None,
    target: str | None = None,
    path: str = DEFAULT_STATE,
) -> Resumed:
    """Sets model, optimizer, scheduler, scaler and random generators back to a version.

    The version is named as for ``Repository.checkout``; ``path`` is the model's in it. Raises
    CannotResume with the reason, before anything is changed. A Recorder of the model, open or to
    come, goes on counting from the version, and names it.
    """
    commit = repo.find(rev, at=at, target=target)
    resumed = set_back(
        repo, model, optimizer, scheduler=scheduler, scaler=scaler, rev=commit, name=path
    )
    _resumed[parts.unwrap(model)] = repo.root, resumed
    return resumed


def load(
    repo: Repository,
    model: torch.nn.Module,
    rev: Rev | None = None,
    *,
    at: Time | None = None,
    target: str | None = None,
    path: str | None = None,
    strict: bool = True,
) -> Loaded:
    """Puts a version's weights into a live module, in place; returns what did not fit.

    The version is named as for ``Repository.checkout``. Parameters keep their devices. Raises
    DoesNotFit, before anything is changed, where shapes or dtypes differ, and with ``strict``
    where a key is missing or unexpected.
    """
    return load_state(model, repo.checkout(rev, at=at, target=target, path=path), strict=strict)


def resumed_since(repo: Repository, model: torch.nn.Module | None) -> Resumed | None:
    """What ``repo`` resumed ``model`` from since the last such call; None if it did not."""
    noted = _resumed.pop(model, None) if _resumed and model is not None else None
    return noted[1] if noted is not None and noted[0] == repo.root else None


def set_back(
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

    Raises CannotResume with the reason if the version lacks a part, has one that was not passed,
    or if names, shapes, dtypes, ties or component types differ; UnknownRevision for ``rev``. A
    model inside ``torch.compile`` or a data-parallel wrapper is treated as the model itself.
    """
    check_objects(model, optimizer, scheduler, scaler)
    commit = repo.find(rev)
    kept = training_state(repo, commit, name)
    passed = {"optimizer": optimizer, "scheduler": scheduler, "scaler": scaler}
    for part, value in passed.items():
        _check_part(commit, part, kept.get(part), value)
    weights = training_weights(repo, commit, name, kept)
    if set(weights) != set(model.state_dict()):  # equal if recorded with the wrapper's names
        model = parts.unwrap(model)
    check_model(model, weights, kept)
    more = check_types(kept, scheduler=scheduler, scaler=scaler)
    placement = None if optimizer is None else Placement(model, optimizer, kept["optimizer"])

    load_model(model, weights, kept["buffers"])
    if placement is not None:
        placement.apply()
    if scheduler is not None:
        scheduler.load_state_dict(typed_as(scheduler.state_dict(), kept["scheduler"]))
    if scaler is not None:
        scaler.load_state_dict(kept["scaler"])
    set_rng_state(kept["rng"])
    differs = (*differences(kept["setting"]), *more, *approximation(kept))
    return Resumed(commit, kept["step"], kept["batch"], differs)


def without(commit: CommitId, part: str) -> CannotResume:
    """The error for a version that was recorded without ``part``."""
    what = "state of the random generators" if part == "rng" else part
    return CannotResume(
        f"{commit.short} was recorded without the {what}", hint=f"record with {part!r} in include"
    )


def check_types(kept: Mapping[str, Any], **passed: Any) -> tuple[str, ...]:
    """``check_type`` for each part whose type the version names."""
    kinds = kept.get("kinds", {})
    lines = (check_type(part, kinds.get(part), value) for part, value in passed.items())
    return tuple(chain.from_iterable(lines))


def training_state(
    repo: Repository,
    commit: CommitId,
    name: str,
    *,
    by: RecordedBy = RecordedBy(),  # noqa: B008 - a value
) -> Mapping[str, Any]:
    """The training state beside the model ``name``.

    Raises CannotResume if there is none, if it belongs to another version of the model, or has no
    random generators that can be set here. If
    ``name`` holds production weights, training cannot continue from them: the caller takes the
    weights from ``training_weights``.
    """
    entries = repo.manifest(commit).by_path
    path = training_path(name)
    if name not in entries or path not in entries:
        missing = name if name not in entries else path
        raise CannotResume(
            f"{commit.short} has no {missing}", hint=f"only versions of {by.name} can be resumed"
        )
    kept = repo.checkout(commit, path=path)
    kept = kept if isinstance(kept, Mapping) else {}
    own = (by.schema, parts.PRODUCTION)
    schemas = kept.get("schema"), kept.get("of", by.schema)
    if schemas not in {(each, by.schema) for each in own}:
        made = next((s for s in schemas if isinstance(s, str) and s not in own), None)
        raise CannotResume(
            f"{path} of {commit.short} is no {by.state}" + (f", but of {made}" if made else ""),
            hint=_OTHERS if made else None,
        )
    if by.part not in kept:
        raise CannotResume(f"{commit.short} was not recorded by {by.name}", hint=_OTHERS)
    if "root" not in kept:
        raise CannotResume(
            f"{commit.short} was recorded without the model", hint="record with 'model' in include"
        )
    if kept["root"] != entries[name].state.root.hex():
        whole = (
            each.id.short
            for each in repo.log(commit)
            if each.forgotten_ns is None
            and (file := repo.manifest(each.id).by_path.get(name)) is not None
            and file.state.root.hex() == kept["root"]
        )
        raise CannotResume(
            f"{path} of {commit.short} belongs to another version of {name}: "
            "this one was committed without its training state",
            hint=f"resume from its own: mvc.resume(repo, ..., rev={next(whole, 'REV')!r})",
        )
    if kept["schema"] == parts.PRODUCTION and kept["weights"] is None:
        raise CannotResume(
            f"{commit.short} holds production weights, made by {kept['pipeline']!r}; the "
            "training weights that they were made of were not kept",
            hint="record with keep_training=True; for the production weights alone use "
            + by.weights,
        )
    if kept.get("rng") is None:
        raise without(commit, "rng")
    check_rng(kept["rng"])
    if kept.get("approximated"):
        bound_moments(kept.get("optimizer"))
    return kept


def training_weights(
    repo: Repository, commit: CommitId, name: str, kept: Mapping[str, Any]
) -> Mapping[str, Any]:
    """The weights that training continues from; ``kept`` is the result of ``training_state``."""
    own = kept["schema"] == parts.PRODUCTION
    weights: Mapping[str, Any] = kept["weights"] if own else repo.checkout(commit, path=name)
    return weights


def _check_part(commit: CommitId, part: str, kept: Any, passed: Any) -> None:
    if passed is not None and kept is None:
        raise CannotResume(
            f"{commit.short} was recorded without the {part}", hint=f"pass the {part} to Recorder"
        )
    if passed is None and kept is not None:
        raise CannotResume(
            f"{commit.short} has the state of {an(part)}, but none was passed: "
            "training would not go on as it was",
            hint=f"pass the {part}; for the weights alone use {_WEIGHTS}",
        )


def check_model(
    model: torch.nn.Module, weights: Mapping[str, Any], kept: Mapping[str, Any]
) -> None:
    """Raises CannotResume for a model with other names, shapes, dtypes or ties."""
    here = model.state_dict()
    if wrong := _misfits(here, weights):
        raise CannotResume(
            f"the version does not fit the model: {_first(wrong)}", hint=_hint(here, weights)
        )
    for key, mine in here.items():
        if isinstance(mine, torch.Tensor) and mine.is_meta:
            raise CannotResume(
                f"{key} of the model has no data (device meta)", hint="model.to_empty(device=...)"
            )
    tied = parts.tied_names(model)
    if kept["tied"] != tied:
        raise CannotResume(
            f"the model ties {tied or 'no parameters'}, the version {kept['tied']}",
            hint="tie the same parameters before resuming",
        )


def _hint(here: Mapping[str, Any], there: Mapping[str, Any]) -> str:
    """The hint for a different model, or for one with a wrapper around some layers."""
    prefix = re.compile("|".join(map(re.escape, parts.PREFIXES)))
    if here.keys() != there.keys() and (
        {prefix.sub("", name) for name in here} == {prefix.sub("", name) for name in there}
    ):
        return "a layer is compiled or wrapped in one of the two: wrap the same layers as then"
    return "make the model as it was when the version was recorded"


def _kind(value: Any) -> str:
    """``float32 (2, 3)``, of torch tensors and numpy arrays alike."""
    if not hasattr(value, "dtype") or not hasattr(value, "shape"):
        return an(type(value).__name__)
    return f"{str(value.dtype).removeprefix('torch.')} {tuple(value.shape)}"


def load_model(
    model: torch.nn.Module, weights: Mapping[str, Any], buffers: Mapping[str, torch.Tensor]
) -> None:
    """Loads weights and buffers; module version numbers are not stored, the model's own count."""
    state = OrderedDict(weights)
    state._metadata = model.state_dict()._metadata  # type: ignore[attr-defined]
    model.load_state_dict(state, strict=True)
    present = parts.passing_buffers(model)
    for name, value in buffers.items():
        owner, _, leaf = name.rpartition(".")
        device = present[name].device if name in present else value.device
        model.get_submodule(owner)._buffers[leaf] = value.to(device)


def typed_as(pattern: Any, value: Any) -> Any:
    """A stored value with a Counter where ``pattern`` has one; storing makes it a dictionary."""
    if isinstance(pattern, Mapping) and isinstance(value, Mapping):
        made = {key: typed_as(pattern.get(key), item) for key, item in value.items()}
        return Counter(made) if type(pattern) is Counter else made
    return value


def differences(kept: Mapping[str, str]) -> tuple[str, ...]:
    """The entries of a stored ``setting`` that differ here, as ``threads: 4, not 2``."""
    here = parts.setting()
    pairs = ((what, here.get(what), value) for what, value in kept.items())
    return tuple(f"{what}: {mine}, not {value}" for what, mine, value in pairs if mine != value)


def approximation(kept: Mapping[str, Any]) -> tuple[str, ...]:
    """``state: approximated by PIPELINE, not exact``, if the version was recorded so."""
    pipeline = kept.get("approximated")
    return (f"state: approximated by {pipeline}, not exact",) if pipeline else ()


class Loaded(Struct, frozen=True):
    """What did not fit: keys that the version lacks (``missing``), and that the module lacks."""

    missing: tuple[str, ...]
    unexpected: tuple[str, ...]


def load_state(model: torch.nn.Module, state: Any, *, strict: bool = True) -> Loaded:
    """Copies ``state``, a flat mapping of tensors, into the module's parameters and buffers.

    Everything is compared first: where it raises, the module is as it was. Raises DoesNotFit,
    listing every tensor whose shape or dtype differs, and with ``strict`` every key that only
    one side has.
    """
    if not isinstance(state, Mapping):
        raise DoesNotFit(f"the version holds a {type(state).__name__}, not named tensors")
    here = model.state_dict()
    nested = [str(k) for k, v in state.items() if isinstance(v, Mapping) and k not in here]
    if nested:
        raise DoesNotFit(
            f"the version holds more than one model's tensors: {', '.join(nested[:_SHOWN])}",
            hint="take the part that is the model: model.load_state_dict(repo.checkout(...)[NAME])",
        )
    missing = tuple(key for key in here if key not in state)
    unexpected = tuple(key for key in state if key not in here)
    if wrong := _misfits(here, state, strict=strict):
        raise DoesNotFit(
            f"the version does not fit the model: {_first(wrong)}",
            hint="make the model as it was when the version was committed; strict=False loads "
            "what both have, if shapes and dtypes agree",
        )
    fitting = {
        key: torch.as_tensor(state[key]) if isinstance(mine, torch.Tensor) else state[key]
        for key, mine in here.items()
        if key in state
    }
    model.load_state_dict(fitting, strict=False)
    return Loaded(missing, unexpected)


def _misfits(
    here: Mapping[str, Any], there: Mapping[str, Any], *, strict: bool = True
) -> list[str]:
    """What of a version's state is otherwise in a model's; with ``strict`` names, too."""
    wrong = [
        f"{key}: {_kind(there[key])} in the version, {_kind(mine)} in the model"
        for key, mine in here.items()
        if key in there and isinstance(mine, torch.Tensor) and _kind(there[key]) != _kind(mine)
    ]
    if strict:
        wrong += [
            *(f"{key}: the version lacks it" for key in here if key not in there),
            *(f"{key}: the model lacks it" for key in there if key not in here),
        ]
    return wrong


def _first(wrong: list[str]) -> str:
    more = f"; and {len(wrong) - _SHOWN:,} more" if len(wrong) > _SHOWN else ""
    return f"{'; '.join(wrong[:_SHOWN])}{more}"
