"""The units of a version: parameters of an optimizer that are exactly one step on.

A unit names the tensors of one parameter, its states and its weights, in the new version and in
the one before, and the numbers that the step may have been made with: those of the new state, and
those of the old one, because a scheduler changes them before or after the state is taken.
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
"""The member that is the weights."""


class ContentPlace(NamedTuple):
    """A content of a version: its file, and its position among the file's contents."""

    path: str
    content: int


class Unit(Struct, frozen=True):
    """One parameter of one optimizer, one step after the version before.

    ``members`` are its contents by their names in torch's state, and ``param``, its weights, where
    these are known; ``older`` are those of the version before. ``hypers``: the numbers that the
    step may have been made with, the likeliest first.
    """

    kinds: tuple[str, ...]
    hypers: tuple[Mapping[str, object], ...]
    members: Mapping[str, ContentPlace]
    older: Mapping[str, ContentPlace]


class Step(Struct, frozen=True):
    """One step of an optimizer between two versions; ``guess`` is which weights it moved.

    ``newer`` and ``older``: all weights of the two versions.
    """

    path: str
    new: OptimizerState
    old: OptimizerState
    guess: Guess
    newer: Mapping[WeightKey, Weight]
    older: Mapping[WeightKey, Weight]

    def before(self, weight: Weight) -> Weight | None:
        """The same weights in the version before, if they have the same shape and dtype."""
        found = self.older.get(weight.key)
        return found if found is not None and found.ref.spec == weight.ref.spec else None

    @property
    def key(self) -> tuple[object, ...]:
        """Equal for steps of one training, whose weights are the same."""
        return self.path, self.new.place, tuple(g.parameters for g in self.new.groups)


def steps(new: Sequence[FileState], old: Sequence[FileState]) -> list[Step]:
    """The optimizers that are in a version whose files are ``new`` and in the one before."""
    before = {(f.path, optimizer.place): (f, optimizer) for f in old for optimizer in f.optimizers}
    newer, older = _by_key(new), _by_key(old)
    found = []
    for file in new:
        for optimizer in file.optimizers:
            earlier = before.get((file.path, optimizer.place))
            if earlier is not None and _follows(file, earlier[0]):
                guess = weights_of(file, optimizer, new)
                step = Step(file.path, optimizer, earlier[1], guess, newer=newer, older=older)
                found.append(step)
    return found


def units(step: Step, weights: Mapping[ParameterId, Weight]) -> Iterator[Unit]:
    """The units of a step that moved these ``weights``."""
    groups = {each: group for group in step.old.groups for each in group.parameters}
    shared = dict[object, _Numbers]()
    for group in step.new.groups:
        for each in group.parameters:
            new, old = step.new.parameters.get(each), step.old.parameters.get(each)
            if new is None or old is None or not _one_step(new, old):
                continue
            earlier = groups.get(each, group)
            key = id(group), id(earlier), frozenset(new.members), tuple(new.scalars.items())
            if key not in shared:
                shared[key] = _numbers(new, group, earlier)
            kinds, hypers = shared[key]
            if not kinds:
                continue
            names = sorted(new.members.keys() & old.members.keys())
            members = {name: ContentPlace(step.path, new.members[name]) for name in names}
            older = {name: ContentPlace(step.path, old.members[name]) for name in names}
            weight = weights.get(each)
            if weight is not None and (before := step.before(weight)) is not None:
                members[PARAM] = ContentPlace(weight.path, weight.ref.content)
                older[PARAM] = ContentPlace(before.path, before.ref.content)
            yield Unit(kinds, hypers, members, older)


def _follows(new: FileState, old: FileState) -> bool:
    """Whether the steps that two files say, if they do, are consecutive."""
    return new.step is None or old.step is None or new.step == old.step + 1


def _by_key(files: Iterable[FileState]) -> dict[WeightKey, Weight]:
    return {weight.key: weight for f in files for weights in f.weights for weight in weights}


_Numbers = tuple[tuple[str, ...], tuple[Mapping[str, object], ...]]


def _numbers(new: Parameter, group: ParameterGroup, before: ParameterGroup) -> _Numbers:
    """The kinds of optimizers that a parameter may be of, and the ``hypers`` of its unit."""
    kinds = kinds_of(frozenset((*new.members, *new.scalars)), group.values)
    both = [{**values, **new.scalars} for values in (group.values, before.values)]
    return tuple(kinds), tuple(both) if both[0] != both[1] else (both[0],)


def _one_step(new: Parameter, old: Parameter) -> bool:
    """Whether two states fit, and are one step apart if they count steps."""
    if new.spec != old.spec or ("step" in new.scalars) != ("step" in old.scalars):
        return False
    if "step" not in new.scalars:
        return True
    now, then = whole_number(new.scalars["step"]), whole_number(old.scalars["step"])
    return now is not None and then is not None and now == then + 1
