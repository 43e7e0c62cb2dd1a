"""Finds the parameters that changed by one optimizer step since the parent version of a commit.

The new values of such a parameter can be predicted from its old values, so that few bytes are
stored. A *unit* is one of these parameters: its weights and its optimizer states (such as the
moments of Adam), in the commit and in the parent version.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext

import numpy as np
from msgspec import Struct, field

from mvc.adapters.optimizers.matching import (
    SAMPLE_BYTES,
    Expected,
    Numbers,
    expected,
    matches,
    sample,
)
from mvc.adapters.optimizers.states import (
    FileState,
    ParameterId,
    Weight,
    file_state,
    has_optimizer,
    parsed_state,
    scalar_contents,
)
from mvc.adapters.optimizers.trainings import remember
from mvc.adapters.optimizers.units import ContentPlace, Step, Unit, steps, units
from mvc.adapters.optimizers.weights import Unsure
from mvc.adapters.parsed import ParsedFile
from mvc.errors import DamagedData
from mvc.io.process import without_collector
from mvc.limits import PIECE
from mvc.model.manifest import FileEntry, Manifest
from mvc.repo.content.contents import in_memory, skeleton_of
from mvc.repo.handle import Recent
from mvc.store.store import Store

_FORMATS = {"state", "torch", "safetensors"}
_MANY = 10_000  # if files have more tensors than this, Python's garbage collector is paused
_MOST = 4096  # if more tensors have the same shape, they are not compared with each other


class Found(Struct, frozen=True):
    """The units of a commit. ``states``: maps paths to parsed files, for the next commit."""

    units: tuple[Unit, ...] = ()
    states: Mapping[str, FileState] = field(default_factory=dict)


def units_of(
    store: Store, recent: Recent, files: Mapping[str, ParsedFile], parent: Manifest
) -> Found:
    """The units among the ``files`` of a commit whose parent is ``parent``."""
    many = sum(len(file.contents) for file in files.values()) > _MANY
    # Weights may be infinite. numpy must not warn about them.
    with without_collector() if many else nullcontext(), np.errstate(all="ignore"):
        return _units_of(store, recent, files, parent)


def _units_of(
    store: Store, recent: Recent, files: Mapping[str, ParsedFile], parent: Manifest
) -> Found:
    chosen = {path: file for path, file in files.items() if file.format in _FORMATS}
    if not any(
        file.format != "safetensors" and has_optimizer(file.skeleton()) for file in chosen.values()
    ):
        return Found()
    new = {path: parsed_state(path, file) for path, file in chosen.items()}
    if not any(state.optimizers for state in new.values()):
        return Found()
    entries = {path: parent.by_path[path] for path in new if path in parent.by_path}
    try:
        old = [_stored(store, recent, entry) for entry in entries.values()]
    except DamagedData:
        return Found(states=new)
    every: list[Unit] = []
    for step in steps(list(new.values()), old):
        weights = _weights(store, recent, step, files=chosen, entries=entries)
        every += units(step, weights)
    return Found(tuple(every), new)


def _stored(store: Store, recent: Recent, entry: FileEntry) -> FileState:
    known = recent.trainings.states.get((entry.path, entry.content_id))
    if known is not None:
        return known
    skeleton, scalars = skeleton_of(store.recovery, entry), dict[int, bytes]()
    if has_optimizer(skeleton):
        small = scalar_contents(entry)
        first = {entry.contents[i].id: i for i in reversed(small)}
        read = in_memory(store.recovery, entry, first.values())
        scalars = {i: bytes(read[first[entry.contents[i].id]]) for i in small}
    state = file_state(entry.path, entry, skeleton, scalars)
    remember(recent.trainings.states, (entry.path, entry.content_id), state)
    return state


def _weights(
    store: Store,
    recent: Recent,
    step: Step,
    files: Mapping[str, ParsedFile],
    entries: Mapping[str, FileEntry],
) -> Mapping[ParameterId, Weight]:
    """Maps each parameter of the optimizer to its weights.

    If several weights have the shape of a parameter, samples of the values show which weights
    belong to the parameter.
    """
    if not step.guess.unsure:
        return step.guess.weights
    known = recent.trainings.matched.get(step.key)
    if known is None or not known.keys() >= step.guess.weights.keys():
        compare = _Comparison(store, files, entries)
        weights = dict(step.guess.weights)
        for unsure in step.guess.unsure:
            if len(unsure.weights) <= _MOST:
                matched = compare.matched(step, unsure)
                used = {weight.key for weight in matched.values()}
                free = [weight for weight in unsure.weights if weight.key not in used]
                rest = [parameter for parameter in unsure.parameters if parameter not in matched]
                weights |= matched | dict(zip(rest, free, strict=False))
        known = {parameter: weight.key for parameter, weight in weights.items()}
        remember(recent.trainings.matched, step.key, known)
    return {parameter: step.newer[key] for parameter, key in known.items() if key in step.newer}


class _Comparison:
    """Finds the weights of parameters by comparing changes of weights with optimizer states."""

    def __init__(
        self, store: Store, files: Mapping[str, ParsedFile], entries: Mapping[str, FileEntry]
    ) -> None:
        self._store = store
        self._files = files
        self._entries = entries

    def matched(self, step: Step, unsure: Unsure) -> dict[ParameterId, Weight]:
        """Maps parameters of equal shape to their weights, if the values show the weights.

        Raises DamagedData.
        """
        moves, weights = list[Numbers](), list[Weight]()
        for weight in unsure.weights:
            before = step.before(weight)
            new = self._new(ContentPlace(weight.path, weight.ref.content))
            if new is None or before is None:
                continue
            if (old := self._old(ContentPlace(before.path, before.ref.content))) is not None:
                moves.append(new - old)
                weights.append(weight)
        values = {parameter: g.values for g in step.new.groups for parameter in g.parameters}
        expectations, parameters = list[Expected](), list[ParameterId]()
        for parameter in unsure.parameters:
            after = self._members(step.path, step.new.parameters[parameter].members, self._new)
            earlier = step.old.parameters.get(parameter)
            if after is None or earlier is None or after.keys() != earlier.members.keys():
                continue
            then = self._members(step.path, earlier.members, self._old)
            if then is not None and (one := expected(after, then, values[parameter])) is not None:
                expectations.append(one)
                parameters.append(parameter)
        return {parameters[i]: weights[j] for i, j in matches(moves, expectations).items()}

    def _members(
        self, path: str, members: Mapping[str, int], read: Callable[[ContentPlace], Numbers | None]
    ) -> dict[str, Numbers] | None:
        every = {name: read(ContentPlace(path, content)) for name, content in members.items()}
        usable = {name: numbers for name, numbers in every.items() if numbers is not None}
        return usable if len(usable) == len(every) else None

    def _new(self, place: ContentPlace) -> Numbers | None:
        file = self._files[place.path]
        spec = file.contents[place.content].spec
        out = memoryview(bytearray(min(SAMPLE_BYTES, spec.nbytes)))
        file.read(place.content, 0, out)
        return sample(spec, out)

    def _old(self, place: ContentPlace) -> Numbers | None:
        content = self._entries[place.path].contents[place.content]
        out = memoryview(bytearray(min(PIECE, content.spec.nbytes)))
        self._store.recovery.piece(content.id, 0, out)
        return sample(content.spec, out)
