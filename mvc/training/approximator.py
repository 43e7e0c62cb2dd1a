"""Approximates the states that a Recorder stores, each by the newest version plus a step.

The training is not changed. What it resumes from is the approximated state.
"""

from __future__ import annotations

import warnings
from collections.abc import Collection
from typing import TYPE_CHECKING

from mvc.adapters.hashing import hash_finally
from mvc.adapters.parsed import ParsedFile
from mvc.adapters.replaced import ReplacedFile
from mvc.api import FileEntry
from mvc.errors import MvcError
from mvc.ids import BlobId
from mvc.lossy import Reducer
from mvc.maintenance.repack.super_steps import STEP, join
from mvc.pipelines import Pipeline
from mvc.repo.commit.reduced_file import reduced
from mvc.repo.lookup import manifests
from mvc.repo.lookup.refs import tip

if TYPE_CHECKING:
    from mvc.api import Repository


DUE = 64
_SHARE = 8
"""Joining steps reads the whole history, so an eighth of it is new each time."""


class Approximator:
    """Holds what it approximated last, by path, so that no version has to be recovered for it."""

    def __init__(self, repo: Repository, pipeline: Pipeline, branch: str | None) -> None:
        self._context = repo.context
        self._pipeline = pipeline
        self._branch = branch
        self._held: dict[str, dict[BlobId, memoryview]] = {}
        self._waiting = 0  # versions since steps were last joined
        self._considered = 0  # the operation before which runs were considered already
        self._told = False  # of a failure to join

    def committed(self) -> None:
        """Counts a version; joins steps to super-steps once many are new (``DUE``).

        An error is no reason to stop recording: all versions are stored already. The first one
        is told as a warning.
        """
        self._waiting += 1
        if self._waiting < max(DUE, self._context.store.snapshot.position.sequence // _SHARE):
            return
        self._waiting = 0
        seen = self._context.store.snapshot.position.sequence
        try:
            join(self._context, since=self._considered)
            self._considered = seen
        except (MvcError, MemoryError) as error:
            if not self._told:
                self._told = True
                why = str(error) or "not enough memory"
                text = (
                    f"steps were not joined to super-steps ({why}); every version is stored, and"
                    f" repo.storage.repack(super_step={STEP}) joins them later"
                )
                warnings.warn(text, RuntimeWarning, 2)

    def approximated(
        self, path: str, parsed: ParsedFile, exact: Collection[str] = ()
    ) -> tuple[ReplacedFile, FileEntry]:
        """A state against the newest version of ``path``, and its entry with ids and root.

        ``exact`` names what stays as it is. Without an earlier version nothing is approximated,
        and the file has no steps. It borrows exact tensors from the state.
        """
        at = tip(self._context, self._branch, new=True).commit
        entry = manifests.of_commit(self._context, at).by_path.get(path)
        held = self._held.pop(path, None)
        reducer = Reducer(self._pipeline, exact)
        made = reduced(self._context, reducer, parsed, entry, held=held)
        done = hash_finally(made, path)
        self._held[path] = {done.contents[i].id: made.copied(i) for i in made.steps or {}}
        return made, done
