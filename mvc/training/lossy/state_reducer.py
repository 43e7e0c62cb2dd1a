"""StateReducer: makes production weights of staged states, in the writer thread.

Converts between nested states of torch tensors, which are staged and committed, and the flat
arrays of ``mvc.training.lossy.production``.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from difflib import get_close_matches
from typing import Any

import numpy as np

from mvc.adapters.python.arrays import array_bytes
from mvc.adapters.python.state import from_state, to_state
from mvc.codecs.pipeline import Pipeline
from mvc.errors import WrongUsage
from mvc.ids import BlobId
from mvc.model.tensor import TensorSpec
from mvc.repo.content.hashing import entry_from
from mvc.repo.lookup import manifests
from mvc.repo.lookup.refs import head
from mvc.repo.lossy.reduce import Arrays, Weights, weights_before
from mvc.repo.repository import Repository
from mvc.training.lossy.drift import Monitor
from mvc.training.lossy.dsed import Evaluate
from mvc.training.lossy.production import Production

__all__ = ["StateReducer"]

_UNHASHED = BlobId(bytes(32))


class _Form:
    """Converts the flat arrays of one state back to the state."""

    def __init__(self, state: Mapping[str, Any]) -> None:
        parsed = from_state(state)
        ids = [_UNHASHED] * len(parsed.contents)  # nothing is looked up by them
        self._skeleton = parsed.skeleton()
        self._entry = entry_from(parsed, "state", ids, self._skeleton, _no_views)
        self._keys = {tensor.content: tensor.key for tensor in parsed.tensors}
        self.weights = Weights.of(parsed)
        self.specs = {tensor.key: tensor.spec for tensor in parsed.tensors}

    def state(self, arrays: Arrays) -> dict[str, Any]:
        """The state, which borrows the memory of the arrays."""
        made: dict[str, Any] = to_state(
            self._entry, self._skeleton, lambda i: array_bytes(arrays[self._keys[i]])
        )
        return made


def _no_views(content: int) -> memoryview:
    raise AssertionError(f"content {content} of a state is looked into")


class StateReducer:
    """A ``Production`` for states. It starts from the version of ``name`` at HEAD."""

    def __init__(
        self,
        repo: Repository,
        name: str,
        pipeline: Pipeline,
        *,
        evaluate: Evaluate | None,
        monitor: Monitor | None,
        exact: Collection[str],
        named: Collection[str] = (),
    ) -> None:
        """``named``: the names in ``exact`` that the user wrote, to be checked for errors."""
        self._repo = repo
        self._name = name
        self._evaluate = evaluate
        judge = None if evaluate is None else self._judge
        self._engine = Production(pipeline, evaluate=judge, monitor=monitor, exact=exact)
        self._form: _Form | None = None
        self._unseen = frozenset(named)

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

    @property
    def check(self) -> Any:
        """``Production.check``: raises WrongUsage if a step lacks what the pipeline needs."""
        return self._engine.check

    def offer(
        self, state: Mapping[str, Any], *, loss: float | None, data: Any
    ) -> tuple[dict[str, Any] | None, str]:
        """New production weights in the form of ``state``, or None if skipped; and the reason.

        They borrow the engine's memory: commit them, but do not pass them to callers.
        """
        first = self._form is None
        self._form = form = _Form(state)
        if first:
            self._engine.begin(self._previous(form), form.weights.dtypes)
        decision = self._engine.offer(form.weights.arrays, loss=loss, data=data)
        made = form.state(decision.production) if decision.saved else None
        return made, decision.reason

    def live_state(self) -> dict[str, Any]:
        """A copy of the production weights that are live."""
        assert self._form is not None
        live = self._engine.live or {}
        return self._form.state({name: np.array(array) for name, array in live.items()})

    def take_back(self) -> None:
        """Undoes the last offer, which could not be committed."""
        self._engine.take_back()

    def _judge(self, arrays: Arrays, data: Any) -> float | tuple[float, int]:
        assert self._form is not None and self._evaluate is not None
        return self._evaluate(self._form.state(arrays), data)

    def _previous(self, form: _Form) -> Arrays | None:
        """The version at HEAD, if it has the same tensors as the model now."""
        context = self._repo.context
        context.fresh()
        at = head(context).commit
        entry = manifests.of_commit(context, at).by_path.get(self._name)
        if entry is None or not form.specs:
            return None
        there: dict[str, TensorSpec] = {t.key: t.spec for t in entry.tensors}
        if any(there.get(name) != spec for name, spec in form.specs.items()):
            return None
        found = weights_before(context, entry, list(form.specs))
        return found if len(found) == len(form.specs) else None
