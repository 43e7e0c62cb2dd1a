"""Production weights of a Recorder's states, from one run to the next."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import suppress
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from blake3 import blake3

from mvc.adapters.files.safetensors import LENGTH_BYTES, parse_header
from mvc.adapters.hashing import entry_from
from mvc.adapters.python.arrays import array_bytes
from mvc.adapters.python.state import from_state
from mvc.adapters.replaced import ReplacedFile
from mvc.adapters.served_version import ServedVersion, decode, encode
from mvc.errors import InvalidName, MvcError, UnsupportedTensor, WrongUsage
from mvc.ids import BlobId, CommitId
from mvc.lossy import Arrays, Evaluate, Monitor, Production
from mvc.names import training_path
from mvc.pipelines import Pipeline
from mvc.repo.commit.reduced_file import FileArrays, arrays_before
from mvc.repo.content.contents import skeleton_of
from mvc.repo.lookup import manifests
from mvc.repo.lookup.refs import tip
from mvc.structure import decode as of_structure
from mvc.system import memory_bytes

if TYPE_CHECKING:
    from mvc.api import Repository


_PART = 4  # of the machine's memory: what a file of decisions may take


class _Form:
    """Converts the flat arrays of one state back to the state."""

    def __init__(self, state: Mapping[str, Any]) -> None:
        self._parsed = from_state(state)
        ids = [BlobId(bytes(32))] * len(self._parsed.contents)  # no content is looked up by these
        # A state has no views, so that no content is read either.
        self._entry = entry_from(self._parsed, "state", ids, self._parsed.skeleton())
        self.weights = FileArrays.of(self._parsed)
        self.specs = {tensor.key: tensor.spec for tensor in self._parsed.tensors}

    def state(self, arrays: Arrays) -> dict[str, Any]:
        """The state, which borrows the memory of the arrays."""
        contents = self.weights.contents
        made = {i: array_bytes(arrays[name]) for name, i in contents.items() if name in arrays}
        nested: dict[str, Any] = ReplacedFile(self._parsed, made, {}).nested(self._entry)
        return nested


class StateReducer:
    """A ``Production`` for nested states of torch tensors, which are staged and committed.

    It starts from the newest version of ``name`` on ``branch`` (None: at HEAD), and works in the
    writer thread.
    """

    _form: _Form

    def __init__(
        self, repo: Repository, name: str, pipeline: Pipeline, *,
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
        found = arrays_before(context, entry, form.specs)
        return found if len(found) == len(form.specs) else None

    def remember(self) -> None:
        """Writes what the decisions remember since the last version, for the next Recorder.

        Batches that are no tensors, numbers and texts cannot be kept: ``dsed`` then begins anew,
        and ``guard`` with an empty reservoir.
        """
        context = self._repo.context
        at, memory = self._tip(), self.memory(samples=True)
        if at is None or not memory or not (self._skipped or "guard.samples" in memory):
            return
        now = context.store.clock.now_ns()
        try:
            parts = encode(ServedVersion(memory, at, now))
        except (UnsupportedTensor, InvalidName):
            batches = {"batches", "seen", "accuracy", "guard.samples"}
            less = {name: value for name, value in memory.items() if name not in batches}
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
        specs = {t.key: t.spec for t in entry.tensors if t.key.startswith("decisions.")}
        arrays = arrays_before(context, entry, specs)
        header = parse_header(skeleton_of(context, entry)[LENGTH_BYTES:], entry.path)
        state = of_structure(header["__metadata__"]["mvc"], lambda _, key: arrays.get(key))
        found: Mapping[str, Any] = state.get("decisions") or {}
        return found
