"""Finds the metrics of a checkpoint that is imported into a repository.

Metrics are read from the name of the checkpoint, such as ``epoch=3-val_loss=0.25.ckpt``, and from
the file ``trainer_state.json``, which the Trainer of Hugging Face writes.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct, field

from mvc.errors import InvalidName, IoFailed
from mvc.importing.finding import Checkpoint
from mvc.limits import MIB
from mvc.names import check_key
from mvc.system import FileSystem

_STATE = "trainer_state.json"
MOST_BYTES = 16 * MIB  # largest trainer_state.json; a long training writes several MiB
_MOST = 100  # maximum number of metrics
_NUMBER = r"-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?"
_NAMED = re.compile(rf"([A-Za-z][A-Za-z0-9_/]*)=({_NUMBER})")
_KNOWN = re.compile(
    r"(?:^|[-_.])(checkpoint|ckpt|global_step|step|epoch|iter|iteration"
    r"|(?:(?:train|val|valid|eval|test)_)?(?:loss|acc|accuracy|auc|f1|bleu|ppl))"
    rf"[-_.]?({_NUMBER})(?![0-9A-Za-z])",
    re.IGNORECASE,
)
_STEPS = {"checkpoint", "ckpt", "global_step"}
_NO_JSON = re.compile(rb"(?<=[\s:,\[])(?:NaN|-?Infinity)(?=[\s,}\]])")  # not valid JSON


class _TrainerState(Struct):
    """The fields of ``trainer_state.json`` that are read."""

    global_step: int | float | None = None
    log_history: list[dict[str, Any]] = field(default_factory=list)


def metrics_of(fs: FileSystem, checkpoint: Checkpoint, too_long: list[Path]) -> dict[str, float]:
    """At most 100 metrics by name.

    If a metric is in ``trainer_state.json`` and in the checkpoint's name, the value in the file
    counts. A file of more than MOST_BYTES is not read. Its path is added to ``too_long``.
    """
    metrics: dict[str, float] = {}
    for name, number in (*_in_state(fs, checkpoint, too_long), *_in_name(checkpoint.source.name)):
        if len(metrics) < _MOST and name not in metrics and math.isfinite(number):
            metrics[name] = number
    return metrics


def _in_name(name: str) -> Iterator[tuple[str, float]]:
    """Yields the metrics in names such as ``epoch=3-val_loss=0.25.ckpt`` or
    ``model_acc0.91.pt``.
    """
    yield from ((key, float(text)) for key, text in _NAMED.findall(name))
    for key, text in _KNOWN.findall(name):
        yield "step" if key.lower() in _STEPS else key.lower(), float(text)


def _in_state(
    fs: FileSystem, checkpoint: Checkpoint, too_long: list[Path]
) -> Iterator[tuple[str, float]]:
    """Yields the step and the logged metrics in ``trainer_state.json``, newest first."""
    place = next((p for p in checkpoint.files.values() if p.name == _STATE), None)
    identity = None if place is None else fs.stat(place)
    if place is None or identity is None:
        return
    if identity.size > MOST_BYTES:
        too_long.append(place)
        return
    state = _read(fs, place)
    if (number := _number(state.global_step)) is not None:
        yield "step", number
    yield from (
        (name, number)
        for entry in reversed(state.log_history)
        for name, value in entry.items()
        if (number := _number(value)) is not None and _is_name(name)
    )


def _read(fs: FileSystem, place: Path) -> _TrainerState:
    """Reads ``trainer_state.json``. The result is empty if the file has no valid content."""
    try:
        data = _NO_JSON.sub(b"null", fs.read_bytes(place, MOST_BYTES))
        return msgspec.json.decode(data, type=_TrainerState)
    except (IoFailed, ValueError, RecursionError):
        return _TrainerState()


def _number(value: object) -> float | None:
    """A number that fits a float64; None for any other value, including booleans."""
    if not isinstance(value, int | float) or isinstance(value, bool) or not abs(value) < 1e300:
        return None
    return float(value)


def _is_name(name: str) -> bool:
    try:
        return bool(check_key(name, "metric"))
    except InvalidName:
        return False
