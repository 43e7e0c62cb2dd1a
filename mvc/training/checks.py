"""A Recorder's arguments, checked before anything begins; each error names the argument."""

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
    """Keyword arguments that every callback hands to its Recorder, which explains them."""

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
    """``RecorderKeywords``, the pipeline as text with its bound, and where the training goes on."""

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
    """The hyper-parameters that a framework knows; ``params`` of the same names count."""
    files: Mapping[str, bytes] = {}
    """Files of every version in the folder of ``name``, by their path in it."""
    steps: StepNotes | None = None

    @classmethod
    def of(cls, given: RecorderKeywords, every: int = 1) -> RecorderOptions:
        """Raises as ``check_options``, and TypeError for an unknown name."""
        text, bound = pipeline_and_bound(given.get("pipeline"))
        options = cast("dict[str, Any]", given) | {"pipeline": text, "max_recovery": bound}
        made = cls(**options, every=every)
        check_options(made)
        return made

    @property
    def stages(self) -> Pipeline:
        """The pipeline that was named; without one nothing is lossy and nothing decides."""
        return Pipeline.parse(self.pipeline or "lossless")

    @property
    def tip(self) -> str:
        """The revision that training continues from if none is named."""
        return f"heads/{self.branch}" if self.branch else "HEAD"

    def numbers(self, loss: Any, metrics: Metrics | None) -> dict[str, float]:
        """The metrics of one version: those of every version, those of the step, and its loss."""
        given = _joined("metrics", self.metrics, metrics)
        if loss is not None:
            given["loss"] = loss
        return metrics_from(given)

    def settings(self, params: Params | None) -> dict[str, str]:
        """The params of one version: those of every version, and those of the step."""
        made = {**self.hyper, **params_from(_joined("params", self.params, params))}
        check_values({}, made)
        return made


def _joined(name: str, common: Any, given: Any) -> dict[str, Any]:
    """The values of every version and those of one; raises WrongUsage if either is no mapping."""
    found: dict[str, Any] = {}
    for each in (common() if callable(common) else common, given):
        if not isinstance(each, Mapping | None):
            raise _wrong(name, each, "a mapping from names to values")
        found |= each or {}
    return found


def check_objects(model: Any, optimizer: Any, scheduler: Any, scaler: Any) -> None:
    """Raises WrongUsage for an object that cannot be what it was passed as."""
    if not isinstance(model, torch.nn.Module):
        hint = "pass the module itself, not its state_dict" if isinstance(model, Mapping) else None
        raise _wrong("model", model, "a torch.nn.Module", hint)
    if optimizer is not None and not hasattr(optimizer, "param_groups"):
        raise _wrong("optimizer", optimizer, "an optimizer of torch", "the model comes first")
    for name, value in (("optimizer", optimizer), ("scheduler", scheduler), ("scaler", scaler)):
        if value is not None and not all(
            callable(getattr(value, method, None)) for method in ("state_dict", "load_state_dict")
        ):
            raise _wrong(name, value, "anything with state_dict and load_state_dict")


def check_options(options: RecorderOptions) -> None:
    """Raises WrongUsage for an option of a wrong type or outside its range.

    Raises InvalidName for a bad name, InvalidPipeline for a bad pipeline.
    """
    whole("every", options.every, 1)
    if options.queue_bytes is not None:
        whole("queue_bytes", options.queue_bytes, 0)
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
        raise WrongUsage("deploy_first is for on_deploy, which is not given")
    if isinstance(options.exact, str) or not isinstance(options.exact, Iterable | None):
        raise _wrong("exact", options.exact, "names of tensors in a list")
    if options.when_full not in MODES:
        raise WrongUsage(f"when_full is {options.when_full!r}", hint=f"it takes {', '.join(MODES)}")


def whole(name: str, value: Any, least: int) -> int:
    """``value`` as an int of at least ``least``; else raises WrongUsage naming it."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise _wrong(name, value, "a whole number")
    number = int(value)
    if number < least:
        raise WrongUsage(f"{name} must be at least {least}, but is {number}")
    return number


def _check_place(name: str) -> None:
    if name.endswith("/"):
        raise WrongUsage(
            f"name is {name!r}: a Recorder writes one file", hint=f"name={name + DEFAULT_STATE!r}"
        )
    path = PurePosixPath(check_path(name))
    if path.stem.endswith(".training"):
        model = path.with_name(path.stem.removesuffix(".training") + path.suffix)
        raise WrongUsage(
            f"name is {name!r}, where the training state of {model} would lie",
            hint=f"name={str(model)!r} records both",
        )


_TEXTS: dict[str, Callable[[str], object]] = {
    "name": _check_place,
    "message": str,
    "branch": partial(check_ref, "branch"),
    "deploy": partial(check_ref, "deployment target"),
    "push": str,
    "author": check_author,
    "pipeline": Pipeline.parse,
    "run": check_run,
}
"""The options that are texts, with what refuses one beside ``encode_text``."""


def _wrong(name: str, value: Any, wanted: str, hint: str | None = None) -> WrongUsage:
    return WrongUsage(f"{name} is of type {type(value).__name__}: it must be {wanted}", hint=hint)
