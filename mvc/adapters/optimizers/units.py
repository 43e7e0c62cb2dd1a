"""Units of a version: parameters of an optimizer, exactly one step after the previous version.

A *unit* names the tensors of one parameter (its states and its weights) in the new and in the
previous version. It has candidates for the hyperparameters of the step: those recorded with the new
state, and those recorded with the old state. A scheduler may change hyperparameters before or after
a state is recorded.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from msgspec import Struct

from mvc.adapters.optimizers.states import (
    FileState,
    OptimizerState,
    Parameter,
    ParameterGroup,
    ParameterId,
    Weight,
    WeightKey,
    whole_number,
)
from mvc.adapters.optimizers.weights import Guess, weights_of
from mvc.codecs.optim import kinds_of

PARAM = "param"
"""The member for the weights."""


class ContentPlace(NamedTuple):
    """A content (stored tensor) of a version: the path of its file, and its index in the file."""

    path: str
    content: int


class Unit(Struct, frozen=True):
    """One parameter of one optimizer, one step after the previous version.

    ``members``: maps names in torch's state to contents, and ``param`` to the weights, if they are
    known. ``older``: the same for the previous version. ``hypers``: candidates for the
    hyperparameters, the likeliest first.
    """

    kinds: tuple[str, ...]
    hypers: tuple[Mapping[str, object], ...]
    members: Mapping[str, ContentPlace]
    older: Mapping[str, ContentPlace]


class Step(Struct, frozen=True):
    """One optimizer step between two versions. ``guess``: the weights that the step probably
    changed.

    ``newer`` and ``older``: all weights of the two versions.
    """

    path: str
    new: OptimizerState
    old: OptimizerState
    guess: Guess
    newer: Mapping[WeightKey, Weight]
    older: Mapping[WeightKey, Weight]

    def before(self, weight: Weight) -> Weight | None:
        """The same weights in the previous version; None if their shape or dtype has changed."""
        previous = self.older.get(weight.key)
        return previous if previous is not None and previous.ref.spec == weight.ref.spec else None

    @property
    def key(self) -> tuple[object, ...]:
        """A key that is equal for all steps of one training with the same weights."""
        return self.path, self.new.place, tuple(g.parameters for g in self.new.groups)


def steps(new: Sequence[FileState], old: Sequence[FileState]) -> list[Step]:
    """The steps of those optimizers that both a version and its previous version have.

    ``new`` and ``old``: the files of these two versions.
    """
    before = {(f.path, optimizer.place): (f, optimizer) for f in old for optimizer in f.optimizers}
    newer, older = _by_key(new), _by_key(old)
    result = []
    for file in new:
        for optimizer in file.optimizers:
            earlier = before.get((file.path, optimizer.place))
            # consecutive steps, or a file without a step number
            if earlier is not None and (
                file.step is None or earlier[0].step is None or file.step == earlier[0].step + 1
            ):
                guess = weights_of(file, optimizer, new)
                step = Step(file.path, optimizer, earlier[1], guess, newer=newer, older=older)
                result.append(step)
    return result


def units(step: Step, weights: Mapping[ParameterId, Weight]) -> Iterator[Unit]:
    """The units of a step. ``weights``: maps the optimizer's parameters to the weights."""
    groups = {id_: group for group in step.old.groups for id_ in group.parameters}
    shared = dict[object, _Numbers]()
    for group in step.new.groups:
        for id_ in group.parameters:
            new, old = step.new.parameters.get(id_), step.old.parameters.get(id_)
            if new is None or old is None or not _one_step(new, old):
                continue
            earlier = groups.get(id_, group)
            key = id(group), id(earlier), frozenset(new.members), tuple(new.scalars.items())
            if key not in shared:
                shared[key] = _numbers(new, group, earlier)
            kinds, hypers = shared[key]
            if not kinds:
                continue
            names = sorted(new.members.keys() & old.members.keys())
            members = {name: ContentPlace(step.path, new.members[name]) for name in names}
            older = {name: ContentPlace(step.path, old.members[name]) for name in names}
            weight = weights.get(id_)
            if weight is not None and (before := step.before(weight)) is not None:
                members[PARAM] = ContentPlace(weight.path, weight.ref.content)
                older[PARAM] = ContentPlace(before.path, before.ref.content)
            yield Unit(kinds, hypers, members, older)


def _by_key(files: Iterable[FileState]) -> dict[WeightKey, Weight]:
    return {weight.key: weight for f in files for weights in f.weights for weight in weights}


_Numbers = tuple[tuple[str, ...], tuple[Mapping[str, object], ...]]


def _numbers(new: Parameter, group: ParameterGroup, before: ParameterGroup) -> _Numbers:
    """The kinds of optimizers that a parameter may have, and the ``hypers`` of its unit."""
    kinds = kinds_of(frozenset((*new.members, *new.scalars)), group.values)
    both = [{**values, **new.scalars} for values in (group.values, before.values)]
    return tuple(kinds), tuple(both) if both[0] != both[1] else (both[0],)


def _one_step(new: Parameter, old: Parameter) -> bool:
    """Whether two states have the same form. If they count steps, they must be one step apart."""
    if new.spec != old.spec or ("step" in new.scalars) != ("step" in old.scalars):
        return False
    if "step" not in new.scalars:
        return True
    now, then = whole_number(new.scalars["step"]), whole_number(old.scalars["step"])
    return now is not None and then is not None and now == then + 1
