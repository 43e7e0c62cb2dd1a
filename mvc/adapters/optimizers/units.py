"""Finds optimizer parameters that changed by exactly one step since the previous version.

The codec ``optim`` computes this step, and stores only the difference from the result. A *unit*
names the tensors of one parameter (its weights and its optimizer states) in the new and in the
previous version, and has hyperparameters such as the learning rate. A scheduler may change
hyperparameters before or after a version is recorded. So if the hyperparameters of the two versions
differ, a unit has both.
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
"""The name of the weights in ``Unit.members``."""


class ContentPlace(NamedTuple):
    """The location of a tensor in a version: the path of its file, and its index in the file."""

    path: str
    content: int


class Unit(Struct, frozen=True):
    """One parameter of one optimizer, one step after the previous version.

    ``kinds``: optimizers that may have made the step. ``hypers``: hyperparameters of the step, the
    likeliest first. ``members``: maps names in torch's optimizer state to tensors, and ``param`` to
    the weights, if they are known. ``older``: the same tensors in the previous version.
    """

    kinds: tuple[str, ...]
    hypers: tuple[Mapping[str, object], ...]
    members: Mapping[str, ContentPlace]
    older: Mapping[str, ContentPlace]


class Step(Struct, frozen=True):
    """One optimizer step between two versions.

    ``path``: the file with the optimizer. ``new``, ``old``: the optimizer's states in the two
    versions. ``guess``: the weights that the step probably changed. ``newer``, ``older``: all
    weights of the two versions.
    """

    path: str
    new: OptimizerState
    old: OptimizerState
    guess: Guess
    newer: Mapping[WeightKey, Weight]
    older: Mapping[WeightKey, Weight]

    def before(self, weight: Weight) -> Weight | None:
        """``weight`` in the previous version. None if it is missing, or its spec has changed."""
        previous = self.older.get(weight.key)
        return previous if previous is not None and previous.ref.spec == weight.ref.spec else None

    @property
    def key(self) -> tuple[object, ...]:
        """A key that is the same for all steps of one optimizer in a training."""
        return self.path, self.new.place, tuple(g.parameters for g in self.new.groups)


def steps(new: Sequence[FileState], old: Sequence[FileState]) -> list[Step]:
    """The steps between a version with the files ``new`` and the previous version (``old``).

    A step is returned for each optimizer that is in both versions, unless the recorded step numbers
    are not consecutive.
    """
    before = {(f.path, optimizer.place): (f, optimizer) for f in old for optimizer in f.optimizers}
    newer, older = _by_key(new), _by_key(old)
    result = []
    for file in new:
        for optimizer in file.optimizers:
            earlier = before.get((file.path, optimizer.place))
            # If both files have a step number, the numbers must be consecutive.
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
    """``kinds`` and ``hypers`` of the unit of a parameter."""
    kinds = kinds_of(frozenset((*new.members, *new.scalars)), group.values)
    both = [{**values, **new.scalars} for values in (group.values, before.values)]
    return tuple(kinds), tuple(both) if both[0] != both[1] else (both[0],)


def _one_step(new: Parameter, old: Parameter) -> bool:
    """Whether ``new`` may be one step after ``old``.

    The two states must have the same form. If the states count steps, the counts must differ by 1.
    """
    if new.spec != old.spec or ("step" in new.scalars) != ("step" in old.scalars):
        return False
    if "step" not in new.scalars:
        return True
    now, then = whole_number(new.scalars["step"]), whole_number(old.scalars["step"])
    return now is not None and then is not None and now == then + 1
