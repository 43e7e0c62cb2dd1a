"""Production: the lossy stages and decisions of a pipeline, version by version.

The training weights are not changed. What is deployed and stored are production weights, which a
lossy pipeline makes of the training weights and the previous production weights (thesis §3.2). A
version that is skipped is rolled back: the next one builds on the deployed version.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import suppress
from copy import copy
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from blake3 import blake3
from msgspec import Struct

from mvc.adapters import structure
from mvc.adapters.files.safetensors import LENGTH_BYTES, parse_header
from mvc.adapters.hashing import entry_from
from mvc.adapters.python.arrays import array_bytes
from mvc.adapters.python.state import from_state, to_state
from mvc.codecs.pipeline import Pipeline
from mvc.codecs.stages.decisions import Drift, Dsed, Every
from mvc.codecs.stages.lossy import TopK
from mvc.errors import InvalidName, MvcError, UnsupportedTensor, WrongUsage
from mvc.ids import BlobId, CommitId
from mvc.io.process import memory_bytes
from mvc.repo.content.contents import skeleton_of
from mvc.repo.lookup import manifests
from mvc.repo.lookup.refs import tip
from mvc.repo.lossy.reduce import Arrays, Weights, reduce, weights_before
from mvc.serving.served_version import ServedVersion, decode, encode
from mvc.training.lossy.decisions import DriftDetector, ErrorDecay, Evaluate, Monitor
from mvc.training.state.parts import training_path

if TYPE_CHECKING:
    from mvc.api.repository import Repository

__all__ = ["Decision", "Production", "StateReducer"]

_PART = 4  # of the machine's memory: what a file of decisions may take


class Decision(Struct, frozen=True):
    """The result of an offer.

    ``production`` are the weights to be live from now on: the new ones if they are to be
    ``saved``, else those that are live already. Do not write to its arrays. ``reason`` is text
    for people.
    """

    saved: bool
    production: Arrays
    reason: str


class Production:
    """Holds the production weights and decides about each offer of training weights.

    ``evaluate(weights, data)`` returns the accuracy of weights on labelled data, from 0 to 1, or
    (accuracy, number of samples); ``dsed`` needs it. ``monitor(data)`` returns what ``drift``
    watches: a number, or one for each sample; by default the mean of each input. ``previous``
    are production weights that are live already. ``exact`` names tensors that must not change,
    such as buffers. ``dtypes`` names the dtype of arrays that hold words of another one
    (``bfloat16`` as uint16). Raises InvalidPipeline, WrongUsage without a needed ``evaluate``, and
    NotInstalled without river.
    """

    def __init__(
        self,
        pipeline: Pipeline | str,
        *,
        evaluate: Evaluate | None = None,
        monitor: Monitor | None = None,
        previous: Arrays | None = None,
        exact: Collection[str] = (),
        dtypes: Mapping[str, str] | None = None,
    ) -> None:
        self.pipeline = Pipeline.parse(pipeline) if isinstance(pipeline, str) else pipeline
        self.live = previous
        self.dtypes = dtypes
        self._exact = exact
        self._every: Every | None = None
        self._drift: DriftDetector | None = None
        self._decay: ErrorDecay | None = None
        for stage in self.pipeline.decisions:
            if isinstance(stage, Every):
                self._every = stage
            elif isinstance(stage, Drift):
                self._drift = DriftDetector(stage, monitor)
            elif isinstance(stage, Dsed):
                self._decay = ErrorDecay(stage, evaluate)
        adaptive = [s for s in self.pipeline.lossy if isinstance(s, TopK) and s.curve is not None]
        self._needs_loss = next((s.text for s in adaptive), None)
        self._carries = any(s.carry for s in adaptive)
        self._carried = 0.0
        self._offers = 0
        self._drifted = False
        # Before the last save: live weights, loss, whether a drift was seen, batches.
        self._undo: tuple[Arrays | None, float, bool, ErrorDecay | None] | None = None

    def check(self, *, loss: float | None, data: Any) -> None:
        """Raises WrongUsage if the pipeline needs a loss or data and there is none."""
        if self._needs_loss is not None and loss is None:
            raise WrongUsage(
                f"stage {self._needs_loss} goes by the loss of the batch", hint="pass loss="
            )
        stage = self._drift or self._decay
        if stage is not None and data is None and (self._drift or self.live is not None):
            raise WrongUsage(f"stage {stage.text} goes by the data of the batch", hint="pass data=")

    def offer(self, training: Arrays, *, loss: float | None = None, data: Any = None) -> Decision:
        """Decides whether the training weights after a batch become a version.

        ``training`` may be written to afterwards, ``data`` must not. ``data`` are the labelled
        samples of the batch as ``evaluate`` takes them: a pair (inputs, labels), unless
        ``evaluate`` returns the number of samples and ``monitor`` is given. The first version is
        always saved, and only ``grid`` changes it. Raises WrongUsage as ``check`` does, and for
        bad callback results.
        """
        self.check(loss=loss, data=data)
        live = self.live
        reason = self._before(data)
        if self._decay is not None and live is not None:
            self._decay.saw(live, data)
        if live is not None and reason is not None:
            return self._skipped(live, reason, loss)
        spent = None if loss is None else loss + self._carried
        made = reduce(
            self.pipeline, live, training, loss=spent, exact=self._exact, dtypes=self.dtypes
        )
        if self._decay is not None and live is not None:
            good = self._decay.good_enough(made)
            if good is not None:
                return self._skipped(live, good, loss)
        self._undo = live, spent or 0.0, self._drifted, copy(self._decay)
        self.live = made
        self._carried = 0.0
        self._drifted = False
        if self._decay is not None:
            self._decay.saved()
        return Decision(True, made, "the first version" if live is None else "saved")

    def take_back(self) -> None:
        """Undoes the last save, whose version could not be committed."""
        if self._undo is not None:
            self.live, carried, self._drifted, self._decay = self._undo
            self._carried = carried if self._carries else 0.0
            self._undo = None

    def memory(self) -> dict[str, Any]:
        """What the decisions on later versions depend on, beside the weights; often nothing."""
        if not self.pipeline.decisions and not self._carries:
            return {}
        told: dict[str, Any] = {
            "pipeline": self.pipeline.text, "offers": self._offers, "carried": self._carried,
            "drifted": self._drifted,
        }  # fmt: skip
        for decision in (self._drift, self._decay):
            told |= decision.memory() if decision is not None else {}
        return told

    def restore(self, told: Mapping[str, Any]) -> None:
        """Goes on from what ``memory`` returned; ignores the memory of another pipeline."""
        if told.get("pipeline") != self.pipeline.text:
            return
        offers, drifted, carried = map(told.get, ("offers", "drifted", "carried"))
        if type(offers) is not int or offers < 0 or type(drifted) is not bool:
            return  # nothing that ``memory`` has made
        if not isinstance(carried, float):
            return
        self._offers, self._drifted, self._carried = offers, drifted, carried
        for decision in (self._drift, self._decay):
            if decision is not None:
                decision.restore(told)

    def _before(self, data: Any) -> str | None:
        """The reason to skip the version before it is made; None if there is none.

        Every decision is evaluated, because detectors must see all data.
        """
        reasons = []
        if self._every is not None:
            save, skip = self._every.save, self._every.skip
            if self._offers % (save + skip) >= save:
                reasons.append(f"{self._every.text} skips it")
        self._offers += 1
        if self._drift is not None:
            # A drift counts until a version is saved, which another decision may delay.
            self._drifted = self._drift.drifted(data) or self._drifted
            if not self._drifted:
                reasons.append(f"{self._drift.text} saw no drift")
        return reasons[0] if reasons else None

    def _skipped(self, live: Arrays, reason: str, loss: float | None) -> Decision:
        if self._carries and loss is not None:
            self._carried += loss
        return Decision(False, live, reason)


class _Form:
    """Converts the flat arrays of one state back to the state."""

    def __init__(self, state: Mapping[str, Any]) -> None:
        parsed = from_state(state)
        ids = [BlobId(bytes(32))] * len(parsed.contents)  # no content is looked up by these
        self._skeleton = parsed.skeleton()
        # A state has no views, so that no content is read either.
        self._entry = entry_from(parsed, "state", ids, self._skeleton)
        self._keys = {tensor.content: tensor.key for tensor in parsed.tensors}
        self.weights = Weights.of(parsed)
        self.specs = {tensor.key: tensor.spec for tensor in parsed.tensors}

    def state(self, arrays: Arrays) -> dict[str, Any]:
        """The state, which borrows the memory of the arrays. Empty tensors have none."""

        def content(i: int) -> memoryview:
            array = arrays.get(self._keys[i])
            return memoryview(b"") if array is None else array_bytes(array)

        made: dict[str, Any] = to_state(self._entry, self._skeleton, content)
        return made


class StateReducer:
    """A ``Production`` for nested states of torch tensors, which are staged and committed.

    It starts from the newest version of ``name`` on ``branch`` (None: at HEAD), and works in the
    writer thread.
    """

    _form: _Form

    def __init__(
        self, repo: Repository, name: str, pipeline: str, *,
        evaluate: Evaluate | None, monitor: Monitor | None, exact: Collection[str],
        named: Collection[str], origin: CommitId | None, branch: str | None,
    ) -> None:  # fmt: skip
        """``named``: the names in ``exact`` that the user wrote, to be checked for errors.

        ``origin`` is the version that the training resumed from, whose decisions are continued.
        """
        self._repo = repo
        self._name = name
        self._origin = origin
        self._branch = branch
        self._unseen = frozenset(named)
        self._skipped = False  # since the last version
        judge = evaluate and (lambda arrays, data: evaluate(self._form.state(arrays), data))
        self._engine = Production(pipeline, evaluate=judge, monitor=monitor, exact=exact)
        self._begun = False
        self.check = self._engine.check
        self.memory = self._engine.memory
        self.take_back = self._engine.take_back

    def check_names(self, state: Mapping[str, Any]) -> None:
        """Raises WrongUsage if the first state lacks a tensor that the user named as exact."""
        if not self._unseen:
            return
        names = [tensor.key for tensor in from_state(state).tensors]
        for missing in sorted(map(str, self._unseen.difference(names))):
            close = get_close_matches(missing, names, n=3)
            raise WrongUsage(
                f"exact names {missing}, but no tensor of the model has that name",
                hint=f"did you mean {' or '.join(close)}?"
                if close
                else "the names are those of the model's state_dict()",
            )
        self._unseen = frozenset()

    def offer(
        self, state: Mapping[str, Any], *, loss: float | None, data: Any
    ) -> dict[str, Any] | None:
        """New production weights in the form of ``state``, or None if the version is skipped.

        They borrow the engine's memory: commit them, but do not pass them to callers.
        """
        self._form = form = _Form(state)
        if not self._begun:
            self._engine.live, self._engine.dtypes = self._previous(form), form.weights.dtypes
            if self._engine.live is not None:
                self._engine.restore(self._remembered())
            self._begun = True
        decision = self._engine.offer(form.weights.arrays, loss=loss, data=data)
        self._skipped = not decision.saved
        return form.state(decision.production) if decision.saved else None

    def live_state(self) -> dict[str, Any]:
        """A copy of the production weights that are live."""
        live = self._engine.live or {}
        return self._form.state({name: np.array(array) for name, array in live.items()})

    def _previous(self, form: _Form) -> Arrays | None:
        """The newest version, if it has the same tensors as the model now."""
        context = self._repo.context
        entry = manifests.of_commit(context, self._tip()).by_path.get(self._name)
        if entry is None or not form.specs:
            return None
        there = {t.key: t.spec for t in entry.tensors}
        if any(there.get(name) != spec for name, spec in form.specs.items()):
            return None
        found = weights_before(context, entry, list(form.specs))
        return found if len(found) == len(form.specs) else None

    def remember(self) -> None:
        """Writes what the decisions remember since the last version, for the next Recorder.

        Batches that are no tensors, numbers and texts cannot be kept: ``dsed`` then begins anew.
        """
        context = self._repo.context
        at, memory = self._tip(), self.memory()
        if not self._skipped or at is None or not memory:
            return
        now = context.store.clock.now_ns()
        try:
            parts = encode(ServedVersion(memory, at, now))
        except (UnsupportedTensor, InvalidName):
            less = {k: v for k, v in memory.items() if k not in {"batches", "seen", "accuracy"}}
            parts = encode(ServedVersion(less, at, now))
        context.store.fs.write_atomic(self._record(), b"".join(parts))

    def _tip(self) -> CommitId | None:
        return tip(self._repo.context, self._branch, new=True).commit

    def _record(self) -> Path:
        name = blake3(self._name.encode()).hexdigest(16)
        return self._repo.context.store.folder / f"decisions-{name}"

    def _remembered(self) -> Mapping[str, Any]:
        """What was remembered at the newest version, or with the version that was resumed."""
        context = self._repo.context
        at, path = self._tip(), self._record()
        if self._origin is None and context.store.fs.stat(path) is not None:
            with suppress(MvcError):
                data = context.store.fs.read_bytes(path, memory_bytes() // _PART)
                kept = decode(memoryview(data), str(path))
                if kept.commit == at:
                    return kept.state
        entries = manifests.of_commit(context, self._origin or at).by_path
        entry = entries.get(training_path(self._name))
        if entry is None or entry.format != "state":
            return {}
        keys = [t.key for t in entry.tensors if t.key.startswith("decisions.")]
        arrays = weights_before(context, entry, keys)
        header = parse_header(skeleton_of(context, entry)[LENGTH_BYTES:], entry.path)
        state = structure.decode(header["__metadata__"]["mvc"], lambda _, key: arrays.get(key))
        found: Mapping[str, Any] = state.get("decisions") or {}
        return found
