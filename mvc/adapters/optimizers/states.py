"""Finds the states of optimizers, and the weights, in a parsed checkpoint file.

The state of an optimizer is a mapping in the file. torch's ``state_dict`` has the keys ``state``
and ``param_groups``. A ``Recorder``, which commits versions during a training, writes the keys
``state`` and ``groups``. The mapping may be nested in other mappings and lists. The file is
untrusted, so the depth and the number of searched containers are limited.
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
"""Names of values in the state of torch's optimizers that are one number per parameter."""
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
    """A reference to a tensor of the file. ``content``: position of its data in ``file.contents``.

    ``whole``: whether the tensor is the whole content, not a view of a part.
    """

    content: int
    spec: TensorSpec
    whole: bool = True


class Parameter(Struct, frozen=True):
    """The state that an optimizer has for one parameter.

    ``spec``: dtype and shape of the state's tensors. ``members``: maps the name of each tensor,
    such as ``exp_avg``, to the position of its content. ``scalars``: maps names, such as ``step``,
    to numbers.
    """

    spec: TensorSpec
    members: Mapping[str, int]
    scalars: Mapping[str, float]


class ParameterGroup(Struct, frozen=True):
    """Parameters that share hyperparameters (``values``). ``names``: their names, if known."""

    values: Mapping[str, object]
    parameters: tuple[ParameterId, ...]
    names: tuple[str, ...] = ()


class OptimizerState(Struct, frozen=True):
    """The state of an optimizer. ``place``: the keys that lead to its mapping, joined by dots."""

    place: str
    groups: tuple[ParameterGroup, ...]
    parameters: Mapping[ParameterId, Parameter]


WeightKey = tuple[str, str, str]
"""Path of the file, place of the mapping in the file, and name of the weight."""


class Weight(NamedTuple):
    """A tensor outside of optimizers. ``place``: the keys that lead to its mapping or list."""

    path: str
    place: str
    name: str
    ref: TensorRef

    @property
    def key(self) -> WeightKey:
        return self.path, self.place, self.name


class FileState(Struct, frozen=True):
    """The optimizers and weights in a file. ``step``: the recorded number of the step, or None.

    ``weights``: for each mapping or list with weights, a tuple of these weights, in order.
    ``ordered``: whether the file stores mappings in the order of insertion.
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
    """The positions of contents that may be scalars. ``file_state`` needs their bytes."""
    specs = enumerate([content.spec for content in file.contents])
    return [i for i, spec in specs if spec.nbytes <= SCALAR_BYTES and spec.dtype in _NUMBERS]


def parsed_state(path: str, parsed: ParsedFile) -> FileState:
    """Reads the scalars of a file, and returns the result of ``file_state``."""
    skeleton, scalars = parsed.skeleton(), dict[int, bytes]()
    for i in scalar_contents(parsed) if has_optimizer(skeleton) else ():
        out = bytearray(parsed.contents[i].spec.nbytes)
        parsed.read(i, 0, memoryview(out))
        scalars[i] = bytes(out)
    return file_state(path, parsed, skeleton, scalars)


def file_state(
    path: str, file: PlacedFile, skeleton: bytes, scalars: Mapping[int, bytes]
) -> FileState:
    """The optimizers and weights of a file. Empty if the structure of the file cannot be read.

    ``scalars``: maps the positions of ``scalar_contents`` to bytes.
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
    """The optimizers in a nested value, and the weights of all other mappings and lists."""
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
    """The state of one parameter.

    None if ``values`` has no tensors, a view, tensors of different dtypes or shapes, or invalid
    scalars.
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
    """Converts a tensor of one number to this number. Returns any other tensor unchanged.

    Returns a number or text unchanged. Returns None for any other value, and for an integer of more
    than 64 bits.
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
