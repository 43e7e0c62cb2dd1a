"""Which weights a state of an optimizer belongs to.

By name where names are known: a Recorder keeps states by the names of parameters, and torch does
if the optimizer was made from named parameters. Otherwise by order and shape: torch numbers
parameters as they were passed, which is group by group the order of the model. What is found this
way is a guess; whether a step was made that way is seen on the data, when it is coded.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePosixPath
from typing import NamedTuple

from mvc.adapters.optimizers.states import (
    FileState,
    OptimizerState,
    ParameterId,
    Weight,
)
from mvc.model.tensor import TensorSpec
from mvc.names import training_path

_MODELS = ("model", "state_dict", "model_state_dict", "module", "net", "network", "weights", "")
_NO_PARAMETERS = ("running_mean", "running_var", "num_batches_tracked")
_PREFIXES = ("_orig_mod.", "module.")


class Unsure(NamedTuple):
    """Parameters, and the weights of their shape, of which each has one: which, the data say."""

    parameters: tuple[ParameterId, ...]
    weights: tuple[Weight, ...]


class Guess(NamedTuple):
    """The weights of an optimizer's parameters, and those of them that are a mere guess."""

    weights: Mapping[ParameterId, Weight]
    unsure: Sequence[Unsure] = ()


def weights_of(file: FileState, optimizer: OptimizerState, files: Sequence[FileState]) -> Guess:
    """The weights of an optimizer's parameters, of those that have a state."""
    specs = {each: parameter.spec for each, parameter in optimizer.parameters.items()}
    best = Guess({})
    for ordered, weights in _candidates(file, files):
        named = _by_name(optimizer, specs, weights)
        found = Guess(named) if named else _by_order(optimizer, specs, weights, ordered=ordered)
        if len(found.weights) > len(best.weights):
            best = found
        if len(best.weights) == len(specs):
            break
    return best


def _candidates(
    file: FileState, files: Sequence[FileState]
) -> Iterator[tuple[bool, Sequence[Weight]]]:
    """Weights, likeliest first: those of one mapping, then all of a file. Whether their order is
    that in which they were given, which safetensors files do not keep.

    Of files, the first is the one that has the optimizer; then that whose training state it is,
    those of the same folder, and all others.
    """
    folder = PurePosixPath(file.path).parent

    def distance(other: FileState) -> int:
        if file.path == training_path(other.path):
            return 1
        return 0 if other is file else 2 if PurePosixPath(other.path).parent == folder else 3

    for other in sorted(files, key=distance):
        listed = sorted(other.weights, key=_rank)
        yield from ((other.ordered, one) for one in listed)
        if len(listed) > 1:  # the optimizer may be one for several modules
            yield other.ordered, [weight for one in listed for weight in one]


def _rank(weights: Sequence[Weight]) -> int:
    last = weights[0].place.rpartition(".")[2]
    return _MODELS.index(last) if last in _MODELS else len(_MODELS)


def _by_name(
    optimizer: OptimizerState, specs: Mapping[ParameterId, TensorSpec], weights: Sequence[Weight]
) -> dict[ParameterId, Weight]:
    known = {weight.name: weight for weight in reversed(weights)}
    bare = {_bare(name): weight for name, weight in known.items()}
    found = {}
    for group in optimizer.groups:
        for each, name in zip(group.parameters, group.names, strict=False):
            weight = known.get(name) or bare.get(_bare(name))
            if weight is not None and weight.ref.spec == specs.get(each):
                found[each] = weight
    return found


def _bare(name: str) -> str:
    for prefix in _PREFIXES:
        name = name.removeprefix(prefix)
    return name


def _by_order(
    optimizer: OptimizerState,
    specs: Mapping[ParameterId, TensorSpec],
    weights: Sequence[Weight],
    *,
    ordered: bool,
) -> Guess:
    """Each group's parameters are weights of their shapes in the same order, with gaps.

    Sure is that where a shape's weights are as many as its parameters, all of one group, and
    ``ordered``; or where there is one of each.
    """
    places = _by_shape(weights)
    every = {spec: tuple(weights[i] for i in found) for spec, found in places.items()}
    found: dict[ParameterId, Weight] = {}
    shared: dict[TensorSpec, list[ParameterId]] = {}
    groups: dict[TensorSpec, set[int]] = {}
    for number, group in enumerate(optimizer.groups):
        at = -1
        for each in group.parameters:
            if each in specs and (free := places.get(specs[each])):
                at = free.pop(bisect(free, at) % len(free))
                found[each] = weights[at]
                shared.setdefault(specs[each], []).append(each)
                groups.setdefault(specs[each], set()).add(number)
    return Guess(
        found,
        [
            Unsure(tuple(ids), every[spec])
            for spec, ids in shared.items()
            if len(every[spec]) > 1
            and not (ordered and len(ids) == len(every[spec]) and len(groups[spec]) == 1)
        ],
    )


def _by_shape(weights: Sequence[Weight]) -> dict[TensorSpec, list[int]]:
    """Positions of the weights that may be parameters; of tied ones the first."""
    places: dict[TensorSpec, list[int]] = {}
    seen: set[int] = set()
    for i, weight in enumerate(weights):
        tied = weight.ref.content in seen
        seen.add(weight.ref.content)
        if not tied and weight.name.rpartition(".")[2] not in _NO_PARAMETERS:
            places.setdefault(weight.ref.spec, []).append(i)
    return places
