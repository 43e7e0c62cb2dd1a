"""Compares two runs: what agrees at each layer, and what differs first (pure functions)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest

from msgspec import Struct

from mvc.names import printable
from mvc.probing.summary import PARTS, WHOLE, LayerCall, Summary, TensorPrint
from mvc.state import Distance, distance_of, tensor_bytes
from mvc.text import number

SAME, DIFFERS, ONE_ONLY = "same", "differs", "one run only"
COLUMNS = ("layer", "type", "fwd", "bwd", "inp", "out", "grad_inp", "grad_out", "grad_par")
_PHASES = (
    "inputs", "target", "calls", "input", "output", "model output", "loss", "grad_output",
    "grad_input", "gradient", "step", "weights",
)  # fmt: skip


class LayerRow(Struct, frozen=True):
    """One call of a layer: for each part same, differs, or empty if there are no tensors.

    ``gradient`` is of the layer's own parameters. ``distances`` are those of the largest
    ``max_abs`` by part, where the tensors were kept.
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
        """The row as texts, for ``COLUMNS``; how far off a part is stands behind it."""
        again = f" #{self.call}" if self.call > 1 else ""
        states = [
            f"{getattr(self, part)} {number(self.distances[part].max_abs)}"
            if part in self.distances
            else getattr(self, part)
            for part in (*PARTS, "gradient")
        ]
        backward = "" if self.backward is None else str(self.backward)
        return self.layer + again, self.type, str(self.forward), backward, *states


class FirstDifference(Struct, frozen=True):
    """Where two runs differ first. ``part`` says in what:

    ``inputs``, ``target``, ``weights`` (of the model before the run), ``calls`` (other layers
    were called), ``input`` or ``output`` of a layer, ``model output``, ``loss``, ``grad_output``
    or ``grad_input`` of a layer, ``gradient`` of a parameter, ``step`` (a weight after the step).
    ``name`` is a weight's. ``inside`` is the layer or the model in which the difference arose, if
    it arose between layers.
    """

    part: str
    text: str
    order: tuple[int, int]
    call: LayerCall | None = None
    place: str = ""
    name: str | None = None
    inside: str | None = None
    distance: Distance | None = None

    @property
    def direction(self) -> str | None:
        """Forward or backward; None if the runs differ before or after them."""
        if self.part in {"calls", "input", "output", "model output", "loss"}:
            return "forward"
        return "backward" if self.part.startswith("grad") else None

    def __str__(self) -> str:
        return self.text


def compare(a: Summary, b: Summary) -> tuple[tuple[LayerRow, ...], FirstDifference | None]:
    """A row for each call of a layer in either run, and the first difference in time."""
    gradients = _differing_gradients(a, b)
    rows = [_row(a, b, call, gradients) for call in a.calls]
    rows += [_row(b, a, call, gradients) for call in b.calls if call.key not in a.by_key]
    return tuple(rows), next(_differences(a, b), None)


def _row(a: Summary, b: Summary, x: LayerCall, gradients: Mapping[str, bool]) -> LayerRow:
    y = b.by_key.get(x.key)
    own = [
        differs
        for name, differs in gradients.items()
        if (name.rpartition(".")[0] or WHOLE) == x.layer
    ]
    states, distances = {}, {}
    for part in PARTS:
        left, right = _sorted(x, part), () if y is None else _sorted(y, part)
        states[part] = ONE_ONLY if y is None else _state(left, right)
        found = [d for p, q in zip(left, right, strict=False) if (d := _distance(a, b, p, q))]
        if states[part] == DIFFERS and found:
            distances[part] = max(found, key=lambda each: each.max_abs)
    return LayerRow(
        layer=x.layer,
        type=x.type,
        call=x.call,
        forward=x.forward,
        backward=a.backward.get(x.key),
        **states,
        gradient="" if not own or x.call > 1 else DIFFERS if any(own) else SAME,
        distances=distances,
    )


def _sorted(call: LayerCall, part: str) -> Sequence[TensorPrint]:
    """Gradients arrive in an order of their own, so they are compared by place."""
    prints: Sequence[TensorPrint] = getattr(call, part)
    return sorted(prints, key=lambda p: (p.place, p.at)) if part.startswith("grad") else prints


def _state(left: Sequence[TensorPrint], right: Sequence[TensorPrint]) -> str:
    if not left and not right:
        return ""
    return SAME if _unequal(left, right) is None else DIFFERS


def _unequal(
    left: Sequence[TensorPrint], right: Sequence[TensorPrint]
) -> tuple[TensorPrint | None, TensorPrint | None] | None:
    """The first pair of tensors that differ, or None."""
    for p, q in zip_longest(left, right):
        if p is None or q is None or (p.place, p.id) != (q.place, q.id):
            return p, q
    return None


def _distance(
    a: Summary, b: Summary, p: TensorPrint | None, q: TensorPrint | None
) -> Distance | None:
    """How far two tensors are apart, if they have one shape and both were kept."""
    if p is None or q is None or p.id == q.id or p.shape != q.shape:
        return None
    if p.id not in a.kept or q.id not in b.kept:
        return None
    x, y = (tensor_bytes(run.kept[t.id]) for run, t in ((a, p), (b, q)))
    return distance_of(p.dtype, [x], q.dtype, [y])


def _differing_gradients(a: Summary, b: Summary) -> dict[str, bool]:
    """For each parameter with a gradient in either run whether it differs."""
    both = {name: (a.weights.get(name), b.weights.get(name)) for name in (*a.weights, *b.weights)}
    pairs = {n: (x and x.gradient, y and y.gradient) for n, (x, y) in both.items()}
    return {name: x != y for name, (x, y) in pairs.items() if x or y}


def _differences(a: Summary, b: Summary) -> Iterator[FirstDifference]:
    """All differences that can be the first, in the order of time."""
    if _unequal(a.inputs, b.inputs):
        yield _made("inputs", "the inputs of the model")
    if _unequal(a.target, b.target):
        yield _made("target", "the target")
    yield from _forward(a, b)
    if _unequal(a.output, b.output):
        text = "forward pass: the output of the model"
        if a.only is None:
            text += ", which arose in its own forward: the layers agree"
        yield _made("model output", text, inside="the model" if a.only is None else None)
    if _unequal(a.loss, b.loss):
        yield _made("loss", "forward pass: the loss, of equal outputs")
    yield from _backward(a, b)
    for name, differs in _differing_gradients(a, b).items():
        if differs:
            yield _made(
                "gradient", f"backward pass: the gradient of the parameter {printable(name)}",
                name=name,
            )  # fmt: skip
    yield from _weights(a, b)


def _made(
    part: str, text: str, at: int = 0, phase: str | None = None, **more: object
) -> FirstDifference:
    order = _PHASES.index(phase or part), at
    return FirstDifference(part, text, order, **more)  # type: ignore[arg-type]


def _events(run: Summary) -> list[tuple[int, str, LayerCall]]:
    """The beginnings and ends of all calls in the order of time."""
    events = [(call.began, "input", call) for call in run.calls]
    events += [(call.ended, "output", call) for call in run.calls]
    return sorted(events, key=lambda event: event[0])


def _forward(a: Summary, b: Summary) -> Iterator[FirstDifference]:
    for at, (left, right) in enumerate(zip_longest(_events(a), _events(b))):
        if left is None or right is None or (left[1], left[2].key) != (right[1], right[2].key):
            names = [str(each[2]) if each else "no further layer" for each in (left, right)]
            text = f"forward pass: one run goes on with {names[0]}, the other with {names[1]}"
            yield _made("calls", text, at, "input")
            return
        (_, part, x), (_, _, y) = left, right
        pair = _unequal(getattr(x, part), getattr(y, part))
        if pair is None:
            continue
        place = next(p.place for p in pair if p is not None)
        inside = _enclosing(a, x) if part == "input" and a.only is None else None
        text = f"forward pass: the {part} of {x}{_of(place)}"
        if inside is not None:
            text += f", which arose between layers, in the forward of {inside}"
        elif a.only is None and any(x.began < call.began < x.ended for call in a.calls):
            text += ", which arose in its own forward: the layers inside agree"
        found = {"call": x, "place": place, "inside": inside, "distance": _distance(a, b, *pair)}
        yield _made(part, text, at, "input", **found)
        return


def _of(place: str) -> str:
    return f", tensor {printable(place)}" if place not in ("", "0") else ""


def _enclosing(run: Summary, call: LayerCall) -> str:
    """The layer during which a call began, or the model."""
    outer = [c for c in run.calls if c.began < call.began and call.ended < c.ended]
    return printable(min(outer, key=lambda c: c.ended).layer) if outer else "the model"


def _backward(a: Summary, b: Summary) -> Iterator[FirstDifference]:
    """The first gradient, in the order in which those of ``a`` arrived, that differs."""
    found = []
    for call in a.calls:
        other = b.by_key.get(call.key)
        for part in ("grad_output", "grad_input"):
            left, right = _sorted(call, part), () if other is None else _sorted(other, part)
            for pair in zip_longest(left, right):
                if _unequal(pair[:1], pair[1:]) is None:
                    continue
                mine = next(p for p in pair if p is not None)
                found.append((mine.at, part, call, mine.place, pair))
    if not found:
        return
    at, part, call, place, pair = min(found, key=lambda each: each[0])
    text = f"backward pass: the gradient of the {part[5:]} of {call}{_of(place)}"
    if part == "grad_output" and a.only is None:
        text += ", which arose behind the layer: in the loss or between layers"
    distance = _distance(a, b, *pair)
    yield _made(part, text, at, "grad_output", call=call, place=place, distance=distance)


def _weights(a: Summary, b: Summary) -> Iterator[FirstDifference]:
    names = {**a.weights, **b.weights}
    for part, attribute in (("weights", "before"), ("step", "after")):
        for name in names:
            x, y = a.weights.get(name), b.weights.get(name)
            if getattr(x, attribute, None) == getattr(y, attribute, None):
                continue
            when = "before the run" if part == "weights" else "after the step, of equal gradients"
            yield _made(part, f"{printable(name)} {when}", name=name)
