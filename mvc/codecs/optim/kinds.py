"""Lists the formulas that may predict a step of an optimizer of ``torch.optim``.

A step changes a parameter and its optimizer states, which are called *members* here. A *rule* is a
formula that computes the new value of a member from its old value and from other members (the
*inputs*). A *candidate* is a rule with the names of its inputs and with its constants, such as the
learning rate. These constants have the precision that torch uses: float64, or float32 if ``lr`` or
the step is a tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np
from msgspec import Struct

Input = tuple[bool, str]
"""An input of a rule: (whether its value before the step is used, name of the member)."""

_M, _V, _X = "exp_avg", "exp_avg_sq", "max_exp_avg_sq"
_S, _B, _W = "square_avg", "momentum_buffer", "param"

ORDER = (_M, _V, _S, _X, _B, _W)
"""The names of members, in an order in which each member comes after its inputs."""

_STEP = "step"


class RuleCandidate(Struct, frozen=True):
    """A rule that may have computed ``member``. ``numbers``: the constants in the formula."""

    member: str
    rule: str
    inputs: tuple[Input, ...]
    numbers: tuple[float, ...]


class _GroupNumbers:
    """The hyperparameters of a parameter group, and its step number.

    ``tensor``: whether ``lr`` is a float32 tensor. ``capturable``: whether the step is a float32
    tensor.
    """

    def __init__(self, values: Mapping[str, object], *, tensor: bool, capturable: bool) -> None:
        self._values, self._tensor, self._capturable = values, tensor, capturable

    def number(self, name: str, index: int | None = None) -> float:
        """The number ``name``. Raises KeyError if there is no such number."""
        value = self._values.get(name)
        if index is not None and isinstance(value, (tuple, list)) and len(value) > index:
            value = value[index]
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise KeyError(name)
        return float(value)

    def flag(self, name: str) -> bool | None:
        """Whether a flag is True; None if the group does not have the flag."""
        return None if name not in self._values else self._values[name] is True

    @property
    def lr(self) -> Any:
        lr = self.number("lr")
        return np.float32(lr) if self._tensor else lr

    @property
    def step(self) -> Any:
        step = self.number("step")
        return np.float32(step) if self._capturable else step

    def lefts(self, beta: float) -> list[Any]:
        """The possible values of 1 - beta^step: machines may round beta^step differently."""
        power = beta**self.step
        if not self._capturable:
            return [1 - power]
        return [
            1 - p for p in (power, np.nextafter(power, power * 0), np.nextafter(power, power * 2))
        ]


Numbered = tuple[str, str, Sequence[Input], Sequence[Any]]
"""Member, rule, inputs, constants of the rule."""


def _new(*names: str) -> tuple[Input, ...]:
    return tuple((False, name) for name in names)


def _both(name: str) -> tuple[Input, ...]:
    return ((False, name), (True, name))


def _moments(values: _GroupNumbers) -> Iterator[Numbered]:
    h, b = values.number("betas", 0), values.number("betas", 1)
    yield _M, "decay.2", (), (1 - h,)
    yield _M, "decay.1", (), (h,)
    for rule in ("square.1", "square.2", "square.3"):
        yield _V, rule, _both(_M), (b, 1 - b, 1 - h)
    yield _V, "square.4", _both(_M), (b, 1 - b, h, 1 - h)
    yield _V, "square.5", _both(_M), (b, 1 - h)


def _shrinking(values: _GroupNumbers) -> Iterator[tuple[str, Any]]:
    """Yields (suffix of the rule's name, constant) for each form of decoupled weight decay."""
    decay, decoupled = values.number("weight_decay"), values.flag("decoupled_weight_decay")
    if decoupled is not True or not decay:
        yield "", 1.0
    if decoupled is not False and decay:
        yield "", 1 - values.lr * decay
        yield "f", values.lr * decay


def _adam(values: _GroupNumbers) -> Iterator[Numbered]:
    yield from _moments(values)
    amsgrad = values.flag("amsgrad")
    if amsgrad:
        yield _X, "greater", _new(_V), ()
    inputs = _new(_M, _X if amsgrad else _V)
    b1, b2, e = values.number("betas", 0), values.number("betas", 1), values.number("eps")
    for first, second in product(values.lefts(b1), values.lefts(b2)):
        # Python and torch may round the root differently.
        root = second**0.5 if isinstance(second, float) else np.sqrt(second)
        size = values.lr / first
        for suffix, d in _shrinking(values):
            for name, b in (("1", root), ("2", root), ("3", 1 / root), ("4", root)):
                yield _W, f"adam.{name}{suffix}", inputs, (d, size, b, e)
            yield _W, f"adam.5{suffix}", inputs, (d, root * size, e / size)


def _sgd(values: _GroupNumbers) -> Iterator[Numbered]:
    lr, u, q = values.lr, values.number("momentum"), 1 - values.number("dampening")
    yield _B, "decay.1", (), (u,)
    if not values.flag("nesterov"):
        for rule in ("momentum.1", "momentum.2"):
            yield _W, rule, _new(_B), (lr,)
        return
    for rule in ("nesterov.1", "nesterov.2"):
        yield _W, rule, _both(_B), (lr, u, q)


def _rmsprop(values: _GroupNumbers) -> Iterator[Numbered]:
    lr, e, b, u = (values.number(name) for name in ("lr", "eps", "alpha", "momentum"))
    yield _S, "decay.1", (), (b,)
    yield _B, "pushed.1", _both(_S), (u, e, b, 1 - b)
    if u > 0:
        for rule in ("momentum.1", "momentum.2"):
            yield _W, rule, _new(_B), (lr,)
    else:
        for rule in ("root.1", "root.2"):
            yield _W, rule, _both(_S), (lr, e, b, 1 - b)


class _Optimizer(Struct, frozen=True):
    """An optimizer. ``states``: names of the states that each parameter has.

    ``may``: names of states that a parameter can have. ``values``: names of hyperparameters.
    """

    states: str
    values: str
    candidates: Callable[[_GroupNumbers], Iterator[Numbered]]
    may: str = ""


KINDS = {
    "adam": _Optimizer(f"{_M} {_V}", "betas eps amsgrad", _adam, may=_X),
    "rmsprop": _Optimizer(_S, "alpha eps centered momentum", _rmsprop, may=_B),
    "sgd": _Optimizer(_B, "momentum dampening", _sgd),
}


def kinds_of(state_names: Collection[str], group: Mapping[str, object]) -> tuple[str, ...]:
    """The names of the optimizers that have these states, and whose hyperparameters ``group`` has.

    The optimizer with the most hyperparameters is first.
    """
    names = frozenset(state_names) - {_STEP}
    matches = []
    for name, kind in KINDS.items():
        has, keys = frozenset(kind.states.split()), frozenset(kind.values.split())
        if has <= names <= has | set(kind.may.split()) and keys <= group.keys():
            matches.append((len(keys), name))
    return tuple(name for _, name in sorted(matches, reverse=True))


def candidates(
    kinds: Sequence[str], groups: Sequence[Mapping[str, object]], dtype: str
) -> Iterator[RuleCandidate]:
    """The candidates of the optimizers ``kinds``.

    ``groups``: the hyperparameters after the step, then those before the step. All candidates use
    the step number after the step.
    """
    moved = {_STEP: groups[0][_STEP]} if groups and _STEP in groups[0] else {}
    for kind in (KINDS[name] for name in kinds if name in KINDS):
        for group in groups:
            for tensor, capturable in _forms(group):
                values = _GroupNumbers({**group, **moved}, tensor=tensor, capturable=capturable)
                yield from _readable(kind, values, dtype)


def _forms(group: Mapping[str, object]) -> Iterator[tuple[bool, bool]]:
    """Yields (whether ``lr`` is a tensor, whether the step is a tensor) for all possible cases.

    If float32 cannot represent ``lr`` exactly, ``lr`` is no tensor. Fused kernels of GPUs compute
    as if ``lr`` and the step were tensors.
    """
    lr, fused = group.get("lr"), group.get("fused") is True
    with np.errstate(all="ignore"):
        single = isinstance(lr, float) and float(np.float32(lr)) == lr
    for tensor in (False, True) if single or fused else (False,):
        yield tensor, False
        if fused or group.get("capturable") is True:
            yield tensor, True


def _readable(kind: _Optimizer, values: _GroupNumbers, dtype: str) -> Iterator[RuleCandidate]:
    """Yields candidates. Stops if a hyperparameter is missing or is no number."""
    try:
        with np.errstate(all="ignore"):
            for member, rule, inputs, numbers in kind.candidates(values):
                wide = dtype == "float64"
                written = tuple(float(n) if wide else _shortest(n) for n in numbers)
                if np.isfinite(written).all():
                    yield RuleCandidate(member, rule, tuple(inputs), written)
    except (KeyError, ArithmeticError, ValueError, TypeError):
        return


def _shortest(value: Any) -> float:
    """The number with the fewest digits that rounds to the same float32 as ``value``."""
    single = np.float32(value)
    short = float(str(single))
    return short if np.float32(short) == single else float(single)
