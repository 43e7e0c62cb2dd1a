"""Summaries as JSON files. What is read is checked completely, and nothing in it is executed."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import torch
from msgspec.structs import replace
from safetensors import SafetensorError
from safetensors.torch import load, save

from mvc.errors import DamagedData, WrongUsage
from mvc.ids import BlobId
from mvc.io.files import FileSystem, WriteFile
from mvc.limits import MAX_NAME_BYTES, MAX_PROBE, MAX_PROBE_TENSORS
from mvc.model.names import printable
from mvc.model.tensor import TensorSpec
from mvc.probing.prints import print_of
from mvc.probing.summary import (
    PARTS,
    Conditions,
    LayerCall,
    Summary,
    TensorPrint,
    WeightPrint,
)

__all__ = ["load_summary", "save_summary"]

_SCHEMA = "mvc.probe-summary/1"
_WHOLE = ("inputs", "target", "output", "loss")
_NUMBERS = ("call", "forward", "began", "ended")
_MOST = 1 << 53
_Made = TypeVar("_Made")


def save_summary(run: Summary, path: Path) -> None:
    """Writes the summary as JSON, in place of a file of that name.

    If tensors were kept, they are written beside it, to the name with ``.safetensors`` appended.
    Raises WrongUsage if the file would be too large to be read again.
    """
    fs = FileSystem()
    files = {path: json.dumps(_to_json(run), separators=(",", ":")).encode()}
    if len(files[path]) > MAX_PROBE:
        raise WrongUsage(
            f"the run has {len(run.calls):,} calls of layers, too many for one file",
            hint="select layers with 'only'",
        )
    if run.kept:
        files[_beside(path)] = save({id_.hex(): tensor for id_, tensor in run.kept.items()})
    for place, data in files.items():
        fs.replace_file(place, partial(_write, data), mode=None, durable=False)


def _write(data: bytes, out: WriteFile) -> None:
    out.write([data])


def _beside(path: Path) -> Path:
    return path.with_name(path.name + ".safetensors")


def load_summary(path: Path) -> Summary:
    """Reads what ``save_summary`` wrote. Raises WrongUsage for anything else, IoFailed."""
    fs = FileSystem()
    data = fs.read_bytes(path, MAX_PROBE)
    try:
        found = _from_json(json.loads(data, parse_constant=_no_number))
        if found.only is not None and fs.stat(_beside(path)) is not None:
            found = replace(found, kept=_kept(fs.read_bytes(_beside(path), MAX_PROBE_TENSORS)))
    except (ValueError, RecursionError, DamagedData, WrongUsage) as error:
        raise WrongUsage(
            f"{path} is no summary that 'mvc probe --save' wrote: {_reason(error)}",
            hint="write it again on the machine that it is from",
        ) from error
    return found


def _reason(error: Exception) -> str:
    if isinstance(error, json.JSONDecodeError | UnicodeDecodeError):
        return "it is not JSON"
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    return printable(str(error))[:200]


def _no_number(text: str) -> NoReturn:
    raise ValueError(f"{text} is no number of JSON")


def _kept(data: bytes) -> dict[BlobId, torch.Tensor]:
    """The tensors of the file beside a summary, each compared with its id."""
    try:
        tensors = load(data)
    except SafetensorError as error:
        raise ValueError(f"the file of tensors beside it is damaged: {error}") from error
    if any(print_of(tensor, name).id.hex() != name for name, tensor in tensors.items()):
        raise ValueError("a tensor in the file beside it does not match its hash")
    return {BlobId.parse(name): tensor for name, tensor in tensors.items()}


def _to_json(run: Summary) -> dict[str, Any]:
    conditions = run.conditions
    return {
        "schema": _SCHEMA,
        "training": run.training,
        "conditions": {
            "seed": conditions.seed,
            "threads": conditions.threads,
            "deterministic": conditions.deterministic,
        },
        "environment": dict(run.environment),
        "only": None if run.only is None else list(run.only),
        **{name: _prints_json(getattr(run, name)) for name in _WHOLE},
        "calls": [
            {
                **{name: getattr(call, name) for name in ("layer", "type", *_NUMBERS)},
                **{part: _prints_json(getattr(call, part)) for part in PARTS},
            }
            for call in run.calls
        ],
        "weights": {
            name: [None if each is None else each.hex() for each in (w.before, w.gradient, w.after)]
            for name, w in run.weights.items()
        },
    }


def _prints_json(prints: Iterable[TensorPrint]) -> list[list[Any]]:
    return [[p.place, p.spec.dtype, list(p.spec.shape), p.id.hex(), p.at] for p in prints]


def _from_json(top: Any) -> Summary:
    """Raises ValueError, DamagedData or WrongUsage."""
    if not isinstance(top, dict) or top.get("schema") != _SCHEMA:
        raise ValueError(f"its schema is not {_SCHEMA}")
    given = _take(top, "conditions", dict)
    seed = None if given.get("seed") is None else _take(given, "seed", int)
    conditions = Conditions(seed, _take(given, "threads", int), _take(given, "deterministic", bool))
    only = None if top.get("only") is None else _list(top, "only", _text)
    calls = _list(top, "calls", _call)
    if len({call.key for call in calls}) < len(calls):
        raise ValueError("a call of a layer occurs twice")
    weights = _take(top, "weights", dict)
    whole: dict[str, Any] = {name: _list(top, name, _print) for name in _WHOLE}
    environment = _take(top, "environment", dict)
    return Summary(
        training=_take(top, "training", bool),
        conditions=conditions,
        environment={_text(name): _text(value) for name, value in environment.items()},
        only=only,
        calls=tuple(sorted(calls, key=lambda call: call.forward)),
        weights={_text(name): _weight(value) for name, value in weights.items()},
        **whole,
    )


def _call(node: Any) -> LayerCall:
    numbers: dict[str, Any] = {name: _number(_take(node, name, int)) for name in _NUMBERS}
    prints: dict[str, Any] = {part: _list(node, part, _print) for part in PARTS}
    if numbers["began"] >= numbers["ended"] or not numbers["call"]:
        raise ValueError("a call of a layer ends before it begins")
    return LayerCall(
        layer=_text(_take(node, "layer", str)),
        type=_text(_take(node, "type", str)),
        **numbers,
        **prints,
    )


def _print(node: Any) -> TensorPrint:
    if type(node) is not list or len(node) != 5 or type(node[2]) is not list:
        raise ValueError("a tensor is not described by place, dtype, shape, hash, position")
    place, dtype, shape, id_, at = node
    spec = TensorSpec(_text(dtype), tuple(_number(length) for length in shape))
    return TensorPrint(_text(place), spec, _id(id_), _number(at))


def _weight(node: Any) -> WeightPrint:
    if type(node) is not list or len(node) != 3:
        raise ValueError("a weight has not three hashes")
    _, gradient, after = (None if each is None else _id(each) for each in node)
    return WeightPrint(_id(node[0]), gradient, after)


def _take(node: Any, key: str, kind: type[_Made]) -> _Made:
    value = node.get(key) if isinstance(node, dict) else None
    if type(value) is not kind:
        raise ValueError(f"{key} is missing, or no {kind.__name__}")
    return value


def _list(node: Any, key: str, read: Callable[[Any], _Made]) -> tuple[_Made, ...]:
    return tuple(map(read, _take(node, key, list)))


def _text(value: Any) -> str:
    if type(value) is not str or len(value) > MAX_NAME_BYTES:
        raise ValueError(f"a name is no text of at most {MAX_NAME_BYTES} characters")
    return value


def _number(value: Any) -> int:
    if type(value) is not int or not 0 <= value < _MOST:
        raise ValueError("a number is out of range")
    return value


def _id(value: Any) -> BlobId:
    if type(value) is not str or len(value) != 64:
        raise ValueError("a hash has not 64 hexadecimal digits")
    return BlobId.parse(value)
