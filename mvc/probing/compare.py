"""Compares two recorded runs of a model: which layers agree, and where the runs first differ.

A run is one forward pass, and in training mode also a backward pass and an optimizer step. A
record of a run has hashes of the tensors at every layer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import zip_longest
from operator import itemgetter
from typing import TypeAlias

from msgspec import Struct

from mvc.ids import BlobId
from mvc.names import printable
from mvc.probing.summary import PARTS, WHOLE, LayerCall, Summary, TensorPrint
from mvc.state import Distance, distance_of, tensor_bytes
from mvc.text import number

SAME, DIFFERS, ONE_ONLY = "same", "differs", "one run only"
COLUMNS = ("layer", "type", "fwd", "bwd", "inp", "out", "grad_inp", "grad_out", "grad_par")
_FORWARD = ("input", "output")
_OF_WEIGHTS = {"gradient": "gradient", "weights": "before", "step": "after"}
_TEXTS = {
    "inputs": "the inputs of the model",
    "target": "the target",
    "input": "forward pass: the input of {}",
    "output": "forward pass: the output of {}",
    "model output": "forward pass: the output of the model",
    "loss": "forward pass: the loss (the outputs are equal)",
    "grad_output": "backward pass: the gradient of the output of {}",
    "grad_input": "backward pass: the gradient of the input of {}",
    "gradient": "backward pass: the gradient of the parameter {}",
    "weights": "{} before the run",
    "step": "{} after the step (the gradients are equal)",
}
_Pair: TypeAlias = tuple[TensorPrint | BlobId | None, TensorPrint | BlobId | None]


class LayerRow(Struct, frozen=True):
    """One call of a layer. ``forward``, ``backward``: the position of the call in the two passes.

    ``input``, ``output``, ``grad_input``, ``grad_output`` and ``gradient`` (of the layer's own
    parameters, only in its first call) are ``same``, ``differs``, ``one run only``, or empty if
    there are no tensors. ``distances``: maps the names of those that differ to the largest distance
    of the tensors that both runs stored.
    """

    layer: str
    type: str
    call: int
    forward: int
    backward: int | None
    input: str
    output: str
    grad_input: str
    grad_output: str
    gradient: str
    distances: Mapping[str, Distance]

    @property
    def differs(self) -> bool:
        return any(getattr(self, part) not in ("", SAME) for part in (*PARTS, "gradient"))

    def cells(self) -> tuple[str, ...]:
        """The row as texts, one for each of ``COLUMNS``. Texts of tensors contain the distance."""
        call_number = f" #{self.call}" if self.call > 1 else ""
        states = [
            f"{getattr(self, part)} {number(self.distances[part].max_abs)}"
            if part in self.distances
            else getattr(self, part)
            for part in (*PARTS, "gradient")
        ]
        backward = "" if self.backward is None else str(self.backward)
        return self.layer + call_number, self.type, str(self.forward), backward, *states


class FirstDifference(Struct, frozen=True):
    """Where two runs differ first. ``part`` is one of:

    ``inputs``, ``target``, ``weights`` (of the model before the run), ``calls`` (other layers were
    called), ``input`` or ``output`` of a layer, ``model output``, ``loss``, ``grad_output`` or
    ``grad_input`` of a layer, ``gradient`` of a parameter, ``step`` (a weight after the step).
    ``name``: the name of a weight. ``inside``: if the difference arose between layers, the layer
    (or the model) in whose ``forward`` it arose.
    """

    part: str
    text: str
    order: int
    call: LayerCall | None = None
    name: str | None = None
    inside: str | None = None
    distance: Distance | None = None

    @property
    def direction(self) -> str | None:
        """The pass in which the runs differ first: ``forward`` or ``backward``.

        None if they differ in the inputs, in the target, or in a weight before or after the run.
        """
        if self.part in {"calls", "input", "output", "model output", "loss"}:
            return "forward"
        return "backward" if self.part.startswith("grad") else None

    def __str__(self) -> str:
        return self.text


def compare(a: Summary, b: Summary) -> tuple[tuple[LayerRow, ...], FirstDifference | None]:
    """A row for each call in either run, and the earliest difference (None if the runs agree)."""
    gradients = _differing_gradients(a, b)
    rows = (
        *(_row(a, b, call, gradients) for call in a.calls),
        *(_row(b, a, call, gradients) for call in b.calls if call.key not in a.by_key),
    )
    return rows, _first_difference(a, b)


def _row(a: Summary, b: Summary, x: LayerCall, gradients: Mapping[str, bool]) -> LayerRow:
    y = b.by_key.get(x.key)
    own_gradients = [
        differs
        for name, differs in gradients.items()
        if (name.rpartition(".")[0] or WHOLE) == x.layer
    ]
    states, distances = {}, {}
    for part in PARTS:
        left, right = _sorted(x, part), () if y is None else _sorted(y, part)
        states[part] = ONE_ONLY if y is None else _state(left, right)
        distances_ = [d for p, q in zip(left, right, strict=False) if (d := _distance(a, b, p, q))]
        if states[part] == DIFFERS and distances_:
            distances[part] = max(distances_, key=lambda distance: distance.max_abs)
    return LayerRow(
        layer=x.layer,
        type=x.type,
        call=x.call,
        forward=x.forward,
        backward=a.backward.get(x.key),
        **states,
        gradient="" if not own_gradients or x.call > 1 else DIFFERS if any(own_gradients) else SAME,
        distances=distances,
    )


def _sorted(call: LayerCall, part: str) -> Sequence[TensorPrint]:
    """The tensors of a part. Gradients may arrive in any order, so they are sorted by place."""
    prints: Sequence[TensorPrint] = getattr(call, part)
    return sorted(prints, key=lambda p: (p.place, p.at)) if part.startswith("grad") else prints


def _state(left: Sequence[TensorPrint], right: Sequence[TensorPrint]) -> str:
    if not left and not right:
        return ""
    return SAME if _unequal(left, right) is None else DIFFERS


def _unequal(
    left: Sequence[TensorPrint | BlobId], right: Sequence[TensorPrint | BlobId]
) -> _Pair | None:
    """The first pair of tensors or ids that differ, or None."""
    for pair in zip_longest(left, right):
        x, y = ((p.place, p.id) if isinstance(p, TensorPrint) else p for p in pair)
        if x != y:
            return pair
    return None


def _distance(
    a: Summary, b: Summary, p: TensorPrint | BlobId | None, q: TensorPrint | BlobId | None
) -> Distance | None:
    """The distance of two tensors, if their shapes are equal and both were stored."""
    if not (isinstance(p, TensorPrint) and isinstance(q, TensorPrint)):
        return None
    if p.id == q.id or p.shape != q.shape or p.id not in a.tensors or q.id not in b.tensors:
        return None
    x, y = (tensor_bytes(run.tensors[t.id]) for run, t in ((a, p), (b, q)))
    return distance_of(p.dtype, [x], q.dtype, [y])


def _differing_gradients(a: Summary, b: Summary) -> dict[str, bool]:
    """Maps each parameter that has a gradient to whether its gradients differ in the two runs."""
    both = {name: (a.weights.get(name), b.weights.get(name)) for name in (*a.weights, *b.weights)}
    pairs = {n: (x and x.gradient, y and y.gradient) for n, (x, y) in both.items()}
    return {name: x != y for name, (x, y) in pairs.items() if x or y}


class _Moment(Struct, frozen=True):
    """Tensors of a run at one point in time.

    ``part`` and ``key`` identify the same moment in another run. ``values``: the tensors, or the id
    of a weight.
    """

    part: str
    key: tuple[object, ...]
    values: Sequence[TensorPrint | BlobId]
    call: LayerCall | None = None


def _moments(run: Summary) -> list[_Moment]:
    """All moments of a run, in the order of time. Weights and their gradients come last."""
    layers = [
        *((call.began, "input", call) for call in run.calls),
        *((call.ended, "output", call) for call in run.calls),
    ]
    gradients = [
        (print_.at, part, call, number, print_)
        for call in run.calls
        for part in ("grad_output", "grad_input")
        for number, print_ in enumerate(_sorted(call, part))
    ]
    return [
        _Moment("inputs", (), run.inputs),
        _Moment("target", (), run.target),
        *(
            _Moment(part, call.key, getattr(call, part), call)
            for _, part, call in sorted(layers, key=itemgetter(0))
        ),
        _Moment("model output", (), run.output),
        _Moment("loss", (), run.loss),
        *(
            _Moment(part, (*call.key, number), (print_,), call)
            for _, part, call, number, print_ in sorted(gradients, key=itemgetter(0))
        ),
        *(
            _Moment(part, (name,), (value,))
            for part, attribute in _OF_WEIGHTS.items()
            for name, weight in run.weights.items()
            if (value := getattr(weight, attribute)) is not None
        ),
    ]


def _first_difference(a: Summary, b: Summary) -> FirstDifference | None:
    mine, theirs = _moments(a), _moments(b)
    remaining = {(moment.part, moment.key): moment for moment in theirs}
    for order, (x, other) in enumerate(zip_longest(mine, theirs)):
        calls = [m.call if m and m.part in _FORWARD else None for m in (x, other)]
        if any(calls) and (not x or not other or (x.part, x.key) != (other.part, other.key)):
            names = [str(call) if call else "no further layer" for call in calls]
            text = f"forward pass: one run continues with {names[0]}, the other with {names[1]}"
            return FirstDifference("calls", text, order)
        if x is not None:
            y = remaining.pop((x.part, x.key), None)
            if pair := _unequal(x.values, y.values if y else ()):
                return _described(a, b, x, order, pair=pair)
    for y in remaining.values():
        return _described(a, b, y, len(mine), pair=(None, y.values[0]))
    return None


def _described(
    a: Summary, b: Summary, moment: _Moment, order: int, *, pair: _Pair
) -> FirstDifference:
    part, call, inside, why = moment.part, moment.call, None, ""
    if call is None:
        name = str(moment.key[0]) if moment.key else None
        subject = printable(name or "")
    else:
        name, place = None, next(value.place for value in pair if isinstance(value, TensorPrint))
        subject = f"{call}, tensor {printable(place)}" if place not in ("", "0") else str(call)
    if a.only is not None:
        pass  # some layers were not recorded, so it is unknown where the difference arose
    elif part == "input" and call is not None:
        inside = _enclosing(a, call)
        why = f"; the difference arose between layers, in the forward of {inside}"
    elif part == "output" and call is not None:
        if any(call.began < inner.began < call.ended for inner in a.calls):
            why = "; the difference arose in the layer's own forward: the layers inside agree"
    elif part == "model output":
        inside, why = (
            "the model",
            "; the difference arose in the model's own forward: the layers agree",
        )
    elif part == "grad_output":
        why = "; the difference arose after the layer: in the loss or between layers"
    return FirstDifference(
        part,
        _TEXTS[part].format(subject) + why,
        order,
        call=call,
        name=name,
        inside=inside,
        distance=_distance(a, b, *pair),
    )


def _enclosing(run: Summary, call: LayerCall) -> str:
    """The innermost layer whose ``forward`` made the call; without such a layer, the model."""
    outer = [c for c in run.calls if c.began < call.began and call.ended < c.ended]
    return printable(min(outer, key=lambda c: c.ended).layer) if outer else "the model"
