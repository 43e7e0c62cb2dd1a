"""Finds the first version that labels a sample differently, by evaluating them in order."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from mvc.api import Repository
from mvc.errors import NoDeployment, UnknownRevision
from mvc.ids import CommitId
from mvc.model.commit import Commit
from mvc.repo.repository import Time

__all__ = ["Change", "first_change"]

Predict = Callable[[Any, Any], Any]


@dataclass(frozen=True)
class Change:
    """The first version whose label differs from the previous version's.

    ``time_ns`` says when it went live on the target, or without a target when it was committed,
    in nanoseconds since 1970. ``previous`` is the version before it, whose label is ``before``.
    ``looked_at`` counts the versions that were evaluated.
    """

    commit: CommitId
    time_ns: int
    before: Any
    after: Any
    previous: CommitId
    looked_at: int


def first_change(
    repo: Repository,
    predict: Predict,
    sample: Any,
    *,
    target: str | None = None,
    since: Time | None = None,
    until: Time | None = None,
) -> Change | None:
    """The first change of a sample's label; None if the label never changes.

    ``predict(state, sample)`` returns the label a version gives the sample: any comparable
    value, or an array or tensor of one element. With ``target`` the versions are those that
    were live there, including the one live at ``since``; without it they are HEAD and its
    ancestors, by commit time. Every version is decoded once. Raises NoDeployment (with
    ``target``) or UnknownRevision if no version lies in that time; errors of ``predict`` pass.
    """
    if target is not None and since is not None:
        with suppress(NoDeployment):  # nothing was live then
            since = repo.live(since, target).time_ns
    before: Any = None
    previous: CommitId | None = None
    versions = repo.iter_versions(since, until, target)
    for looked_at, (version, state) in enumerate(versions, start=1):
        label = predict(state, sample)
        label = label.item() if hasattr(label, "item") else label
        commit = version.id if isinstance(version, Commit) else version.commit
        if previous is not None and label != before:
            return Change(commit, version.time_ns, before, label, previous, looked_at)
        before, previous = label, commit
    if previous is None:
        kind = UnknownRevision if target is None else NoDeployment
        raise kind("there is no version in this time", hint="see 'mvc log' and 'mvc deployments'")
    return None
