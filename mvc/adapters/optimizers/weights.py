"""Finds the weight to which each state of an optimizer belongs, such as an average of Adam.

If the optimizer's state has names, states are matched by name. A ``Recorder`` (which commits
versions during a training) stores names, and torch stores names for an optimizer of named
parameters. Without names, states are matched by order and shape, because torch numbers parameters
in the order in which they were passed to the optimizer. Within a parameter group, this is usually
the model's order. Such a match is a guess, which the encoder checks on the data.
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
    """Parameters and weights of one shape. Only the data can show which weight belongs to which
    parameter.
    """

    parameters: tuple[ParameterId, ...]
    weights: tuple[Weight, ...]


class Guess(NamedTuple):
    """``weights``: maps an optimizer's parameters to weights.

    ``unsure``: the parameters whose weights are uncertain.
    """

    weights: Mapping[ParameterId, Weight]
    unsure: Sequence[Unsure] = ()


def weights_of(file: FileState, optimizer: OptimizerState, files: Sequence[FileState]) -> Guess:
    """Finds the weights of the parameters that have a state in the optimizer.

    ``file``: the optimizer's file. ``files``: the files that may have the weights.
    """
    specs = {id_: parameter.spec for id_, parameter in optimizer.parameters.items()}
    best = Guess({})
    for ordered, weights in _candidates(file, files):
        named = _by_name(optimizer, specs, weights)
        guess = Guess(named) if named else _by_order(optimizer, specs, weights, ordered=ordered)
        if len(guess.weights) > len(best.weights):
            best = guess
        if len(best.weights) == len(specs):
            break
    return best


def _candidates(
    file: FileState, files: Sequence[FileState]
) -> Iterator[tuple[bool, Sequence[Weight]]]:
    """Yields pairs (ordered, list of weights), the likeliest first.

    ``ordered``: whether the list has the order of the model. In safetensors files, this order is
    lost. The order of files: the optimizer's own file, the model that was saved with this training
    state, files of the same folder, all other files. For each file, the weights of each
    dictionary in the file come first, then all weights of the file.
    """
    folder = PurePosixPath(file.path).parent

    def distance(other: FileState) -> int:
        if file.path == training_path(other.path):
            return 1
        return 0 if other is file else 2 if PurePosixPath(other.path).parent == folder else 3

    for other in sorted(files, key=distance):
        lists = sorted(other.weights, key=_rank)
        yield from ((other.ordered, weights) for weights in lists)
        if len(lists) > 1:  # the optimizer may train several modules
            yield other.ordered, [weight for weights in lists for weight in weights]


def _rank(weights: Sequence[Weight]) -> int:
    last = weights[0].place.rpartition(".")[2]
    return _MODELS.index(last) if last in _MODELS else len(_MODELS)


def _by_name(
    optimizer: OptimizerState, specs: Mapping[ParameterId, TensorSpec], weights: Sequence[Weight]
) -> dict[ParameterId, Weight]:
    known = {weight.name: weight for weight in reversed(weights)}
    bare = {_bare(name): weight for name, weight in known.items()}
    by_id = {}
    for group in optimizer.groups:
        for id_, name in zip(group.parameters, group.names, strict=False):
            weight = known.get(name) or bare.get(_bare(name))
            if weight is not None and weight.ref.spec == specs.get(id_):
                by_id[id_] = weight
    return by_id


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
    """Matches each group's parameters to weights of the same shapes in the same order.

    Weights may be left out. A match is certain if only one weight has the shape. With ``ordered``,
    a match is also certain if all parameters of the shape are in one group, and the number of these
    parameters equals the number of weights of the shape.
    """
    places = _by_shape(weights)
    every = {spec: tuple(weights[i] for i in indices) for spec, indices in places.items()}
    by_id: dict[ParameterId, Weight] = {}
    shared: dict[TensorSpec, list[ParameterId]] = {}
    groups: dict[TensorSpec, set[int]] = {}
    for number, group in enumerate(optimizer.groups):
        at = -1
        for id_ in group.parameters:
            if id_ in specs and (free := places.get(specs[id_])):
                at = free.pop(bisect(free, at) % len(free))
                by_id[id_] = weights[at]
                shared.setdefault(specs[id_], []).append(id_)
                groups.setdefault(specs[id_], set()).add(number)
    return Guess(
        by_id,
        [
            Unsure(tuple(ids), every[spec])
            for spec, ids in shared.items()
            if len(every[spec]) > 1
            and not (ordered and len(ids) == len(every[spec]) and len(groups[spec]) == 1)
        ],
    )


def _by_shape(weights: Sequence[Weight]) -> dict[TensorSpec, list[int]]:
    """Maps each shape to the indices of its weights.

    Leaves out tensors that are no parameters, and all but the first of tied weights.
    """
    places: dict[TensorSpec, list[int]] = {}
    seen: set[int] = set()
    for i, weight in enumerate(weights):
        tied = weight.ref.content in seen
        seen.add(weight.ref.content)
        if not tied and weight.name.rpartition(".")[2] not in _NO_PARAMETERS:
            places.setdefault(weight.ref.spec, []).append(i)
    return places
