"""Encodes a *unit*, a parameter and its optimizer states, together.

If a version is one optimizer step after the previous version, its tensors can be predicted by the
optimizer's formula, from each other and from the previous version (``mvc.codecs.optim``). Then only
the difference from the prediction is stored. A *rule* says how a tensor is predicted. The rules are
determined on the largest of all units with equal hyperparameters. A smaller unit uses the same
rules if they predict a few of its elements well.

A *run* is consecutive predicted versions. In a run, all tensors of a unit are encoded as deltas
from the previous version. A tensor without a rule is a plain delta. So a run is recovered step by
step, with the tensors of one step in memory. A run ends after ``RUN`` versions, or where a chain
(objects that are decoded one after another) ends. The version after a run is a delta from a version
before the run.
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

A smaller saving would be lost at the version after the run, which is a delta from a distant base.
"""
_CHECKED = 4096  # bytes of a tensor on which another unit's rule is checked
_TRIES = 4  # maximum number of different rules for units with equal hyperparameters
_SAMPLED = 4096  # bytes of each of four blocks of a tensor, on which rules are compared
_SHORT = 256  # bytes of a tensor; below, the header bytes that name its inputs count, too
_MOST_NAMED = 0.5  # maximum of these header bytes, as a share of the tensor's bytes
_GRADED = 4096  # bytes of a tensor; from here on, grades (``Rules``) save more than they need
_AS_GOOD = 0.5  # in another unit, a rule must reach this share of its exact predictions


class UnitMember(Struct):
    """One tensor of a unit: content number ``content`` of a file. ``base``: its previous version.

    ``data``: the bytes, if all are in memory. ``borrowed``: whether this memory is the caller's.
    ``wanted``: whether the tensor must be stored. ``next_base``: its buffer in a cache, if there is
    one.
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
        """Tensors whose new bytes predict other tensors."""
        chosen = self.chosen.values()
        return frozenset(name for rule in chosen for older, name in rule.inputs if not older)

    @property
    def graded(self) -> Rules:
        """The same rules, in their graded form if there is one.

        A graded form sorts the elements by the uncertainty of their prediction
        (``Prediction.finer``).
        """
        finer = {n: replace(c, prediction=c.prediction.finer) for n, c in self.chosen.items()}
        return Rules(finer)

    def sources(
        self, name: str, steps: Steps
    ) -> tuple[Prediction | None, BasePiece, tuple[BasePiece, ...]]:
        """The prediction of a tensor, its base and its inputs."""
        rule = self.chosen.get(name)
        if rule is None:
            return None, steps.old[name], ()
        inputs = ((steps.old if older else steps.new)[input_] for older, input_ in rule.inputs)
        return rule.prediction, steps.old[name], tuple(inputs)

    def order(self) -> list[str] | None:
        """The predicted tensors, each before its inputs; None if the inputs form a cycle."""
        depths: dict[str, int] = {}
        for _ in range(len(self.chosen) + 1):
            for name, chosen in self.chosen.items():
                under = [depths.get(input_, 0) for _, input_ in chosen.inputs if input_ != name]
                depths[name] = 1 + max(under, default=0)
        if max(depths.values(), default=0) > len(self.chosen):
            return None
        return sorted(depths, key=lambda name: -depths[name])


def put_order(members: Mapping[str, UnitMember], rules: Rules | None) -> list[str]:
    """The names of a unit's tensors, each before its inputs.

    So the old bytes of an input are read before its new bytes replace them.
    """
    first = (rules.order() if rules is not None else None) or []
    return [*first, *(name for name in members if name not in first)]


def bytes_of(members: Mapping[str, UnitMember]) -> int:
    """The length of each of a unit's tensors; 0 without tensors."""
    return next((member.spec.nbytes for member in members.values()), 0)


def run_of(chains: Sequence[Sequence[Link]]) -> tuple[int | None, int]:
    """The operation that published the first version of a run, and the number of its versions.

    ``chains``: the chains of a unit's tensors in the newest version. The result is (None, 0) if
    this version is in no run.
    """
    first = [next((k.sequence for k in chain if k.predicted), None) for chain in chains]
    begin = min((sequence for sequence in first if sequence is not None), default=None)
    if begin is None:
        return None, 0
    return begin, max(sum(link.sequence >= begin for link in chain) for chain in chains)


def goes_on(policy: Policy, chains: Sequence[Sequence[Link]], sequence: int, nbytes: int) -> bool:
    """Whether a unit's next version may be predicted. ``chains``: those of the newest version."""
    if not policy.predicts or not all(chains) or run_of(chains)[1] >= policy.run:
        return False
    stored = sum(chain[-1].stored for chain in chains)
    ends = any(policy.layout.ends(chain, sequence) for chain in chains)
    return not ends and stored <= policy.max_chain * nbytes * len(chains)


class RuleChooser:
    """Determines the rules of units. Call it for the largest unit first."""

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
        """The rules that save bytes over plain deltas; None if they save too little in total."""
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
    """Whether rules of another unit predict a few elements of this unit about as well."""
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
    """Bytes of a record's header that name the inputs of a prediction."""
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
