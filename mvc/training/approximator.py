"""Approximates the states that a Recorder commits, and stores each state as a delta.

A delta leads from the newest version to an approximation of the new state. The running training
does not change. A training that resumes starts from the approximated state.
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
"""A join of deltas reads the whole history. So the next join waits until the history has grown by
an eighth.
"""


class Approximator:
    """Approximates states. Caches the newest approximated state of each path, so that no stored
    version must be decoded to compute the next delta.
    """

    def __init__(self, repo: Repository, pipeline: Pipeline, branch: str | None) -> None:
        self._repo = repo
        self._pipeline = pipeline
        self._branch = branch
        self._cached: dict[str, dict[BlobId, Any]] = {}
        self._waiting = 0  # number of versions since the latest join
        self._joined = 0  # number of the newest operation at the latest join
        self._warned = False  # whether a failed join was reported

    def committed(self) -> None:
        """Counts a version. After ``DUE`` or more new versions, joins deltas to super-steps.

        A super-step is one delta that has the effect of several deltas. A failed join does not stop
        the recording, because all versions are stored. Only the first failure shows a warning.
        """
        self._waiting += 1
        if self._waiting < max(DUE, self._joined // _SHARE):
            return
        self._waiting = 0
        try:
            self._joined = self._repo.storage.join_steps(since=self._joined)
        except (MvcError, MemoryError) as error:
            if not self._warned:
                self._warned = True
                why = str(error) or "not enough memory"
                text = (
                    f"deltas were not joined to super-steps ({why}); every version is stored, and"
                    " repo.storage.join_steps() joins the deltas later"
                )
                warnings.warn(text, RuntimeWarning, 2)

    def approximated(
        self, path: str, state: Mapping[str, Any], exact: Collection[str] = ()
    ) -> StateFile:
        """Approximates ``state`` by a delta from the newest version of the file ``path``.

        Tensors named in ``exact`` are stored exactly, and share the memory of ``state``. If there
        is no earlier version, the whole state is stored exactly.
        """
        file, reducer = StateFile.of(state), Reducer(self._pipeline, exact)
        at = newest(self._repo, self._branch)
        entry = None if at is None else self._repo.manifest(at).by_path.get(path)
        cached = self._cached.pop(path, {})
        if at is None or entry is None:
            reduced = file.reduced(reducer, lambda _: {}, {})
        else:
            ids = {tensor.key: tensor.id for tensor in entry.tensors}
            before = partial(stored, self._repo, at, entry, cached=cached)
            try:
                reduced = file.reduced(reducer, before, ids)
            except (DamagedData, StateForgotten):
                reduced = file.reduced(reducer, lambda _: {}, {})
        approximated, arrays = reduced.approximated, reduced.arrays().arrays
        self._cached[path] = {
            t.id: arrays[t.key] for t in reduced.entry.tensors if t.key in approximated
        }
        return reduced


def newest(repo: Repository, branch: str | None) -> CommitId | None:
    """The newest version of a branch, or of HEAD if ``branch`` is None. Returns None before the
    first version.
    """
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
    cached: Mapping[BlobId, Any],
) -> Arrays:
    """The tensors of a version's file whose name, shape and dtype are in ``specs``.

    Returns arrays in ``cached`` without reading. Reads and verifies the other tensors. Do not
    modify the returned arrays.
    """
    fitting = [t for t in entry.tensors if t.view is None and specs.get(t.key) == t.spec]
    arrays = {t.key: cached[t.id] for t in fitting if t.id in cached}
    if missing := [tensor.key for tensor in fitting if tensor.key not in arrays]:
        tensors = repo.open_file(version, entry.path, counted=False).tensors(missing)
        arrays |= StateFile.of(tensors).arrays().arrays
    return arrays
