"""Finds the first version whose model labels a sample differently from the previous version."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

from msgspec import Struct

from mvc.api import Commit, Repository
from mvc.errors import NoDeployment, UnknownRevision
from mvc.ids import CommitId
from mvc.times import Time

Predict = Callable[[Any, Any], Any]
"""Called with a version's state and a sample. Returns the sample's label."""


class FirstChange(Struct, frozen=True):
    """The first version that labels the sample differently from the previous version.

    ``time_ns``: when the version went live on the target; without a target, when it was committed.
    ``before``: the label by the version ``previous``. ``after``: the label by ``commit``.
    ``evaluated``: the number of versions that were evaluated.
    """

    commit: CommitId
    time_ns: int
    before: Any
    after: Any
    previous: CommitId
    evaluated: int


def first_change(
    repo: Repository,
    predict: Predict,
    sample: Any,
    *,
    target: str | None = None,
    since: Time | None = None,
    until: Time | None = None,
) -> FirstChange | None:
    """The first version that labels a sample differently; None if the label never changes.

    ``predict(state, sample)`` returns a label: a comparable value, or an array or tensor of one
    element. With ``target``, compares the versions that were live on the target from ``since`` to
    ``until``. Without ``target``, compares HEAD and its ancestors in order of commit time. If there
    is no version from ``since`` to ``until``, raises NoDeployment with ``target``, and
    UnknownRevision without ``target``.
    """
    if target is not None and since is not None:
        with suppress(NoDeployment):  # no version was live at ``since``
            since = repo.live(target, at=since).since_ns
    before: Any = None
    previous: CommitId | None = None
    count = 0
    for count, (version, state) in enumerate(repo.iter_versions(since, until, target), start=1):
        label = predict(state, sample)
        label = label.item() if hasattr(label, "item") else label
        commit = version.id if isinstance(version, Commit) else version.commit
        if previous is not None and label != before:
            return FirstChange(
                commit, version.time_ns, before, label, previous=previous, evaluated=count
            )
        before, previous = label, commit
    if not count:
        kind = UnknownRevision if target is None else NoDeployment
        raise kind(
            "no version is in this period", hint="'mvc log' and 'mvc deploy --list' show the times"
        )
    return None
