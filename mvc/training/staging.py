"""Copies of a training state in buffers that are reused.

``Slot.fill`` is what a training loop waits for. It calls ``copy_`` once per tensor, into buffers
that already exist, and makes new containers around them, so that later steps change neither the
tensors nor the numbers of the copy. Tensors that share memory share a buffer.

A CUDA tensor is copied on a separate stream into pinned memory. The training's stream waits for
that copy, the host does not: ``Slot.ready`` waits, before the bytes are read.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np
import torch

from mvc.adapters.python.arrays import tensor_spec
from mvc.adapters.structure import MAX_DEPTH, part_name
from mvc.errors import UnsupportedTensor

__all__ = ["Slot", "measure"]

_Place: TypeAlias = tuple[object, ...]
_Leaf: TypeAlias = Callable[[_Place, torch.Tensor], Any]
_PLAIN = {type(None), bool, int, float, complex, str, bytes}
_ORDINARY = {torch.Tensor, torch.nn.Parameter}


def measure(live: Mapping[str, Any]) -> int:
    """Bytes that a copy takes; memory that several names share counts once.

    Raises UnsupportedTensor naming a tensor without plain bytes (on device meta, sharded, lazy,
    sparse, ...) or a value that no state can hold.
    """
    sizes: dict[object, int] = {}

    def leaf(place: _Place, tensor: torch.Tensor) -> None:
        if not _is_ordinary(tensor):
            tensor_spec(tensor, _text(place))
        sizes[_memory(tensor)] = tensor.numel() * tensor.element_size()

    _walk(live, (), leaf)
    return sum(sizes.values())


class Slot:
    """One staged state; the first ``fill`` allocates its buffers, later ones reuse them."""

    def __init__(self) -> None:
        self.state: dict[str, Any] = {}
        self._buffers: dict[_Place, torch.Tensor] = {}
        self._used: dict[_Place, torch.Tensor] = {}
        self._streams: dict[torch.device, torch.cuda.Stream] = {}
        self._copies: list[torch.cuda.Event] = []

    @property
    def nbytes(self) -> int:
        """Bytes of the buffers."""
        return sum(b.numel() * b.element_size() for b in self._buffers.values())

    def fill(self, live: Mapping[str, Any]) -> None:
        """Copies ``live``, which ``measure`` has accepted, to ``state``."""
        done: dict[object, torch.Tensor] = {}
        self._used = {}

        def leaf(place: _Place, tensor: torch.Tensor) -> torch.Tensor:
            memory = _memory(tensor)
            if memory not in done:
                done[memory] = self._copy(place, tensor)
            return done[memory]

        with torch.no_grad():
            self.state = _walk(live, (), leaf)
        self._buffers = self._used
        self._finish_streams()

    def ready(self) -> None:
        """Waits until the copies from CUDA devices are complete."""
        for event in self._copies:
            event.synchronize()
        self._copies.clear()

    def _copy(self, place: _Place, tensor: torch.Tensor) -> torch.Tensor:
        buffer = self._buffers.get(place)
        if buffer is None or buffer.dtype != tensor.dtype or buffer.shape != tensor.shape:
            pinned = tensor.device.type == "cuda"
            buffer = torch.empty(tuple(tensor.shape), dtype=tensor.dtype, pin_memory=pinned)
        self._used[place] = buffer
        if tensor.device.type == "cuda":
            with torch.cuda.stream(self._stream(tensor.device)):
                buffer.copy_(tensor, non_blocking=True)
        else:
            buffer.copy_(tensor)
        return buffer

    def _stream(self, device: torch.device) -> torch.cuda.Stream:
        """A stream whose work starts after what the training's stream has queued so far."""
        if device not in self._streams:
            self._streams[device] = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
            self._streams[device].wait_stream(torch.cuda.current_stream(device))
        return self._streams[device]

    def _finish_streams(self) -> None:
        for device, stream in self._streams.items():
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            event.record(stream)
            torch.cuda.current_stream(device).wait_event(event)
            self._copies.append(event)
        self._streams.clear()


def _is_ordinary(tensor: torch.Tensor) -> bool:
    if type(tensor) not in _ORDINARY:
        return False
    return not (tensor.is_meta or tensor.is_quantized or tensor.layout is not torch.strided)


def _memory(tensor: torch.Tensor) -> object:
    """A key that is equal for tensors over the same bytes."""
    if not tensor.numel():
        return id(tensor)
    where = tensor.data_ptr(), tensor.device, tensor.dtype
    return (*where, tuple(tensor.shape), tensor.stride(), tensor.is_conj(), tensor.is_neg())


def _walk(value: Any, place: _Place, leaf: _Leaf) -> Any:
    """``value`` in new containers, each tensor replaced by what ``leaf`` returns for it."""
    if isinstance(value, torch.Tensor):
        return leaf(place, value)
    if type(value) in _PLAIN or isinstance(value, np.generic):
        return value
    if type(value) is np.ndarray:
        return value.copy()
    if len(place) > MAX_DEPTH:
        raise UnsupportedTensor(f"{_text(place)[:200]} is nested deeper than {MAX_DEPTH} levels")
    if isinstance(value, Mapping):
        pairs = ((key, _walk(item, (*place, key), leaf)) for key, item in value.items())
        return OrderedDict(pairs) if type(value) is OrderedDict else dict(pairs)
    if type(value) in {list, tuple, torch.Size}:
        items = [_walk(item, (*place, i), leaf) for i, item in enumerate(value)]
        return items if type(value) is list else tuple(items)
    kind = f"{type(value).__module__}.{type(value).__qualname__}"
    raise UnsupportedTensor(
        f"{_text(place)} is of type {kind}, which a training state cannot hold",
        hint="keep tensors, arrays, dictionaries, lists, tuples, numbers, texts and bytes",
    )


def _text(place: _Place) -> str:
    return ".".join(part_name(key) for key in place)
