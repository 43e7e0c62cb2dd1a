"""Makes production weights: weights near the training weights, with small deltas between versions.

A ``Recorder`` (which commits versions during a training) calls this module. The production weights
come from a lossy pipeline. Some stages of a pipeline decide whether a version is stored, and
remember data, such as earlier batches. mvc stores these data, so that a later Recorder continues
with the same data.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import suppress
from typing import Any

import numpy as np
from blake3 import blake3

from mvc.api import Repository
from mvc.errors import InvalidName, MvcError, UnsupportedTensor, WrongUsage
from mvc.ids import CommitId
from mvc.lossy import Arrays, Evaluate, Monitor, Production
from mvc.names import training_path
from mvc.pipelines import Pipeline
from mvc.state import ServedVersion, StateFile, decode_served, encode_served
from mvc.system import memory_bytes
from mvc.text import did_you_mean
from mvc.training.approximator import newest, stored

_DECISIONS = "decisions"
_PART = 4  # limit of the remembered data: a quarter of the machine's memory


class StateReducer:
    """Makes production weights from nested states of torch tensors.

    The first production weights are a small change of the file ``name`` in the newest version on
    ``branch`` (None: at HEAD). Only the thread that writes versions uses this object.
    """

    _state: StateFile  # the state of the newest call of ``offer``

    def __init__(
        self, repo: Repository, name: str, pipeline: Pipeline, *,
        evaluate: Evaluate | None, monitor: Monitor | None, exact: Collection[str],
        named: Collection[str], origin: CommitId | None, branch: str | None,
    ) -> None:  # fmt: skip
        """``exact``: names of tensors that the pipeline must not change.

        ``named``: the names in ``exact`` that the user passed. ``origin``: the version from which
        the training resumed. The stages continue with the data stored in this version.
        """
        self._repo = repo
        self._name = name
        self._record = blake3(name.encode()).hexdigest(16)
        self._origin = origin
        self._branch = branch
        self._unseen = frozenset(named)
        self._skipped = False  # whether the newest version was skipped
        judge = evaluate and (lambda arrays, data: evaluate(self._nested(arrays), data))
        self._engine = Production(pipeline, evaluate=judge, monitor=monitor, exact=exact)
        self._begun = False
        self.check = self._engine.check
        self.memory = self._engine.memory
        self.take_back = self._engine.take_back

    def check_names(self, state: Mapping[str, Any]) -> None:
        """Raises WrongUsage if ``state`` lacks a tensor that the user named as exact.

        Checks nothing after the first success.
        """
        if not self._unseen:
            return
        names = StateFile.of(state).specs
        for missing in sorted(map(str, self._unseen.difference(names))):
            raise WrongUsage(
                f"exact names {missing}, but no tensor of the model has that name",
                hint=did_you_mean(missing, names, "use names of its state_dict()"),
            )
        self._unseen = frozenset()

    def offer(
        self, state: Mapping[str, Any], *, loss: float | None, data: Any
    ) -> dict[str, Any] | None:
        """New production weights in the form of ``state``, or None if the pipeline skips the
        version.

        The result shares memory with this object. So commit it, but do not change it or pass it to
        callers. ``live_state`` returns a copy.
        """
        self._state = StateFile.of(state)
        weights = self._state.arrays()
        if not self._begun:
            self._engine.live, self._engine.dtypes = self._previous(), weights.dtypes
            if self._engine.live is not None:
                self._engine.restore(self._remembered())
            self._begun = True
        decision = self._engine.offer(weights.arrays, loss=loss, data=data)
        self._skipped = not decision.saved
        return self._nested(decision.production) if decision.saved else None

    def live_state(self) -> dict[str, Any]:
        """A copy of the newest production weights."""
        live = self._engine.live or {}
        return self._nested({name: np.array(array) for name, array in live.items()})

    def _nested(self, arrays: Arrays) -> dict[str, Any]:
        """``arrays`` in the form of the state. The result shares the memory of ``arrays``."""
        nested: dict[str, Any] = self._state.with_arrays(arrays).nested()
        return nested

    def _previous(self) -> Arrays | None:
        """The weights of the newest version. None if there is none, or if it has other tensors than
        the model.
        """
        at, specs = newest(self._repo, self._branch), self._state.specs
        entry = None if at is None else self._repo.manifest(at).by_path.get(self._name)
        if at is None or entry is None or not specs:
            return None
        previous = {t.key: t.spec for t in entry.tensors}
        if any(previous.get(name) != spec for name, spec in specs.items()):
            return None
        arrays = stored(self._repo, at, entry, specs, cached={})
        return arrays if len(arrays) == len(specs) else None

    def remember(self) -> None:
        """Stores the data that the stages of the pipeline remember, for the next Recorder.

        Leaves out batches if they contain other values than tensors, numbers and texts. The stage
        ``dsed`` then starts without earlier batches, and the stage ``guard`` without samples.
        """
        at, memory = newest(self._repo, self._branch), self.memory(samples=True)
        if at is None or not memory or not (self._skipped or "guard.samples" in memory):
            return
        now = self._repo.time()
        try:
            parts = encode_served(ServedVersion(memory, at, now))
        except (UnsupportedTensor, InvalidName):
            batches = {"batches", "seen", "accuracy", "guard.samples"}
            less = {name: value for name, value in memory.items() if name not in batches}
            parts = encode_served(ServedVersion(less, at, now))
        scratch = self._repo.scratch(_DECISIONS)
        scratch.fs.write_atomic(scratch.folder / self._record, b"".join(parts))

    def _remembered(self) -> Mapping[str, Any]:
        """Reads the data that the stages of the pipeline remember.

        The data are in a file on this machine, or in a version: the version from which the training
        resumed, by default the newest version.
        """
        at, scratch = newest(self._repo, self._branch), self._repo.scratch(_DECISIONS)
        path = scratch.folder / self._record
        if self._origin is None and scratch.fs.stat(path) is not None:
            with suppress(MvcError):
                data = scratch.fs.read_bytes(path, memory_bytes() // _PART)
                saved = decode_served(memoryview(data), str(path))
                if saved.commit == at:
                    return saved.state
        version = self._origin or at
        entries = {} if version is None else self._repo.manifest(version).by_path
        entry = entries.get(training_path(self._name))
        if version is None or entry is None or entry.format != "state":
            return {}
        file = self._repo.open_file(version, entry.path, counted=False)
        arrays = file.tensors([t.key for t in entry.tensors if t.key.startswith("decisions.")])
        decisions: Mapping[str, Any] = file.nested(lambda _, key: arrays.get(key)).get("decisions")
        return decisions or {}
