"""Chooses how to encode a *unit*: a parameter and its optimizer states.

If a version is one optimizer step after the previous version, the optimizer's formula can predict
the tensors of the unit (``mvc.codecs.optim``). Then only the difference from the prediction is
stored. A *rule* is the formula for one tensor. A tensor without a rule is stored as a plain delta,
without a prediction. Of units with equal hyperparameters, smaller units use the rules of the
largest unit if these rules fit.

A *run* is a sequence of consecutive predicted versions. Every tensor in a run is a delta from the
previous version. So recovery goes through a run step by step, with the tensors of one step in
memory. A run has at most ``RUN`` versions. The version after a run is a delta from a version before
the run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from mvc.codecs.optim import PREDICTED, ChosenRule, Prediction, choose_predictions
from mvc.ids import DIGEST_SIZE, BlobId
from mvc.limits import PIECE
from mvc.model.tensor import DTYPES, TensorSpec
from mvc.pipelines.pipeline import sample_of
from mvc.store.graph.search import Link
from mvc.store.packs.records import BASE_BYTES
from mvc.store.writing.bases import Base
from mvc.store.writing.full_or_delta import BasePiece, Policy, choose
from mvc.store.writing.pieces import NextBase
from mvc.store.writing.storing import Storing

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from mvc.adapters.optimizers.units import Unit

_WORTH = 0.9
"""A unit is predicted if the predictions take at most 0.9 times the bytes of plain deltas.

A smaller saving would be lost again: the version after a run is a large delta.
"""
_CHECKED = 4096  # bytes of a tensor on which another unit's rule is checked
_TRIES = 4  # maximum number of different rules for units with equal hyperparameters
_SAMPLED = 4096  # bytes of each of four blocks of a tensor, on which rules are compared
_SHORT = 256  # a tensor with fewer bytes must satisfy ``_MOST_NAMED``, too
_MOST_NAMED = 0.5  # limit of header bytes that name the inputs of a tensor, per byte of the tensor
_GRADED = 4096  # a tensor with at least this many bytes uses the graded form of its rule
_AS_GOOD = 0.5  # a rule fits another unit with at least half its share of exact predictions


class UnitMember(Struct):
    """One tensor of a unit: content number ``content`` of a file.

    ``base``: the tensor in the previous version. ``data``: the bytes, if all are in memory.
    ``borrowed``: whether ``data`` is memory of the caller. ``wanted``: whether the tensor must be
    stored. ``next_base``: the tensor's buffer in a cache, if there is one.
    """

    storing: Storing
    content: int
    spec: TensorSpec
    base: Base
    id: BlobId = BlobId(bytes(DIGEST_SIZE))
    data: memoryview | None = None
    borrowed: bool = False
    wanted: bool = False
    next_base: NextBase | None = None

    def piece(self, start: int, allocate: Callable[[int], memoryview]) -> memoryview:
        """The tensor's piece at ``start``. ``allocate`` allocates memory for reading."""
        length = min(PIECE, self.spec.nbytes - start)
        if self.data is not None:
            return self.data[start : start + length]
        out = allocate(length)
        self.storing.file.read(self.content, start, out)
        return out


class Steps(Struct):
    """The pieces of a unit's tensors at one offset, by name, in the new and the older version."""

    new: Mapping[str, BasePiece]
    old: Mapping[str, BasePiece]


class Rules(Struct, frozen=True):
    """The rules of a unit's tensors in a run. Tensors without a rule are stored as plain deltas."""

    chosen: Mapping[str, ChosenRule]

    @property
    def inputs(self) -> frozenset[str]:
        """Names of tensors whose new bytes are needed to predict other tensors."""
        chosen = self.chosen.values()
        return frozenset(name for rule in chosen for older, name in rule.inputs if not older)

    @property
    def graded(self) -> Rules:
        """The rules in their graded form, which sorts the elements by the prediction's precision.

        A rule that has no graded form does not change (``Prediction.finer``).
        """
        finer = {n: replace(c, prediction=c.prediction.finer) for n, c in self.chosen.items()}
        return Rules(finer)

    def sources(
        self, name: str, steps: Steps
    ) -> tuple[Prediction | None, BasePiece, tuple[BasePiece, ...]]:
        """The prediction of the tensor ``name``, the base, and the inputs of the prediction."""
        rule = self.chosen.get(name)
        if rule is None:
            return None, steps.old[name], ()
        inputs = ((steps.old if older else steps.new)[input_] for older, input_ in rule.inputs)
        return rule.prediction, steps.old[name], tuple(inputs)

    def order(self) -> list[str] | None:
        """Names of predicted tensors, each before its inputs; None if the inputs form a cycle."""
        depths: dict[str, int] = {}
        for _ in range(len(self.chosen) + 1):
            for name, chosen in self.chosen.items():
                under = [depths.get(input_, 0) for _, input_ in chosen.inputs if input_ != name]
                depths[name] = 1 + max(under, default=0)
        if max(depths.values(), default=0) > len(self.chosen):
            return None
        return sorted(depths, key=lambda name: -depths[name])


def put_order(members: Mapping[str, UnitMember], rules: Rules | None) -> list[str]:
    """The names of a unit's tensors, in the order in which they are encoded.

    A tensor comes before its inputs, because its encoding may need the old bytes of the inputs.
    """
    first = (rules.order() if rules is not None else None) or []
    return [*first, *(name for name in members if name not in first)]


def bytes_of(members: Mapping[str, UnitMember]) -> int:
    """The number of bytes of each tensor of a unit; 0 without tensors. All have the same number."""
    return next((member.spec.nbytes for member in members.values()), 0)


def run_of(chains: Sequence[Sequence[Link]]) -> tuple[int | None, int]:
    """The run of the newest version: (number of the operation that published its first version,
    number of its versions). The result is (None, 0) if the newest version is in no run.

    ``chains``: for each tensor of the unit, the objects to decode one after another.
    """
    first = [next((k.sequence for k in chain if k.predicted), None) for chain in chains]
    begin = min((sequence for sequence in first if sequence is not None), default=None)
    if begin is None:
        return None, 0
    return begin, max(sum(link.sequence >= begin for link in chain) for chain in chains)


def goes_on(policy: Policy, chains: Sequence[Sequence[Link]], sequence: int, nbytes: int) -> bool:
    """Whether a unit's next version may be predicted. ``chains``: as for ``run_of``."""
    if not policy.predicts or not all(chains) or run_of(chains)[1] >= policy.run:
        return False
    stored = sum(chain[-1].stored for chain in chains)
    ends = any(policy.layout.ends(chain, sequence) for chain in chains)
    return not ends and stored <= policy.max_chain * nbytes * len(chains)


class RuleChooser:
    """Determines the rules of units. Call ``choose`` for the largest unit first."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._known: dict[object, list[Rules | None]] = {}

    def choose(self, unit: Unit, dtype: str, steps: Steps) -> Rules | None:
        """The rules of a unit in a run; None if plain deltas are about as small."""
        rules, nbytes = self._rules(unit, dtype, steps), len(next(iter(steps.new.values())).data)
        if rules is None or nbytes >= _SHORT:
            return rules if rules is None or nbytes < _GRADED else rules.graded
        rules_ = {n: c for n, c in rules.chosen.items() if _named(c) < _MOST_NAMED * nbytes}
        return Rules(rules_) if any(chosen.inputs for chosen in rules_.values()) else None

    def _rules(self, unit: Unit, dtype: str, steps: Steps) -> Rules | None:
        key = (unit.kinds, tuple(map(id, unit.hypers)), dtype, frozenset(steps.new))
        known = self._known.setdefault(key, [])
        for rules in known:
            if rules is not None and _fits(rules, steps):
                return rules
        if len(known) == _TRIES:
            return None
        known.append(self._compared(_chosen(unit, dtype, steps), dtype, steps))
        return known[-1]

    def _compared(self, chosen: dict[str, ChosenRule], dtype: str, steps: Steps) -> Rules | None:
        """The rules that save bytes, compared with plain deltas; None if they save too little."""
        sample, better, today, total = _cut(steps, sample_of), dict[str, ChosenRule](), 0.0, 0.0
        for name, new in sample.new.items():
            if new.data == sample.old[name].data:
                continue
            best = plain = self._plain(dtype, new.data, sample.old[name])
            if name in chosen:
                share = self._share(Rules(chosen), name, sample)
                share += _named(chosen[name]) / len(steps.new[name].data)
                if share < plain:
                    best, better[name] = share, chosen[name]
            today, total = today + plain, total + best
        rules = Rules(better)
        return rules if better and total <= _WORTH * today and rules.order() is not None else None

    def _plain(self, dtype: str, new: memoryview, base: BasePiece) -> float:
        """Encoded bytes per raw byte of a plain delta."""
        spec = TensorSpec(dtype, (len(new) // DTYPES[dtype].itemsize,))
        return choose(spec, new, spec, base, policy=self._policy)[0].share

    def _share(self, rules: Rules, name: str, steps: Steps) -> float:
        """Encoded bytes per raw byte of a prediction by a rule."""
        prediction, new = rules.chosen[name].prediction, steps.new[name].data
        guess = _predicted(rules, name, steps)
        encoded = self._policy.pipeline.encode_chunk(new, guess, prediction.width)
        signs = 1 / (8 * prediction.width) if prediction.signed else 0.0
        return len(encoded) / len(new) + signs


def _fits(rules: Rules, steps: Steps) -> bool:
    """Whether the rules of another unit predict the first elements of this unit's tensors well."""
    few = _cut(steps, lambda data: data[:_CHECKED])
    for name, chosen in rules.chosen.items():
        if chosen.inputs and chosen.exact >= _AS_GOOD:
            word = f"<i{chosen.prediction.width}"
            guess = np.frombuffer(_predicted(rules, name, few), word)
            same = np.count_nonzero(guess == np.frombuffer(few.new[name].data, word))
            if same < _AS_GOOD * chosen.exact * len(guess):
                return False
    return True


def _named(chosen: ChosenRule) -> int:
    """The number of header bytes that name the inputs of a prediction."""
    return 1 + BASE_BYTES * len(chosen.inputs) if chosen.inputs else 0


def _predicted(rules: Rules, name: str, steps: Steps) -> memoryview:
    prediction, base, inputs = rules.sources(name, steps)
    assert prediction is not None
    sources, out = [piece.data for piece in inputs], memoryview(bytearray(len(base.data)))
    prediction.fill(base.data, sources, out, new=steps.new[name].data)
    return out


def _cut(steps: Steps, cut: Callable[[memoryview], memoryview]) -> Steps:
    new, old = (
        {name: replace(piece, data=cut(piece.data)) for name, piece in side.items()}
        for side in (steps.new, steps.old)
    )
    return Steps(new, old)


def _chosen(unit: Unit, dtype: str, steps: Steps) -> dict[str, ChosenRule]:
    """Predictions of the new tensors from the previous version."""
    before, after = (_arrays(pieces, dtype) for pieces in (steps.old, steps.new))
    return choose_predictions(unit.kinds, unit.hypers, before, after)


def _arrays(pieces: Mapping[str, BasePiece], dtype: str) -> dict[str, NDArray[Any]]:
    kind = PREDICTED[dtype]
    return {n: np.frombuffer(sample_of(p.data, _SAMPLED), kind) for n, p in pieces.items()}
