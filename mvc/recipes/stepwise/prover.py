"""Checks that a training can be repeated: trains again, and compares the weights bit for bit.

The training records many versions. Only some versions, the *full states*, store the whole training
state. A replay (a repetition of the training) starts from a full state. A *segment* consists of the
versions after one full state, up to and including the next full state. The prover replays segment
after segment. A version is proven if the replay computes the same weights. Then the prover deletes
the stored weights of proven versions, because a replay can compute them. It keeps the weights of
full states and of the newest version, and weights whose recovery by replay would take longer than
``store.max_recovery``.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from queue import SimpleQueue

from msgspec.structs import replace

from mvc.api import Repository
from mvc.errors import MvcError
from mvc.ids import CommitId
from mvc.recipes.replay import ReplayOptions, ReplayProcess, replaying
from mvc.recipes.weights import drop_steps
from mvc.training.step_notes import ProofReport


class Prover:
    """A thread that replays the versions which this process records.

    ``report``: the results. If ``prove`` is false, there is no thread, and all methods do nothing.
    """

    def __init__(self, repo: Repository, *, prove: bool) -> None:
        self._repo = repo
        self._steps: dict[CommitId, int] = {}
        self._ends: SimpleQueue[CommitId | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self.report = ProofReport()
        if prove:
            self._thread = threading.Thread(target=self._run, name="mvc-prover", daemon=True)
            self._thread.start()

    def note_version(self, commit: CommitId, step: int, *, ends: bool) -> None:
        """Notes a version to replay. ``step``: the number of the version's training step.

        ``ends``: whether the version is the last version of a segment. If so, the thread replays
        this segment.
        """
        if self._thread is not None:
            self._steps[commit] = step
            if ends:
                self._ends.put(commit)

    def finish(self) -> None:
        """Waits until the thread has replayed all noted versions."""
        if self._thread is not None:
            self._ends.put(None)
            self._thread.join()
            self.report = replace(
                self.report,
                # Versions that are still in ``_steps`` were not replayed: the thread failed.
                unproven=(*self.report.unproven, *self._steps.values()),
            )

    def _run(self) -> None:
        with (
            self._reporting_errors(),
            self._repo.storage.work_folder() as folder,
            ReplayProcess(folder) as worker,
        ):
            while (end := self._ends.get()) is not None:
                self._replay(end, worker)
            if self._steps:
                self._replay([*self._steps][-1], worker)

    def _replay(self, end: CommitId, worker: ReplayProcess) -> None:
        unproven, dropped = [*self._steps], list[CommitId]()
        versions, repo = unproven[: unproven.index(end) + 1], self._repo
        # ``trusted``: the stored code of ``end`` may run, because this process recorded ``end``.
        with self._reporting_errors(), replaying(repo, end, ReplayOptions(trusted={end}), worker):
            pass
        proofs, steps = repo.storage.proofs(versions), {v: self._steps.pop(v) for v in versions}
        with self._reporting_errors():
            dropped = drop_steps(repo, end) if proofs else []
        self.report = replace(
            self.report,
            proven=self.report.proven + len(proofs),
            dropped=self.report.dropped + len(dropped),
            unproven=(*self.report.unproven, *(steps[v] for v in versions if v not in proofs)),
        )

    @contextmanager
    def _reporting_errors(self) -> Iterator[None]:
        """Catches an error of mvc or of the operating system, and adds it to the report."""
        try:
            yield
        except (MvcError, OSError) as error:
            self.report = replace(self.report, why=str(error))
