"""Optimizers and mappings of weights in a file, found in its structure.

An optimizer is a mapping with ``state`` and ``param_groups``, as torch's ``state_dict`` returns, or
with ``state`` and ``groups`` of names, as a ``Recorder`` (which commits versions during a training)
stores. An optimizer may be anywhere in a file. The file is untrusted.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from msgspec import Struct

from mvc.adapters.parsed import ParsedFile, PlacedFile
from mvc.adapters.python.arrays import make_array
from mvc.adapters.python.state import nested_state
from mvc.errors import BadModelFile, DamagedData
from mvc.model.tensor import TensorSpec

SCALARS = frozenset({"step"})
"""State of torch's optimizers that is one number per parameter."""
SCALAR_BYTES = 8
_MARK = b"groups"
_MAX_DEPTH = 8
_MAX_VISITS = 1_000_000
_MAX_LIST = 16
_BITS = 64
_NUMBERS = {"float64", "float32", "float16", "bfloat16", "int64", "int32", "uint8", "bool"}

Number = float | int | bool | str | None
ParameterId = int | str


class TensorRef(Struct, frozen=True):
    """A reference to a tensor of the file. ``content``: the index of its stored bytes in the file.

    ``whole``: whether the tensor fills this content, so that it is not a view.
    """

    content: int
    spec: TensorSpec
    whole: bool = True


class Parameter(Struct, frozen=True):
    """The state of one parameter.

    ``spec``: dtype and shape of the parameter. ``members``: maps names to tensors of the
    parameter's shape. ``scalars``: maps names to numbers.
    """

    spec: TensorSpec
    members: Mapping[str, int]
    scalars: Mapping[str, float]


class ParameterGroup(Struct, frozen=True):
    """Parameters that share hyperparameters. ``names``: their names in the model, if known."""

    values: Mapping[str, object]
    parameters: tuple[ParameterId, ...]
    names: tuple[str, ...] = ()


class OptimizerState(Struct, frozen=True):
    """An optimizer in a file. ``place``: the path of its mapping in the file."""

    place: str
    groups: tuple[ParameterGroup, ...]
    parameters: Mapping[ParameterId, Parameter]


WeightKey = tuple[str, str, str]
"""File, path of the mapping in the file, and name of the weights."""


class Weight(NamedTuple):
    """A tensor outside of optimizers. ``place``: the path of the mapping or list that has the
    tensor.
    """

    path: str
    place: str
    name: str
    ref: TensorRef

    @property
    def key(self) -> WeightKey:
        return self.path, self.place, self.name


class FileState(Struct, frozen=True):
    """The optimizers and weights in a file of a version. ``step``: its step number, if recorded.

    ``weights``: for each mapping or list with weights, a tuple of these weights, in order.
    ``ordered``: whether the file has the insertion order of mappings.
    """

    path: str
    optimizers: tuple[OptimizerState, ...] = ()
    weights: tuple[tuple[Weight, ...], ...] = ()
    step: int | None = None
    ordered: bool = True


def has_optimizer(skeleton: bytes) -> bool:
    """Whether a file with this skeleton may contain an optimizer's state."""
    return _MARK in skeleton


def scalar_contents(file: PlacedFile) -> list[int]:
    """The contents (stored parts of a file) that may be scalars.

    ``file_state`` needs their bytes.
    """
    specs = enumerate([content.spec for content in file.contents])
    return [i for i, spec in specs if spec.nbytes <= SCALAR_BYTES and spec.dtype in _NUMBERS]


def parsed_state(path: str, parsed: ParsedFile) -> FileState:
    """The result of ``file_state`` for a file whose contents can be read."""
    skeleton, scalars = parsed.skeleton(), dict[int, bytes]()
    for i in scalar_contents(parsed) if has_optimizer(skeleton) else ():
        out = bytearray(parsed.contents[i].spec.nbytes)
        parsed.read(i, 0, memoryview(out))
        scalars[i] = bytes(out)
    return file_state(path, parsed, skeleton, scalars)


def file_state(
    path: str, file: PlacedFile, skeleton: bytes, scalars: Mapping[int, bytes]
) -> FileState:
    """The optimizers and weights of a file. Empty if its structure cannot be read.

    ``scalars``: maps contents to bytes.
    """
    if file.format == "safetensors":
        weights = tuple(Weight(path, "", t.key, _ref(t)) for t in file.tensors)
        return FileState(path, weights=(weights,) if weights else (), ordered=False)
    refs = {tensor.key: _ref(tensor) for tensor in file.tensors}
    try:
        value, _ = nested_state(file, skeleton, lambda _tag, key: refs[key])
    except (BadModelFile, DamagedData):
        return FileState(path)
    optimizers, weight_lists = _search(path, value, scalars)
    step = value.get("step") if isinstance(value, Mapping) and "schema" in value else None
    return FileState(
        path, tuple(optimizers), tuple(weight_lists), step if type(step) is int else None
    )


def _ref(tensor: Any) -> TensorRef:
    return TensorRef(tensor.content, tensor.spec, tensor.view is None)


def _search(
    path: str, value: Any, scalars: Mapping[int, bytes]
) -> tuple[list[OptimizerState], list[tuple[Weight, ...]]]:
    """The optimizers in a nested value, and for each other container its weights."""
    optimizers, weights = list[OptimizerState](), list[tuple[Weight, ...]]()
    waiting, seen = [("", value, 0)], set[int]()
    while waiting and len(seen) <= _MAX_VISITS:
        place, value, depth = waiting.pop()
        if not isinstance(value, Mapping | list | tuple) or id(value) in seen:
            continue
        seen.add(id(value))
        if (
            isinstance(value, Mapping)
            and (optimizer := _optimizer(place, value, scalars)) is not None
        ):
            optimizers.append(optimizer)
            continue
        items = list(value.items() if isinstance(value, Mapping) else enumerate(value))
        refs = {str(key): x for key, x in items if isinstance(x, TensorRef) and x.whole}
        if refs:
            weights.append(tuple(Weight(path, place, name, ref) for name, ref in refs.items()))
        if depth < _MAX_DEPTH:
            prefix = f"{place}." if place else ""
            waiting += [
                (f"{prefix}{key}", inner, depth + 1)
                for key, inner in reversed(items)
                if isinstance(inner, Mapping | list | tuple)
            ]
    return optimizers, weights


def _optimizer(
    place: str, value: Mapping[Any, Any], scalars: Mapping[int, bytes]
) -> OptimizerState | None:
    state, listed = value.get("state"), value.get("param_groups")
    named = listed is None
    listed = value.get("groups") if named else listed
    if not isinstance(state, Mapping) or not isinstance(listed, list):
        return None
    groups = tuple(_groups(listed, scalars, named=named))
    if len(groups) != len(listed):
        return None
    states = {key: state.get(key) for group in groups for key in group.parameters}
    parameters = {key: _parameter(values, scalars) for key, values in states.items()}
    return OptimizerState(place, groups, {k: p for k, p in parameters.items() if p is not None})


def _parameter(values: Any, scalars: Mapping[int, bytes]) -> Parameter | None:
    """The state of one parameter from its mapping.

    None if it has no tensors, tensors of different shapes, or invalid scalars.
    """
    if not isinstance(values, Mapping):
        return None
    refs = {k: v for k, v in values.items() if isinstance(k, str) and isinstance(v, TensorRef)}
    members = {k: v for k, v in refs.items() if k not in SCALARS}
    specs = {ref.spec for ref in members.values()}
    if len(specs) != 1 or not all(ref.whole for ref in members.values()):
        return None
    numbers = {k: scalar(v, scalars) for k, v in values.items() if k in SCALARS}
    known = {k: float(v) for k, v in numbers.items() if isinstance(v, float | int)}
    if len(known) < len(numbers):
        return None
    return Parameter(specs.pop(), {k: ref.content for k, ref in members.items()}, known)


def _groups(
    listed: Sequence[Any], scalars: Mapping[int, bytes], *, named: bool
) -> Iterator[ParameterGroup]:
    """Yields the groups of an optimizer. Ends at the first invalid group."""
    for group in listed:
        if not isinstance(group, Mapping):
            return
        ids = group.get("names" if named else "params")
        values = group.get("values") if named else group
        if not isinstance(ids, list) or not isinstance(values, Mapping):
            return
        if not all(type(id_) in {int, str} for id_ in ids):
            return
        names = group.get("param_names", ids)  # DTensor's helpers use names as ids
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            names = []
        known = tuple(names) if len(names) == len(ids) else ()
        yield ParameterGroup(dict(_values(values, scalars)), tuple(ids), known)


def _values(values: Mapping[Any, Any], scalars: Mapping[int, bytes]) -> Iterator[tuple[str, Any]]:
    """Yields the hyperparameters that are numbers, texts, or short lists of numbers."""
    for key, value in values.items():
        if not isinstance(key, str) or key in {"params", "param_names"}:
            continue
        if isinstance(value, list | tuple):
            numbers = [scalar(item, scalars) for item in value[:_MAX_LIST]]
            if len(numbers) == len(value) and all(isinstance(n, float | int) for n in numbers):
                yield key, tuple(numbers)
        elif not isinstance(number := scalar(value, scalars), TensorRef):
            yield key, number


def scalar(value: Any, scalars: Mapping[int, bytes]) -> Number | TensorRef:
    """A plain value is returned unchanged. A tensor of one number becomes this number.

    Any other tensor is returned unchanged.
    """
    if isinstance(value, TensorRef):
        number = _number(value, scalars)
        return value if number is None else number
    if isinstance(value, int) and value.bit_length() > _BITS:
        return None
    return value if isinstance(value, float | int | str) else None


def _number(ref: TensorRef, scalars: Mapping[int, bytes]) -> float | int | None:
    data = scalars.get(ref.content)
    if data is None or not ref.whole or ref.spec.elements != 1 or ref.spec.dtype not in _NUMBERS:
        return None
    number: float | int = make_array(ref.spec, memoryview(data)).item()
    return number


def whole_number(number: float | None) -> int | None:
    """A number of steps as an integer; None if the number is invalid."""
    if number is None or not math.isfinite(number) or number != int(number):
        return None
    return int(number)
