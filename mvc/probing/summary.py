"""The record of one run of a model: hashes of the tensors that go into and out of every layer.

Two records show where two runs begin to differ. A run is a forward pass, in training mode with a
backward pass and an optimizer step. A hash is BLAKE3 over dtype, shape and bytes of a tensor, the
same as the tensor's id in a commit. So 0.0 and -0.0 have different hashes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Annotated, Any, TypeAlias

from msgspec import Meta, Struct, field
from msgspec.structs import replace

from mvc.api import TensorSpec
from mvc.errors import WrongUsage
from mvc.ids import BlobId
from mvc.limits import MAX_NAME_BYTES
from mvc.names import printable

PARTS = ("input", "output", "grad_input", "grad_output")
"""The four groups of tensors of a layer's call, in the order of a table's columns."""

WHOLE = "(model)"
"""The layer name of the model itself, used if the model has no inner layers."""

_MOST_SEED = 1 << 32  # the largest seed of numpy's generator, plus 1
_MOST_THREADS = 1024
_Name: TypeAlias = Annotated[str, Meta(max_length=MAX_NAME_BYTES)]
_Number: TypeAlias = Annotated[int, Meta(ge=0, lt=1 << 53)]


class TensorPrint(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The hash of a tensor inside a recorded value, such as an input or a gradient of a layer.

    ``place``: the path of the tensor inside a tuple, list or mapping, such as ``0.mask``; empty if
    the recorded value is the tensor itself. ``at``: for a gradient, its position among all
    gradients, in the order in which they were recorded; otherwise 0.
    """

    place: _Name
    dtype: str
    shape: tuple[int, ...]
    id: BlobId
    at: _Number

    def __post_init__(self) -> None:
        """Raises DamagedData for an impossible dtype or shape."""
        TensorSpec(self.dtype, self.shape)


class LayerCall(Struct, frozen=True):
    """One call of a layer. ``call``: number of the call among the calls of this layer, from 1.

    ``forward``: position of the call in the order in which calls of all layers returned. ``began``
    and ``ended``: values of a counter when the call began and ended. They show how calls are
    nested.
    """

    layer: _Name
    type: _Name
    call: Annotated[int, Meta(ge=1, lt=1 << 53)]
    forward: _Number
    began: _Number
    ended: _Number
    input: tuple[TensorPrint, ...]
    output: tuple[TensorPrint, ...]
    grad_input: tuple[TensorPrint, ...]
    grad_output: tuple[TensorPrint, ...]

    def __post_init__(self) -> None:
        if self.began >= self.ended:
            raise ValueError("a call of a layer ends before it begins")

    @property
    def key(self) -> tuple[str, int]:
        return self.layer, self.call

    def __str__(self) -> str:
        call_number = f", call {self.call}" if self.call > 1 else ""
        return (
            f"{printable(self.layer)} ({printable(self.type)}, "
            f"forward index {self.forward}{call_number})"
        )


class WeightPrint(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Hashes of a parameter or buffer: before the run, after the run, and of its gradient.

    In evaluation mode, ``after`` is the hash after the forward pass, and ``gradient`` is None.
    """

    before: BlobId
    gradient: BlobId | None
    after: BlobId | None


class Conditions(Struct, frozen=True):
    """The conditions of a run.

    ``seed``: the seed that is set before the run; None if no seed is set. ``threads``: the number
    of torch's threads. ``deterministic``: whether torch uses only deterministic kernels.
    """

    seed: int | None
    threads: int
    deterministic: bool

    def __post_init__(self) -> None:
        for name, value, least, end in (
            ("seed", self.seed, 0, _MOST_SEED),
            ("threads", self.threads, 1, _MOST_THREADS + 1),
        ):
            if value is not None and (type(value) is not int or not least <= value < end):
                raise WrongUsage(f"{name} is {value!r}: it must be from {least} to {end - 1}")
        if type(self.deterministic) is not bool:
            raise WrongUsage(f"deterministic is {self.deterministic!r}: it must be True or False")


class LayerSelection:
    """The layers to record: names with wildcards, forward indices (7) and ranges (7-12).

    If ``patterns`` is None, all layers are recorded.
    """

    def __init__(self, patterns: Iterable[str] | None) -> None:
        self.patterns = None if patterns is None else tuple(patterns)
        self._names: list[str] = []
        self._ranges: list[range] = []
        for pattern in self.patterns or ():
            first, dash, last = pattern.partition("-")
            if first.isdecimal() and (last.isdecimal() if dash else True):
                self._ranges.append(range(int(first), int(last or first) + 1))
            else:
                self._names.append(pattern)

    @property
    def every(self) -> bool:
        return self.patterns is None

    def has(self, layer: str, forward: int | None = None) -> bool:
        """Whether a call of ``layer`` may be selected. ``forward``: the call's forward index; None
        if the index is not known yet.
        """
        numbered = any(forward is None or forward in numbers for numbers in self._ranges)
        named = any(fnmatchcase(layer, pattern) for pattern in self._names)
        return self.every or numbered or named


class Summary(Struct, frozen=True, dict=True):
    """The record of one run. ``calls`` are ordered by forward index.

    ``only``: patterns of the recorded layers, or None for all layers. ``weights``: maps the name of
    each parameter and buffer to its hashes. ``tensors``: maps hashes to the recorded tensors; empty
    unless layers were selected.
    """

    training: bool
    conditions: Conditions
    environment: Mapping[_Name, _Name]
    only: tuple[_Name, ...] | None
    inputs: tuple[TensorPrint, ...]
    target: tuple[TensorPrint, ...]
    calls: tuple[LayerCall, ...]
    output: tuple[TensorPrint, ...]
    loss: tuple[TensorPrint, ...]
    weights: Mapping[_Name, WeightPrint]
    tensors: Mapping[BlobId, Any] = field(default_factory=dict)

    @cached_property
    def by_key(self) -> Mapping[tuple[str, int], LayerCall]:
        return {call.key: call for call in self.calls}

    @cached_property
    def backward(self) -> Mapping[tuple[str, int], int]:
        """The position of each call in the order in which gradients reached the calls' outputs.

        Leaves out calls without gradients.
        """
        firsts = [
            (min(p.at for p in call.grad_output or call.grad_input), call.key)
            for call in self.calls
            if call.grad_output or call.grad_input
        ]
        return {key: index for index, (_, key) in enumerate(sorted(firsts))}

    def __repr__(self) -> str:
        mode = "training" if self.training else "evaluation"
        return f"<Summary of a run in {mode} mode: {len(self.calls):,} calls of layers>"

    def selected(self, selection: LayerSelection) -> Summary:
        calls = tuple(c for c in self.calls if selection.has(c.layer, c.forward))
        return replace(self, calls=calls, only=selection.patterns)
