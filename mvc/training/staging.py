"""Stages training states: copies them into reused buffers, and queues the copies.

Unless the queue is full, a training loop waits only for ``Slot.fill``, which copies each tensor and
builds new containers. So later training steps do not change the copy. Tensors that share memory
share a buffer.

A CUDA tensor is copied into pinned memory on a separate stream. The training's stream waits for the
copy, but the training's thread does not. ``Slot.ready`` waits until the copy is complete. Call it
before the bytes are read.

A second thread takes the copies from a ``Queue`` and commits them. The queue limits the number of
bytes. Two states always fit: the state being committed, and a waiting state.
"""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np
import torch
from msgspec import Struct, field

from mvc.errors import Busy, UnsupportedTensor
from mvc.ids import CommitId
from mvc.state import tensor_spec
from mvc.structure import MAX_DEPTH, part_name
from mvc.system import SLICE, Patience, warn

MODES = ("block", "coalesce", "drop")
"""If the queue is full: wait, replace the newest waiting version, or drop the new version."""

_KeyPath: TypeAlias = tuple[object, ...]
_Leaf: TypeAlias = Callable[[_KeyPath, torch.Tensor], Any]
_PLAIN = {type(None), bool, int, float, complex, str, bytes}
_ORDINARY = {torch.Tensor, torch.nn.Parameter}


def measure(live: Mapping[str, Any]) -> int:
    """The number of bytes of a copy of ``live``. Memory that several tensors share counts once.

    Raises UnsupportedTensor for a tensor without plain bytes (on device meta, sharded, lazy,
    sparse, ...) or a value of an unsupported type.
    """
    sizes: dict[object, int] = {}

    def leaf(keys: _KeyPath, tensor: torch.Tensor) -> None:
        if not _is_ordinary(tensor):
            tensor_spec(tensor, _text(keys))
        sizes[_memory(tensor)] = tensor.numel() * tensor.element_size()

    _walk(live, (), leaf)
    return sum(sizes.values())


class Slot:
    """One staged state. The first ``fill`` allocates the buffers, and later calls reuse them."""

    def __init__(self) -> None:
        self.state: dict[str, Any] = {}
        self._buffers: dict[_KeyPath, torch.Tensor] = {}
        self._used: dict[_KeyPath, torch.Tensor] = {}
        self._streams: dict[torch.device, torch.cuda.Stream] = {}
        self._copies: list[torch.cuda.Event] = []

    @property
    def nbytes(self) -> int:
        return sum(b.numel() * b.element_size() for b in self._buffers.values())

    def fill(self, live: Mapping[str, Any]) -> None:
        """Copies ``live`` to ``state``. Call ``measure`` first, because ``measure`` checks
        ``live``.
        """
        done: dict[object, torch.Tensor] = {}
        self._used = {}

        def leaf(keys: _KeyPath, tensor: torch.Tensor) -> torch.Tensor:
            memory = _memory(tensor)
            if memory not in done:
                done[memory] = self._copy(keys, tensor)
            return done[memory]

        with torch.no_grad():
            self.state = _walk(live, (), leaf)
        self._buffers = self._used
        self._finish_streams()

    def ready(self) -> None:
        """Waits for the copies from CUDA devices."""
        for event in self._copies:
            event.synchronize()
        self._copies.clear()

    def _copy(self, keys: _KeyPath, tensor: torch.Tensor) -> torch.Tensor:
        buffer = self._buffers.get(keys)
        if buffer is None or buffer.dtype != tensor.dtype or buffer.shape != tensor.shape:
            pinned = tensor.device.type == "cuda"
            flat = torch.empty(tensor.numel(), dtype=tensor.dtype, pin_memory=pinned)
            buffer = flat.view(tensor.shape)
        self._used[keys] = buffer
        if tensor.device.type == "cuda":
            with torch.cuda.stream(self._stream(tensor.device)):
                buffer.copy_(tensor, non_blocking=True)
        else:
            buffer.copy_(tensor)
        return buffer

    def _stream(self, device: torch.device) -> torch.cuda.Stream:
        """A stream whose work starts after the work queued so far on the training's stream."""
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


def copied(state: Mapping[str, Any]) -> dict[str, Any]:
    """A deep copy of a state. Later changes of ``state`` do not affect the copy."""
    slot = Slot()
    slot.fill(state)
    slot.ready()
    return slot.state


def _is_ordinary(tensor: torch.Tensor) -> bool:
    if type(tensor) not in _ORDINARY:
        return False
    return not (tensor.is_meta or tensor.is_quantized or tensor.layout is not torch.strided)


def _memory(tensor: torch.Tensor) -> object:
    """A key that is equal for tensors that share the same bytes."""
    if not tensor.numel():
        return id(tensor)
    memory = tensor.data_ptr(), tensor.device, tensor.dtype
    return (*memory, tuple(tensor.shape), tensor.stride(), tensor.is_conj(), tensor.is_neg())


def _walk(value: Any, keys: _KeyPath, leaf: _Leaf) -> Any:
    """``value`` in new containers, with each tensor replaced by the result of ``leaf``."""
    if isinstance(value, torch.Tensor):
        return leaf(keys, value)
    if type(value) in _PLAIN or isinstance(value, np.generic):
        return value
    if type(value) is np.ndarray:
        return value.copy()
    if len(keys) > MAX_DEPTH:
        raise UnsupportedTensor(f"{_text(keys)[:200]} is nested deeper than {MAX_DEPTH} levels")
    if isinstance(value, Mapping):
        pairs = ((key, _walk(item, (*keys, key), leaf)) for key, item in value.items())
        return OrderedDict(pairs) if type(value) is OrderedDict else dict(pairs)
    if type(value) in {list, tuple, torch.Size}:
        items = [_walk(item, (*keys, i), leaf) for i, item in enumerate(value)]
        return items if type(value) is list else tuple(items)
    kind = f"{type(value).__module__}.{type(value).__qualname__}"
    raise UnsupportedTensor(
        f"{_text(keys)} is of type {kind}, which a training state cannot contain",
        hint="use tensors, arrays, dictionaries, lists, tuples, numbers, texts and bytes",
    )


def _text(keys: _KeyPath) -> str:
    return ".".join(part_name(key) for key in keys)


class Item(Struct, eq=False):
    """A step whose state is staged. ``called_ns``: time of the call of ``step``, in ns since 1970.

    ``data``: the batch, for a lossy pipeline. ``awaited``: whether the caller waits for production
    weights. ``origin``: the version from which the training resumed. ``nbytes``: bytes that the
    item uses in the queue. ``position``: the version's position (``StepNotes.begin``).
    """

    step: int
    called_ns: int
    metrics: Mapping[str, float]
    params: Mapping[str, str]
    data: Any
    awaited: bool
    origin: CommitId | None = None
    slot: Slot = field(default_factory=Slot)
    nbytes: int = 0
    position: int = 0


class Queue:
    """Passes states from the training's thread to the writer thread."""

    def __init__(self, mode: str, limit: int | None, timeout: float) -> None:
        """``mode``: one of ``MODES``. ``limit``: maximum of staged bytes; None: twice the newest
        state.

        ``timeout``: how many seconds to wait for a stalled commit.
        """
        self._mode = mode
        self._limit = limit
        self._timeout = timeout
        self._moves = 0  # number of progress reports by the writer thread
        self._changed = threading.Condition()
        self._busy: list[Item] = []  # items being filled or committed
        self._waiting: deque[Item] = deque()
        self._free: list[Slot] = []
        self._closed = False
        self.dropped = 0
        self.coalesced = 0
        self.peak = 0

    @property
    def staged_bytes(self) -> int:
        """Bytes of all items that are being filled, waiting, or being committed."""
        return sum(item.nbytes for item in (*self._busy, *self._waiting))

    def reserve(self, item: Item, nbytes: int) -> bool | None:
        """Reserves ``nbytes`` for ``item``. Returns whether this call had to wait; None if the item
        is dropped.

        Raises Busy if no commit frees enough space within the timeout.
        """
        with self._changed:
            waited = not self._fits(nbytes)
            if waited and self._mode == "drop":
                self.dropped += 1
                return None
            self._wait(lambda: self._fits(nbytes), self._changed.wait)
            if self._mode == "coalesce" and self._waiting:
                self._free.append(self._waiting.pop().slot)
                self.coalesced += 1
            item.nbytes = nbytes
            self._busy.append(item)
            self.peak = max(self.peak, self.staged_bytes)
            if self._free:
                item.slot = self._free.pop()
            return waited

    def _fits(self, nbytes: int) -> bool:
        staged = self.staged_bytes
        if self._mode == "coalesce" and self._waiting:
            staged -= self._waiting[-1].nbytes
        return staged + nbytes <= max(self._limit or 0, 2 * nbytes)

    def put(self, item: Item) -> None:
        """Queues a filled item."""
        with self._changed:
            self._busy.remove(item)
            self._waiting.append(item)
            self._changed.notify_all()

    def release(self, item: Item) -> None:
        """Frees the space of an item that is durable or has failed."""
        with self._changed:
            self._busy.remove(item)
            self._moves += 1
            if self._closed:
                self._free.clear()
            else:
                self._free.append(item.slot)
            self._changed.notify_all()

    def next_item(self) -> Item | None:
        """Waits for the oldest item. Returns None when the queue is closed and empty."""
        with self._changed:
            while not self._waiting and not self._closed:
                self._changed.wait()
            if not self._waiting:
                self._free.clear()
                return None
            self._busy.append(self._waiting.popleft())
            return self._busy[-1]

    def note_progress(self, *_: object) -> None:
        """Resets the timeout of the waiting threads."""
        self._moves += 1

    def join(self) -> None:
        """Waits until every item is released. Raises Busy if commits stall."""
        with self._changed:
            self._wait(lambda: not (self._waiting or self._busy), self._changed.wait)

    def finish(self, thread: threading.Thread) -> None:
        """Closes the queue, and waits until ``thread`` has committed everything.

        Raises Busy if a commit stalls.
        """
        self.close()
        self._wait(lambda: not thread.is_alive(), thread.join)

    def _wait(self, ready: Callable[[], bool], sleep: Callable[[float], object]) -> None:
        patience, moves = Patience(self._timeout, lambda s: warn(self._shown(), s)), self._moves
        while not ready():
            sleep(SLICE)
            if moves != self._moves:
                moves = self._moves
                patience.renew()
            elif not ready() and patience.is_over():
                raise Busy(
                    f"{self._shown()} is not stored: its commit stalled for {self._timeout:g} s",
                    hint="check the disk; 'mvc config recorder.timeout' sets the limit",
                )

    def _shown(self) -> str:
        steps = [item.step for item in (*self._busy, *self._waiting)]
        return "step " + ", ".join(map(str, steps)) if steps else "the recorder's thread"

    def close(self) -> None:
        """Closes the queue. After the waiting items, ``next_item`` returns None."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
