"""Proves versions by replaying their steps, one segment between full states after the other."""

from __future__ import annotations

import threading
from collections.abc import Collection
from queue import SimpleQueue

from mvc.api import Repository
from mvc.errors import MvcError
from mvc.ids import CommitId
from mvc.recipes.recipe import segment
from mvc.recipes.replay import ReplayOptions, made_again
from mvc.recipes.weights import drop_steps
from mvc.training.step_notes import ProofReport


class Prover:
    """Replays what this process recorded, in a thread of its own; nothing without ``prove``."""

    def __init__(self, repo: Repository, *, prove: bool) -> None:
        self._repo = repo
        self._steps: dict[CommitId, int] = {}
        self._last: CommitId | None = None
        self._ends: SimpleQueue[CommitId | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self.report = ProofReport()
        if prove:
            self._thread = threading.Thread(target=self._run, name="mvc-prover", daemon=True)
            self._thread.start()

    def made(self, commit: CommitId, step: int, *, ends: bool) -> None:
        """A version was made by a step; ``ends``: it is the last one of its segment."""
        self._steps[commit], self._last = step, None if ends else commit
        if ends:
            self._ends.put(commit)

    def finish(self) -> None:
        """Waits until all segments were replayed."""
        if self._thread is not None:
            for end in (self._last, None) if self._last is not None else (None,):
                self._ends.put(end)
            self._thread.join()

    def _run(self) -> None:
        while (end := self._ends.get()) is not None:
            before = self.report
            why, versions = before.why, [*segment(self._repo, end)]
            dropped: Collection[CommitId] = ()
            try:
                with made_again(self._repo, end, ReplayOptions(trusted={end})):
                    pass
            except MvcError as error:
                why = error.message
            proofs = self._repo.storage.proofs(versions)
            try:
                dropped = drop_steps(self._repo, end)
            except MvcError as error:
                why = error.message
            differ = [self._steps[each] for each in versions if each not in proofs][:1]
            self.report = ProofReport(
                proven=before.proven + len(proofs),
                dropped=before.dropped + len(dropped),
                unproven=(*before.unproven, *differ),
                why=why,
            )
