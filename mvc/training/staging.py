"""Copies of a training state in buffers that are reused, and the queue in which they wait.

``Slot.fill`` is what a training loop waits for. It calls ``copy_`` once per tensor, into buffers
that already exist, and makes new containers around them, so that later steps change neither the
tensors nor the numbers of the copy. Tensors that share memory share a buffer.

A CUDA tensor is copied on a separate stream into pinned memory. The training's stream waits for
that copy, the host does not: ``Slot.ready`` waits, before the bytes are read.

``Queue`` keeps the order and a bound in bytes. There is always room for two states: one that is
being committed and one that waits.
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
"""When there is no room: wait, replace the version that waits, leave this one out."""

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
            flat = torch.empty(tensor.numel(), dtype=tensor.dtype, pin_memory=pinned)
            buffer = flat.view(tensor.shape)
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


def copied(state: Mapping[str, Any]) -> dict[str, Any]:
    """A state with tensors and containers of its own, which later changes do not reach."""
    slot = Slot()
    slot.fill(state)
    slot.ready()
    return slot.state


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


class Item(Struct, eq=False):
    """A step whose state is staged. ``called_ns``: when ``step`` took it, in ns since 1970.

    ``data`` is its batch, for a lossy pipeline. ``awaited``: the caller waits for its production
    weights. ``origin`` is the version that the training went on from. ``nbytes`` is the room that
    it takes in the queue. ``position`` is that of ``StepNotes``.
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
    """Passes states from the thread that trains to the one that commits."""

    def __init__(self, mode: str, limit: int | None, timeout: float) -> None:
        """``mode``: one of ``MODES``. ``limit``: staged bytes, None for twice the newest state.

        ``timeout``: seconds for which a version that does not go on is waited for.
        """
        self._mode = mode
        self._limit = limit
        self._timeout = timeout
        self._moves = 0  # signs of life of the thread that commits
        self._changed = threading.Condition()
        self._busy: list[Item] = []  # being filled or committed
        self._waiting: deque[Item] = deque()
        self._free: list[Slot] = []
        self._closed = False
        self.dropped = 0
        self.coalesced = 0
        self.peak = 0

    @property
    def held(self) -> int:
        """Bytes that are being filled, wait, or are being committed."""
        return sum(item.nbytes for item in (*self._busy, *self._waiting))

    def reserve(self, item: Item, nbytes: int) -> bool | None:
        """Gives ``item`` room; whether the call had to wait, or None if the item is dropped.

        Raises Busy if no version makes room.
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
            self.peak = max(self.peak, self.held)
            if self._free:
                item.slot = self._free.pop()
            return waited

    def _fits(self, nbytes: int) -> bool:
        held = self.held
        if self._mode == "coalesce" and self._waiting:
            held -= self._waiting[-1].nbytes
        return held + nbytes <= max(self._limit or 0, 2 * nbytes)

    def put(self, item: Item) -> None:
        """Queues a filled item."""
        with self._changed:
            self._busy.remove(item)
            self._waiting.append(item)
            self._changed.notify_all()

    def give_back(self, item: Item) -> None:
        """Frees the room of an item that is durable or has failed."""
        with self._changed:
            self._busy.remove(item)
            self._moves += 1
            if self._closed:
                self._free.clear()
            else:
                self._free.append(item.slot)
            self._changed.notify_all()

    def take(self) -> Item | None:
        """Waits for the oldest item; None once the queue is closed and empty."""
        with self._changed:
            while not self._waiting and not self._closed:
                self._changed.wait()
            if not self._waiting:
                self._free.clear()
                return None
            self._busy.append(self._waiting.popleft())
            return self._busy[-1]

    def moved(self, *_: object) -> None:
        """Notes that the thread that commits goes on."""
        self._moves += 1

    def join(self) -> None:
        """Waits until every item was given back. Raises Busy if they are not."""
        with self._changed:
            self._wait(lambda: not (self._waiting or self._busy), self._changed.wait)

    def finish(self, thread: threading.Thread) -> None:
        """Waits until everything is committed and the thread has ended. Raises Busy."""
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
                    f"{self._shown()} is not stored: its commit has not gone on for "
                    f"{self._timeout:g} s",
                    hint="does the disk answer? 'mvc config recorder.timeout' sets the limit",
                )

    def _shown(self) -> str:
        """The versions that are not durable yet."""
        steps = [item.step for item in (*self._busy, *self._waiting)]
        return "step " + ", ".join(map(str, steps)) if steps else "the recorder's thread"

    def close(self) -> None:
        """No more items will be put; those that wait can still be taken."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
