"""What the last versions of a repository hold of trainings, so that none is read twice."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mvc.adapters.optimizers.states import FileState, ParameterId
    from mvc.adapters.optimizers.weights import WeightKey

_MOST = 32


class Trainings:
    """The states that files hold, by the id of a file's content, and weights that were matched."""

    def __init__(self) -> None:
        self._states: OrderedDict[bytes, FileState] = OrderedDict()
        self._matched: OrderedDict[Hashable, Mapping[ParameterId, WeightKey]] = OrderedDict()

    def state(self, path: str, content: bytes) -> FileState | None:
        """What the file with this ``content_id`` holds, if that is known."""
        state = self._states.get(content)
        return state if state is not None and state.path == path else None

    def remember(self, content: bytes, state: FileState) -> None:
        self._states[content] = state
        if len(self._states) > _MOST:
            self._states.popitem(last=False)

    def matched(self, step: Hashable) -> Mapping[ParameterId, WeightKey] | None:
        """The weights that the optimizer ``step`` was found to move, earlier in the training."""
        return self._matched.get(step)

    def remember_matched(self, step: Hashable, weights: Mapping[ParameterId, WeightKey]) -> None:
        self._matched[step] = weights
        if len(self._matched) > _MOST:
            self._matched.popitem(last=False)
