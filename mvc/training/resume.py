"""Resumes a training from a recorded version, bit for bit on the same machine.

``load`` loads only the weights of a version. ``resume`` and ``load`` check everything before they
change anything. So after an error, model, optimizer and random generators are unchanged.
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
_OTHERS = "resume with the API that recorded the version: mvc.resume, or a framework's callback"
_WEIGHTS = "model.load_state_dict(repo.checkout(rev))"


class RecordedBy(Struct, frozen=True):
    """Describes training states that a Recorder recorded, or that a framework's callback recorded.

    ``schema``: the name of the format. ``state``: a name of the training state, for messages.
    ``name``: a name of the recorder, for messages. ``weights``: the call that loads only the
    weights, for hints. ``part``: a key that the training state must have.
    """

    schema: str = parts.SCHEMA
    state: str = "training state of a Recorder"
    name: str = "a Recorder"
    weights: str = _WEIGHTS
    part: str = "schema"


class Resumed(Struct, frozen=True):
    """Where the training continues: after ``step`` steps. The last step used ``batch``.

    ``differs`` lists changed conditions that affect the bits of the next step, such as ``threads:
    4, not 2``. On the same machine with the same settings, ``differs`` is empty.
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
    """Sets model, optimizer, scheduler, scaler and random generators to a recorded version.

    ``rev``, ``at`` and ``target`` name the version as for ``Repository.checkout``. ``path`` is the
    model's file. Raises CannotResume with the reason, before anything changes. A Recorder of this
    model, open or new, then continues to count steps from this version, and records that the
    training resumed from the version.
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
    """Loads a version's weights into a module, in place. Returns the keys that did not match.

    ``rev``, ``at`` and ``target`` name the version as for ``Repository.checkout``. Parameters stay
    on their devices. Raises DoesNotFit, before anything changes, if shapes or dtypes differ. With
    ``strict``, raises DoesNotFit, too, if a key is missing or unexpected.
    """
    return load_state(model, repo.checkout(rev, at=at, target=target, path=path), strict=strict)


def resumed_since(repo: Repository, model: torch.nn.Module | None) -> Resumed | None:
    """The newest result of ``resume`` for this model and repository.

    None if ``resume`` was not called since the previous call of this function.
    """
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
    """Sets model, optimizer, scheduler, scaler and random generators to a recorded version.

    A *part* is an optimizer, scheduler or scaler. Raises CannotResume with the reason: the version
    lacks a passed part, a part of the version was not passed, or names, shapes, dtypes, tied
    parameters or types differ. Raises UnknownRevision if ``rev`` does not exist. The model may have
    a wrapper (``torch.compile`` or data parallel).
    """
    check_objects(model, optimizer, scheduler, scaler)
    commit = repo.find(rev)
    recorded = training_state(repo, commit, name)
    passed = {"optimizer": optimizer, "scheduler": scheduler, "scaler": scaler}
    for part, value in passed.items():
        _check_part(commit, part, recorded.get(part), value)
    weights = training_weights(repo, commit, name, recorded)
    if set(weights) != set(
        model.state_dict()
    ):  # the version has names without the wrapper's prefix
        model = parts.unwrap(model)
    check_model(model, weights, recorded)
    more = check_types(recorded, scheduler=scheduler, scaler=scaler)
    placement = None if optimizer is None else Placement(model, optimizer, recorded["optimizer"])

    load_model(model, weights, recorded["buffers"])
    if placement is not None:
        placement.apply()
    if scheduler is not None:
        scheduler.load_state_dict(typed_as(scheduler.state_dict(), recorded["scheduler"]))
    if scaler is not None:
        scaler.load_state_dict(recorded["scaler"])
    set_rng_state(recorded["rng"])
    differs = (*differences(recorded["setting"]), *more, *approximation(recorded))
    return Resumed(commit, recorded["step"], recorded["batch"], differs)


def recorded_without(commit: CommitId, part: str) -> CannotResume:
    """The error for a version that was recorded without ``part``."""
    name = "state of the random generators" if part == "rng" else part
    return CannotResume(
        f"{commit.short} was recorded without the {name}",
        hint=f"record with {part!r} in include",
    )


def check_types(recorded: Mapping[str, Any], **passed: Any) -> tuple[str, ...]:
    """As ``check_type``, for all passed parts. Returns the lines of all parts."""
    kinds = recorded.get("kinds", {})
    lines = (check_type(part, kinds.get(part), value) for part, value in passed.items())
    return tuple(chain.from_iterable(lines))


def training_state(
    repo: Repository,
    commit: CommitId,
    name: str,
    *,
    by: RecordedBy = RecordedBy(),  # noqa: B008 - immutable
) -> Mapping[str, Any]:
    """The training state of the model ``name``.

    Raises CannotResume if there is no training state, if the training state belongs to another
    version of the model, or if this machine cannot restore the states of the random generators.
    Take the weights from ``training_weights``, because the file ``name`` may contain production
    weights.
    """
    entries = repo.manifest(commit).by_path
    path = training_path(name)
    if name not in entries or path not in entries:
        missing = name if name not in entries else path
        raise CannotResume(
            f"{commit.short} has no {missing}", hint=f"resume a version that {by.name} recorded"
        )
    recorded = repo.checkout(commit, path=path)
    recorded = recorded if isinstance(recorded, Mapping) else {}
    own = (by.schema, parts.PRODUCTION)
    schemas = recorded.get("schema"), recorded.get("of", by.schema)
    if schemas not in {(entry, by.schema) for entry in own}:
        writer = next((s for s in schemas if isinstance(s, str) and s not in own), None)
        raise CannotResume(
            f"{path} of {commit.short} is not a {by.state}"
            + (f", but of {writer}" if writer else ""),
            hint=_OTHERS if writer else None,
        )
    if by.part not in recorded:
        raise CannotResume(f"{commit.short} was not recorded by {by.name}", hint=_OTHERS)
    if "root" not in recorded:
        raise CannotResume(
            f"{commit.short} was recorded without the model",
            hint="record with 'model' in include",
        )
    if recorded["root"] != entries[name].state.root.hex():
        whole = (
            entry.id.short
            for entry in repo.log(commit)
            if entry.forgotten_ns is None
            and (file := repo.manifest(entry.id).by_path.get(name)) is not None
            and file.state.root.hex() == recorded["root"]
        )
        raise CannotResume(
            f"{path} of {commit.short} belongs to another version of {name}: "
            "the current one was committed without its training state",
            hint=f"resume from that version: mvc.resume(repo, ..., rev={next(whole, 'REV')!r})",
        )
    if recorded["schema"] == parts.PRODUCTION and recorded["weights"] is None:
        raise CannotResume(
            f"{commit.short} holds production weights of {recorded['pipeline']!r}, without the "
            "training weights",
            hint="record with keep_training=True; to load only the production weights, use "
            + by.weights,
        )
    if recorded.get("rng") is None:
        raise recorded_without(commit, "rng")
    check_rng(recorded["rng"])
    if recorded.get("approximated"):
        bound_moments(recorded.get("optimizer"))
    return recorded


def training_weights(
    repo: Repository, commit: CommitId, name: str, recorded: Mapping[str, Any]
) -> Mapping[str, Any]:
    """The weights with which a training continues. ``recorded`` is the result of
    ``training_state``.
    """
    own = recorded["schema"] == parts.PRODUCTION
    weights: Mapping[str, Any] = recorded["weights"] if own else repo.checkout(commit, path=name)
    return weights


def _check_part(commit: CommitId, part: str, recorded: Any, passed: Any) -> None:
    if passed is not None and recorded is None:
        raise CannotResume(
            f"{commit.short} was recorded without the {part}",
            hint=f"pass the {part} to Recorder",
        )
    if passed is None and recorded is not None:
        raise CannotResume(
            f"{commit.short} has the state of {an(part)}, but none was passed: "
            "training would not continue identically",
            hint=f"pass the {part}; to load only the weights, use {_WEIGHTS}",
        )


def check_model(
    model: torch.nn.Module, weights: Mapping[str, Any], recorded: Mapping[str, Any]
) -> None:
    """Raises CannotResume if names, shapes, dtypes or tied parameters of the model differ."""
    current = model.state_dict()
    if wrong := _misfits(current, weights):
        raise CannotResume(
            f"the version does not fit the model: {_first(wrong)}", hint=_hint(current, weights)
        )
    for key, mine in current.items():
        if isinstance(mine, torch.Tensor) and mine.is_meta:
            raise CannotResume(
                f"{key} of the model has no data (device meta)", hint="model.to_empty(device=...)"
            )
    tied = parts.tied_names(model)
    if recorded["tied"] != tied:
        raise CannotResume(
            f"the model ties {tied or 'no parameters'}, the version {recorded['tied']}",
            hint="tie the same parameters before resuming",
        )


def _hint(model_state: Mapping[str, Any], version_state: Mapping[str, Any]) -> str:
    """The hint for a model that does not match. Says whether only wrappers of layers differ."""
    prefix = re.compile("|".join(map(re.escape, parts.PREFIXES)))
    if model_state.keys() != version_state.keys() and (
        {prefix.sub("", name) for name in model_state}
        == {prefix.sub("", name) for name in version_state}
    ):
        return (
            "some layers are compiled or wrapped only in the model, or only in the version: "
            "wrap the same layers"
        )
    return "create the model with the architecture that was recorded"


def _kind(value: Any) -> str:
    """Dtype and shape, such as ``float32 (2, 3)``. For other values, the name of the type."""
    if not hasattr(value, "dtype") or not hasattr(value, "shape"):
        return an(type(value).__name__)
    return f"{str(value.dtype).removeprefix('torch.')} {tuple(value.shape)}"


def load_model(
    model: torch.nn.Module, weights: Mapping[str, Any], buffers: Mapping[str, torch.Tensor]
) -> None:
    """Loads weights and buffers into the model.

    Keeps the ``_metadata`` of the model's ``state_dict``, because mvc does not store ``_metadata``.
    """
    state = OrderedDict(weights)
    state._metadata = model.state_dict()._metadata  # type: ignore[attr-defined]
    model.load_state_dict(state, strict=True)
    present = parts.passing_buffers(model)
    for name, value in buffers.items():
        owner, _, leaf = name.rpartition(".")
        device = present[name].device if name in present else value.device
        model.get_submodule(owner)._buffers[leaf] = value.to(device)


def typed_as(pattern: Any, value: Any) -> Any:
    """``value`` with dicts turned into Counters where ``pattern`` has Counters.

    A stored Counter is read as a dict.
    """
    if isinstance(pattern, Mapping) and isinstance(value, Mapping):
        copy = {key: typed_as(pattern.get(key), item) for key, item in value.items()}
        return Counter(copy) if type(pattern) is Counter else copy
    return value


def differences(recorded: Mapping[str, str]) -> tuple[str, ...]:
    """The recorded conditions that differ now, such as ``threads: 4, not 2``."""
    current = parts.setting()
    pairs = ((name, current.get(name), value) for name, value in recorded.items())
    return tuple(f"{name}: {mine}, not {value}" for name, mine, value in pairs if mine != value)


def approximation(recorded: Mapping[str, Any]) -> tuple[str, ...]:
    """``state: approximated by PIPELINE, not exact`` for an approximated version, else empty."""
    pipeline = recorded.get("approximated")
    return (f"state: approximated by {pipeline}, not exact",) if pipeline else ()


class Loaded(Struct, frozen=True):
    """``missing``: keys that only the module has. ``unexpected``: keys that only the version
    has.
    """

    missing: tuple[str, ...]
    unexpected: tuple[str, ...]


def load_state(model: torch.nn.Module, state: Any, *, strict: bool = True) -> Loaded:
    """Copies ``state``, a flat mapping of tensors, into the module's parameters and buffers.

    Compares everything before the first change, so the module is unchanged after an error. Raises
    DoesNotFit, which lists every tensor whose shape or dtype differs. With ``strict``, the list
    contains every missing or unexpected key, too.
    """
    if not isinstance(state, Mapping):
        raise DoesNotFit(f"the version holds a {type(state).__name__}, not named tensors")
    current = model.state_dict()
    nested = [str(k) for k, v in state.items() if isinstance(v, Mapping) and k not in current]
    if nested:
        raise DoesNotFit(
            f"the version holds more than one model's tensors: {', '.join(nested[:_SHOWN])}",
            hint="load only the model's part: model.load_state_dict(repo.checkout(...)[NAME])",
        )
    missing = tuple(key for key in current if key not in state)
    unexpected = tuple(key for key in state if key not in current)
    if wrong := _misfits(current, state, strict=strict):
        raise DoesNotFit(
            f"the version does not fit the model: {_first(wrong)}",
            hint="create the model with the committed architecture; strict=False loads the keys "
            "that the model and the version share, if shapes and dtypes agree",
        )
    fitting = {
        key: torch.as_tensor(state[key]) if isinstance(mine, torch.Tensor) else state[key]
        for key, mine in current.items()
        if key in state
    }
    model.load_state_dict(fitting, strict=False)
    return Loaded(missing, unexpected)


def _misfits(
    model_state: Mapping[str, Any], version_state: Mapping[str, Any], *, strict: bool = True
) -> list[str]:
    """Differences between the states of a model and of a version.

    With ``strict``, missing names are differences, too.
    """
    wrong = [
        f"{key}: {_kind(version_state[key])} in the version, {_kind(mine)} in the model"
        for key, mine in model_state.items()
        if key in version_state
        and isinstance(mine, torch.Tensor)
        and _kind(version_state[key]) != _kind(mine)
    ]
    if strict:
        wrong += [
            *(f"{key}: the version lacks it" for key in model_state if key not in version_state),
            *(f"{key}: the model lacks it" for key in version_state if key not in model_state),
        ]
    return wrong


def _first(wrong: list[str]) -> str:
    more = f"; and {len(wrong) - _SHOWN:,} more" if len(wrong) > _SHOWN else ""
    return f"{'; '.join(wrong[:_SHOWN])}{more}"
