"""The first version that labels a sample differently from the version before it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from msgspec import Struct

from mvc.ids import CommitId
from mvc.model.commit import Commit
from mvc.repo.deployments import Deployed

Predict = Callable[[Any, Any], Any]
"""From a version's state and a sample to a label: a comparable value, or an array of one."""


class FirstChange(Struct, frozen=True):
    """The first version whose label differs from the previous version's.

    ``time_ns`` says when it went live on the target, or without a target when it was committed,
    in nanoseconds since 1970. ``previous`` is the version before it, whose label is ``before``.
    ``evaluated`` counts the versions that were evaluated.
    """

    commit: CommitId
    time_ns: int
    before: Any
    after: Any
    previous: CommitId
    evaluated: int


def first_change(
    versions: Iterable[tuple[Commit | Deployed, Any]], predict: Predict, sample: Any
) -> tuple[FirstChange | None, int]:
    """The first change of the label along versions and their states; how many were evaluated."""
    before: Any = None
    previous: CommitId | None = None
    count = 0
    for count, (version, state) in enumerate(versions, start=1):
        label = predict(state, sample)
        label = label.item() if hasattr(label, "item") else label
        commit = version.id if isinstance(version, Commit) else version.commit
        if previous is not None and label != before:
            return FirstChange(
                commit, version.time_ns, before, label, previous=previous, evaluated=count
            ), count
        before, previous = label, commit
    return None, count
