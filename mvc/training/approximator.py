"""Approximates the states that a Recorder stores, each by the newest version plus a step.

The training is not changed. What it resumes from is the approximated state.
"""

from __future__ import annotations

import warnings
from collections.abc import Collection, Mapping
from functools import partial
from typing import Any

from mvc.api import FileEntry, Repository, TensorSpec
from mvc.errors import DamagedData, MvcError, StateForgotten, UnknownRevision
from mvc.ids import BlobId, CommitId
from mvc.lossy import Arrays, Reducer
from mvc.pipelines import Pipeline
from mvc.state import StateFile

DUE = 64
_SHARE = 8
"""Joining steps reads the whole history, so an eighth of it is new each time."""


class Approximator:
    """Holds what it approximated last, by path, so that no version has to be recovered for it."""

    def __init__(self, repo: Repository, pipeline: Pipeline, branch: str | None) -> None:
        self._repo = repo
        self._pipeline = pipeline
        self._branch = branch
        self._held: dict[str, dict[BlobId, Any]] = {}
        self._waiting = 0  # versions since steps were last joined
        self._joined = 0  # the operation up to which they were
        self._told = False  # of a failure to join

    def committed(self) -> None:
        """Counts a version; joins steps to super-steps once many are new (``DUE``).

        An error is no reason to stop recording: all versions are stored already. The first one
        is told as a warning.
        """
        self._waiting += 1
        if self._waiting < max(DUE, self._joined // _SHARE):
            return
        self._waiting = 0
        try:
            self._joined = self._repo.storage.join_steps(since=self._joined)
        except (MvcError, MemoryError) as error:
            if not self._told:
                self._told = True
                why = str(error) or "not enough memory"
                text = (
                    f"steps were not joined to super-steps ({why}); every version is stored, and"
                    " repo.storage.join_steps() joins them later"
                )
                warnings.warn(text, RuntimeWarning, 2)

    def approximated(
        self, path: str, state: Mapping[str, Any], exact: Collection[str] = ()
    ) -> StateFile:
        """A state against the newest version of ``path``; it borrows exact tensors from the state.

        ``exact`` names what stays as it is. Without an earlier version nothing is approximated.
        """
        file, reducer = StateFile.of(state), Reducer(self._pipeline, exact)
        at = newest(self._repo, self._branch)
        entry = None if at is None else self._repo.manifest(at).by_path.get(path)
        held = self._held.pop(path, {})
        if at is None or entry is None:
            made = file.reduced(reducer, lambda _: {}, {})
        else:
            ids = {tensor.key: tensor.id for tensor in entry.tensors}
            before = partial(stored, self._repo, at, entry, held=held)
            try:
                made = file.reduced(reducer, before, ids)
            except (DamagedData, StateForgotten):
                made = file.reduced(reducer, lambda _: {}, {})
        approximated, arrays = made.approximated, made.arrays().arrays
        self._held[path] = {
            t.id: arrays[t.key] for t in made.entry.tensors if t.key in approximated
        }
        return made


def newest(repo: Repository, branch: str | None) -> CommitId | None:
    """The newest version of a branch, or of HEAD; None before the first one."""
    try:
        return repo.head(branch).commit
    except UnknownRevision:
        return None


def stored(
    repo: Repository,
    version: CommitId,
    entry: FileEntry,
    specs: Mapping[str, TensorSpec],
    *,
    held: Mapping[BlobId, Any],
) -> Arrays:
    """The tensors of a file of a version that have these names and specs; do not modify them.

    ``held`` are contents in memory; all others are recovered and verified.
    """
    fitting = [t for t in entry.tensors if t.view is None and specs.get(t.key) == t.spec]
    found = {t.key: held[t.id] for t in fitting if t.id in held}
    if missing := [tensor.key for tensor in fitting if tensor.key not in found]:
        tensors = repo.open_file(version, entry.path, counted=False).tensors(missing)
        found |= StateFile.of(tensors).arrays().arrays
    return found
