"""Which rule a step followed, found on a sample of every member."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from mvc.codecs.floats import Numbers, flushes
from mvc.codecs.optim.prediction import Prediction
from mvc.codecs.optim.rules import RULES

Input = tuple[bool, str]
"""Whether it is of the older version, and the member's name."""

_DTYPES = {"float32": np.float32, "float64": np.float64}


class Chosen(Struct, frozen=True):
    """How a member is predicted; ``exact``: the share of the sample that is right to the bit.

    ``base`` is the member as it was in the older version, or, where it was not there before the
    optimizer's first step, another member of the new one.
    """

    prediction: Prediction
    base: Input
    inputs: tuple[Input, ...]
    exact: float


class Candidate(Struct, frozen=True):
    """A rule that may have made a member, with its inputs and numbers."""

    member: str
    rule: str
    base: Input
    inputs: tuple[Input, ...]
    numbers: tuple[float, ...]


def kinds_of(state_names: Collection[str], group: Mapping[str, object]) -> tuple[str, ...]:
    """The optimizers of ``torch.optim`` whose states have these names: the first fits best.

    ``group``: the values of the parameter group. Empty if there is none.
    """
    names = frozenset(state_names) - {"step", "mu_product"}
    found = [k for k in KINDS if k.needs <= names <= k.needs | k.may and k.keys <= group.keys()]
    found.sort(key=lambda k: len(k.keys), reverse=True)
    return tuple(k.name for k in found)


def choose_predictions(
    kinds: Sequence[str],
    hypers: Sequence[Mapping[str, object]],
    old: Mapping[str, NDArray[Any]],
    new: Mapping[str, NDArray[Any]],
) -> dict[str, Chosen]:
    """By member the rule that predicts it best; members that no rule predicts are absent.

    ``old`` and ``new``: the same sample of every member, "param" and those that torch's state
    names. ``hypers``: values of the parameter group, with ``step``, of the new state and then of
    the older one, because a scheduler may have changed them between.
    """
    dtype = str(new["param"].dtype) if "param" in new else ""
    if dtype not in _DTYPES or flushes():
        return {}
    found: dict[str, Chosen] = {}
    best: dict[str, float] = {}
    for candidate in dict.fromkeys(_candidates(kinds, hypers, dtype)):
        got = found.get(candidate.member)
        if got is None or got.exact < 1:
            arrays = _arrays(candidate, old, new)
            if arrays is not None:
                cost, chosen = _tried(candidate, dtype, arrays)
                if cost < best.get(candidate.member, np.inf):
                    best[candidate.member], found[candidate.member] = cost, chosen
    return found


def _arrays(
    candidate: Candidate, old: Mapping[str, NDArray[Any]], new: Mapping[str, NDArray[Any]]
) -> list[Numbers] | None:
    """The member as it is now, its base and its inputs; None unless all are there and fit."""
    places = [(False, candidate.member), candidate.base, *candidate.inputs]
    arrays = [(old if older else new).get(name) for older, name in places]
    whole = [a.ravel() for a in arrays if a is not None]
    fit = {(a.dtype, a.size) for a in whole}
    return whole if len(whole) == len(arrays) and len(fit) == 1 else None


def _tried(candidate: Candidate, dtype: str, arrays: list[Numbers]) -> tuple[float, Chosen]:
    """What the residual costs, in bits of an element, and the choice."""
    prediction = Prediction(candidate.rule, dtype, candidate.numbers)
    wanted, base, *inputs = (np.ascontiguousarray(a).view(np.uint8).data for a in arrays)
    signs = memoryview(prediction.signs(base, inputs, wanted)) if prediction.signed else None
    out = bytearray(len(wanted))
    prediction.fill(base, inputs, memoryview(out), signs)
    word = f"<i{prediction.width}"
    apart = np.frombuffer(wanted, word) - np.frombuffer(out, word)
    wrong = np.count_nonzero(apart)
    size = max(apart.size, 1)
    cost = float(np.log2(1 + np.abs(apart.astype(np.float64))).sum() + wrong) / size
    exact = 1 - int(wrong) / size
    return cost, Chosen(prediction, candidate.base, candidate.inputs, exact)


Values = Callable[[str], float]


class _Hyper:
    """Values of a parameter group as numbers, in the precision in which a kernel computes."""

    def __init__(self, values: Mapping[str, object], number: type[np.floating[Any]]) -> None:
        self._values, self._number = values, number

    def __call__(self, name: str, index: int = 0) -> Any:
        """The number ``name``; KeyError where there is none."""
        value = self._values.get(name)
        if name == "betas" and isinstance(value, (tuple, list)) and len(value) == 2:
            value = value[index]
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise KeyError(name)
        return self._number(value)

    def flag(self, name: str) -> bool:
        return bool(self._values.get(name))


Numbered = tuple[str, str, tuple[Input, ...], tuple[Any, ...]]
"""Member, rule, inputs, numbers."""

M, V, X, B = "exp_avg", "exp_avg_sq", "max_exp_avg_sq", "momentum_buffer"


def _adam(hyper: _Hyper) -> Iterator[Numbered]:
    lr, eps, decay = hyper("lr"), hyper("eps"), hyper("weight_decay")
    b1, b2, step = hyper("betas", 0), hyper("betas", 1), hyper("step")
    yield M, "decay.2", (), (1 - b1,)
    yield M, "decay.1", (), (b1,)
    for rule in ("square.1", "square.2", "square.3"):
        yield V, rule, ((False, M), (True, M)), (b2, 1 - b2, 1 - b1)
    if hyper.flag("amsgrad"):
        yield X, "greater", ((False, V),), ()
    inputs = ((False, M), (False, X if hyper.flag("amsgrad") else V))
    size, root = lr / (1 - b1**step), (1 - b2**step) ** 0.5
    coupled = ("", 1.0)
    for suffix, left in (("", 1 - lr * decay), ("s", lr * decay), ("f", lr * decay), coupled):
        for name in "12345":
            yield (
                "param",
                f"adam.{name}{suffix}",
                inputs,
                (left, size, 1 / root if name == "3" else root, eps),
            )


def _sgd(hyper: _Hyper) -> Iterator[Numbered]:
    lr, momentum = hyper("lr"), hyper("momentum")
    yield B, "decay.1", (), (momentum,)
    for rule in ("momentum.1", "momentum.2"):
        yield "param", rule, ((False, B),), (lr,)


class _Optimizer(Struct, frozen=True):
    """One of ``torch.optim``: names of its states, keys of its groups, and its candidates."""

    name: str
    needs: frozenset[str]
    may: frozenset[str]
    keys: frozenset[str]
    candidates: Callable[[_Hyper], Iterator[Numbered]]


KINDS = (
    _Optimizer(
        "adam", frozenset({M, V}), frozenset({X}), frozenset({"betas", "eps", "amsgrad"}), _adam
    ),
    _Optimizer("sgd", frozenset({B}), frozenset(), frozenset({"momentum", "dampening"}), _sgd),
)


def _candidates(
    kinds: Sequence[str], hypers: Sequence[Mapping[str, object]], dtype: str
) -> Iterator[Candidate]:
    """Every candidate of the kinds, with the numbers of each group in either precision."""
    moved = {k: hypers[0][k] for k in ("step", "mu_product") if hypers and k in hypers[0]}
    known = {kind.name: kind for kind in KINDS}
    for kind in (known[name] for name in kinds if name in known):
        for values in hypers:
            for number in (np.float64, np.float32):
                yield from _numbered(kind, _Hyper({**values, **moved}, number), dtype)


def _numbered(kind: _Optimizer, hyper: _Hyper, dtype: str) -> Iterator[Candidate]:
    try:
        with np.errstate(all="ignore"):
            for member, rule, inputs, numbers in kind.candidates(hyper):
                wide = RULES[rule].wide or dtype == "float64"
                written = tuple(float(n) if wide else _shortest(n) for n in numbers)
                if np.isfinite(written).all():
                    yield Candidate(member, rule, (True, member), inputs, written)
    except (KeyError, ArithmeticError, ValueError, TypeError):
        return


def _shortest(value: Any) -> float:
    """The number of fewest digits that is rounded to the same float32."""
    single = np.float32(value)
    short = float(str(single))
    return short if np.float32(short) == single else float(single)
