"""Finds, replaces and hashes the tensors inside the nested inputs and outputs of layers."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from mvc.errors import UnsupportedTensor
from mvc.limits import MAX_NAME_BYTES
from mvc.probing.summary import TensorPrint
from mvc.state import blob_id, tensor_bytes, tensor_spec
from mvc.structure import MAX_DEPTH, join, part_name


def tensors_in(value: Any, place: str | None = None, depth: int = 0) -> Iterator[tuple[str, Any]]:
    """Yields (path, tensor) for each tensor in a value. A path is for example ``0.mask``.

    Searches tuples, lists, mappings and dataclasses, down to 100 levels. Yields the indices and the
    values of a sparse COO tensor as two tensors. ``place``: the path of ``value`` itself.
    """
    if isinstance(value, torch.Tensor):
        if value.layout is torch.sparse_coo:
            coalesced = value.detach().coalesce()
            yield join(place, "indices"), coalesced.indices()
            yield join(place, "values"), coalesced.values()
        else:
            yield (place or "")[:MAX_NAME_BYTES], value
        return
    items: Any = ()
    if isinstance(value, Mapping):
        items = [(part_name(key), item) for key, item in value.items()]
    elif isinstance(value, list | tuple):
        items = [(str(i), item) for i, item in enumerate(value)]
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        items = [(f.name, getattr(value, f.name, None)) for f in dataclasses.fields(value)]
    if depth < MAX_DEPTH:
        for name, item in items:
            yield from tensors_in(item, join(place, name), depth + 1)


def mapped(
    value: Any, change: Callable[[torch.Tensor, str], torch.Tensor], place: str | None = None
) -> Any:
    """A copy of ``value`` in which each tensor is replaced by ``change(tensor, path)``.

    Searches only dicts, lists, tuples and named tuples.
    """
    if isinstance(value, torch.Tensor):
        return change(value, place or "")
    if type(value) is dict:
        return {k: mapped(v, change, join(place, part_name(k))) for k, v in value.items()}
    if type(value) in {list, tuple} or (isinstance(value, tuple) and hasattr(value, "_make")):
        items = [mapped(item, change, join(place, str(i))) for i, item in enumerate(value)]
        if type(value) in {list, tuple}:
            return type(value)(items)
        return type(value)._make(items)
    return value


def print_of(tensor: torch.Tensor, place: str, of: str = "") -> TensorPrint:
    """Hashes a tensor. Raises UnsupportedTensor, whose message contains ``of`` (a layer's name)."""
    try:
        spec = tensor_spec(tensor, f"{of}, tensor {place!r}," if place else of or "a tensor")
    except UnsupportedTensor as error:
        problem = error.message.partition(", which")[0]
        raise UnsupportedTensor(f"{problem}, which cannot be compared bit by bit") from error
    id_ = blob_id(spec, tensor_bytes(tensor), parallel=True)
    return TensorPrint(place, spec.dtype, spec.shape, id_, at=0)
