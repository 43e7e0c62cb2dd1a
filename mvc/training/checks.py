"""Checks the arguments of a Recorder, which commits versions during a training."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import PurePosixPath
from typing import Any, TypedDict, cast

import torch
from msgspec import Struct

from mvc.api import check_values, metrics_from, params_from
from mvc.errors import WrongUsage
from mvc.ids import CommitId
from mvc.lossy import Evaluate, Monitor
from mvc.names import DEFAULT_STATE, check_author, check_path, check_ref, check_run, encode_text
from mvc.pipelines import Pipeline, Requirements, pipeline_and_bound
from mvc.state import ServedVersion
from mvc.training.staging import MODES
from mvc.training.step_notes import StepNotes

Metrics = Mapping[str, Any]
Params = Mapping[str, Any]


class RecorderKeywords(TypedDict, total=False):
    """Keyword arguments of ``mvc.Recorder``, which explains these arguments."""

    deploy: str | None
    push: str | None
    branch: str | None
    pipeline: str | Requirements | None
    when_full: str
    metrics: Metrics | Callable[[], Metrics] | None
    params: Params | Callable[[], Params] | None
    run: str | None
    name: str
    queue_bytes: int | None
    on_deploy: Callable[[ServedVersion], object] | None
    deploy_first: bool
    evaluate: Evaluate | None
    monitor: Monitor | None
    exact: Sequence[str]
    keep_training: bool
    message: str
    author: str | None


class RecorderOptions(Struct, frozen=True):
    """All settings of a Recorder: the values of ``RecorderKeywords``, and settings by mvc itself.

    If the keyword ``pipeline`` is a Requirements object, ``pipeline`` is its text here, and
    ``max_recovery`` its limit of the recovery time.
    """

    deploy: str | None = None
    push: str | None = None
    branch: str | None = None
    pipeline: str | None = None
    max_recovery: float | None = None
    every: int = 1
    when_full: str = "block"
    metrics: Metrics | Callable[[], Metrics] | None = None
    params: Params | Callable[[], Params] | None = None
    run: str | None = None
    name: str = DEFAULT_STATE
    queue_bytes: int | None = None
    start: int | None = None
    on_deploy: Callable[[ServedVersion], object] | None = None
    deploy_first: bool = False
    evaluate: Evaluate | None = None
    monitor: Monitor | None = None
    exact: Sequence[str] | None = None
    keep_training: bool = False
    message: str = ""
    author: str | None = None
    origin: CommitId | None = None
    """The version that the training resumed from."""
    hyper: Params = {}
    """Hyper-parameters from a framework. Equal names in ``params`` take precedence."""
    files: Mapping[str, bytes] = {}
    """Files to add to every version. Maps paths, relative to the folder of ``name``, to bytes."""
    steps: StepNotes | None = None

    @classmethod
    def of(cls, keywords: RecorderKeywords, every: int = 1) -> RecorderOptions:
        """Checked options. Raises TypeError for an unknown keyword, and as ``check_options``."""
        text, bound = pipeline_and_bound(keywords.get("pipeline"))
        options = cast("dict[str, Any]", keywords) | {"pipeline": text, "max_recovery": bound}
        chosen = cls(**options, every=every)
        check_options(chosen)
        return chosen

    @property
    def stages(self) -> Pipeline:
        """The parsed pipeline, by default the pipeline ``lossless``."""
        return Pipeline.parse(self.pipeline or "lossless")

    @property
    def tip(self) -> str:
        """The revision from which a training continues by default."""
        return f"heads/{self.branch}" if self.branch else "HEAD"

    def numbers(self, loss: Any, metrics: Metrics | None) -> dict[str, float]:
        """The metrics of one version: those of the Recorder, those of a step, and the loss."""
        merged = _joined("metrics", self.metrics, metrics)
        if loss is not None:
            merged["loss"] = loss
        return metrics_from(merged)

    def settings(self, params: Params | None) -> dict[str, str]:
        """The params of one version: those of the framework, the Recorder and a step."""
        params_ = {**self.hyper, **params_from(_joined("params", self.params, params))}
        check_values({}, params_)
        return params_


def _joined(name: str, common: Any, own: Any) -> dict[str, Any]:
    merged: dict[str, Any] = {}
    for values in (common() if callable(common) else common, own):
        if not isinstance(values, Mapping | None):
            raise _wrong(name, values, "a mapping from names to values")
        merged |= values or {}
    return merged


def check_objects(model: Any, optimizer: Any, scheduler: Any, scaler: Any) -> None:
    """Raises WrongUsage for an object of a wrong type, or without methods that recording needs."""
    if not isinstance(model, torch.nn.Module):
        hint = "pass the module itself, not its state_dict" if isinstance(model, Mapping) else None
        raise _wrong("model", model, "a torch.nn.Module", hint)
    if optimizer is not None and not hasattr(optimizer, "param_groups"):
        raise _wrong(
            "optimizer", optimizer, "an optimizer of torch", "pass the model before the optimizer"
        )
    for name, value in (("optimizer", optimizer), ("scheduler", scheduler), ("scaler", scaler)):
        if value is not None and not all(
            callable(getattr(value, method, None)) for method in ("state_dict", "load_state_dict")
        ):
            raise _wrong(name, value, "an object with state_dict and load_state_dict")


def check_options(options: RecorderOptions) -> None:
    """Raises WrongUsage for an option of a wrong type or outside its range.

    Raises InvalidName for an invalid name, and InvalidPipeline for an invalid pipeline.
    """
    whole_number("every", options.every, 1)
    if options.queue_bytes is not None:
        whole_number("queue_bytes", options.queue_bytes, 0)
    for name, check in _TEXTS.items():
        value = getattr(options, name)
        if isinstance(value, str):
            encode_text(value)
            check(value)
        elif value is not None or name in {"name", "message"}:
            raise _wrong(name, value, "text")
    for name in ("metrics", "params"):
        value = getattr(options, name)
        if not (value is None or callable(value) or isinstance(value, Mapping)):
            raise _wrong(name, value, "a mapping, or a function that returns one")
    if isinstance(options.params, Mapping):
        options.settings(None)
    for name in ("on_deploy", "evaluate", "monitor"):
        value = getattr(options, name)
        if value is not None and not callable(value):
            raise _wrong(name, value, "a function")
    if options.deploy_first and options.on_deploy is None:
        raise WrongUsage("deploy_first needs on_deploy")
    if isinstance(options.exact, str) or not isinstance(options.exact, Iterable | None):
        raise _wrong("exact", options.exact, "names of tensors in a list")
    if options.when_full not in MODES:
        raise WrongUsage(
            f"when_full is {options.when_full!r}: no such mode",
            hint=f"use one of {', '.join(MODES)}",
        )


def whole_number(name: str, value: Any, least: int) -> int:
    """``value`` as an int of at least ``least``. Raises WrongUsage, which names the argument."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise _wrong(name, value, "a whole number")
    number = int(value)
    if number < least:
        raise WrongUsage(f"{name} must be at least {least}, but is {number}")
    return number


def _check_path(name: str) -> None:
    if name.endswith("/"):
        raise WrongUsage(
            f"name is {name!r}: a Recorder writes one file", hint=f"name={name + DEFAULT_STATE!r}"
        )
    path = PurePosixPath(check_path(name))
    if path.stem.endswith(".training"):
        model = path.with_name(path.stem.removesuffix(".training") + path.suffix)
        raise WrongUsage(
            f"name is {name!r}: that path is for the training state of {model}",
            hint=f"name={str(model)!r} records model and training state",
        )


_TEXTS: dict[str, Callable[[str], object]] = {
    "name": _check_path,
    "message": str,
    "branch": partial(check_ref, "branch"),
    "deploy": partial(check_ref, "deployment target"),
    "push": str,
    "author": check_author,
    "pipeline": Pipeline.parse,
    "run": check_run,
}
"""Maps each option that is a text to the function that checks the text."""


def _wrong(name: str, value: Any, wanted: str, hint: str | None = None) -> WrongUsage:
    return WrongUsage(f"{name} is of type {type(value).__name__}: it must be {wanted}", hint=hint)
