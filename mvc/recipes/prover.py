"""Proves versions by replaying their steps, one segment between full states after the other."""

from __future__ import annotations

import threading
from queue import SimpleQueue

from msgspec.structs import replace

from mvc.api import Repository
from mvc.errors import MvcError
from mvc.ids import CommitId
from mvc.recipes.recipe import segment
from mvc.recipes.replay import ReplayOptions, ReplayProcess, made_again
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
        if self._thread is not None:
            self._steps[commit], self._last = step, None if ends else commit
            if ends:
                self._ends.put(commit)

    def finish(self) -> None:
        """Waits until all segments were replayed."""
        if self._thread is not None:
            if self._last is not None:
                self._ends.put(self._last)
            self._ends.put(None)
            self._thread.join()

    def _run(self) -> None:
        try:
            with self._repo.storage.work_folder() as folder, ReplayProcess(folder) as worker:
                while (end := self._ends.get()) is not None:
                    self._replay(end, worker)
        except MvcError as error:
            self.report = replace(self.report, why=error.message)

    def _replay(self, end: CommitId, worker: ReplayProcess) -> None:
        versions, why = [*segment(self._repo, end)], self.report.why
        try:
            with made_again(self._repo, end, ReplayOptions(trusted={end}), worker):
                pass
        except MvcError as error:
            why = error.message
        proofs, dropped = self._repo.storage.proofs(versions), drop_steps(self._repo, end)
        steps = {each: self._steps.pop(each) for each in versions}
        self.report = ProofReport(
            proven=self.report.proven + len(proofs),
            dropped=self.report.dropped + len(dropped),
            unproven=(*self.report.unproven, *(steps[v] for v in versions if v not in proofs)),
            why=why,
        )
