"""Metrics of a checkpoint that was trained elsewhere, from its name and its trainer's state."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from pathlib import Path

from mvc.errors import InvalidName, IoFailed
from mvc.io.files import FileSystem
from mvc.limits import MIB
from mvc.model.names import check_key
from mvc.repo.importing.finding import Checkpoint

_STATE = "trainer_state.json"
_MOST_BYTES = 64 * MIB
_MOST = 100  # metrics
_NUMBER = r"-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?"
_NAMED = re.compile(rf"([A-Za-z][A-Za-z0-9_/]*)=({_NUMBER})")
_KNOWN = re.compile(
    r"(?:^|[-_.])(checkpoint|ckpt|global_step|step|epoch|iter|iteration"
    r"|(?:(?:train|val|valid|eval|test)_)?(?:loss|acc|accuracy|auc|f1|bleu|ppl))"
    rf"[-_.]?({_NUMBER})(?![0-9A-Za-z])",
    re.IGNORECASE,
)
_STEPS = {"checkpoint", "ckpt", "global_step"}


def metrics_of(fs: FileSystem, checkpoint: Checkpoint) -> dict[str, float]:
    """Numbers by name, at most 100; those of the trainer's state come before those of names."""
    found: dict[str, float] = {}
    for name, number in (*_in_state(fs, checkpoint), *_in_name(checkpoint.source.name)):
        if len(found) < _MOST and name not in found and math.isfinite(number):
            found[name] = number
    return found


def _in_name(name: str) -> Iterator[tuple[str, float]]:
    """Those of ``epoch=3-val_loss=0.25.ckpt``, ``checkpoint-500`` or ``model_acc0.91.pt``."""
    for key, text in _NAMED.findall(name):
        yield key, float(text)
    for key, text in _KNOWN.findall(name):
        yield "step" if key.lower() in _STEPS else key.lower(), float(text)


def _in_state(fs: FileSystem, checkpoint: Checkpoint) -> Iterator[tuple[str, float]]:
    """What transformers logged last of each number, up to the step of the checkpoint."""
    place = next((p for p in checkpoint.files.values() if p.name == _STATE), None)
    state = None if place is None else _read(fs, place)
    if not isinstance(state, dict):
        return
    step, logged = state.get("global_step"), state.get("log_history")
    if (number := _number(step)) is not None:
        yield "step", number
    for entry in reversed(logged if isinstance(logged, list) else []):
        for name, value in entry.items() if isinstance(entry, dict) else ():
            if (number := _number(value)) is not None and _is_name(name):
                yield name, number


def _read(fs: FileSystem, place: Path) -> object:
    """The state as Python values; None where it is no JSON, or more than a trainer writes."""
    try:
        return json.loads(fs.read_bytes(place, _MOST_BYTES))
    except (IoFailed, ValueError, RecursionError):
        return None


def _number(value: object) -> float | None:
    """A number that a float64 holds; None for anything else, and for truth values."""
    if not isinstance(value, int | float) or isinstance(value, bool) or not abs(value) < 1e300:
        return None
    return float(value)


def _is_name(name: str) -> bool:
    try:
        return bool(check_key(name, "metric"))
    except InvalidName:
        return False
