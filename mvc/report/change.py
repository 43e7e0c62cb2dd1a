"""The first version that labels a sample differently from the version before it."""

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
    repo: Repository,
    predict: Predict,
    sample: Any,
    *,
    target: str | None = None,
    since: Time | None = None,
    until: Time | None = None,
) -> FirstChange | None:
    """The first version that labels a sample differently; None if the label never changes.

    ``predict(state, sample)`` returns the label that a version gives the sample: a comparable
    value, or an array or tensor of one element. With ``target`` the versions are those that were
    live there, including the one live at ``since``; without it they are HEAD and its ancestors, by
    commit time. Every version is decoded once. Raises NoDeployment (with ``target``) or
    UnknownRevision if no version lies in that time; errors of ``predict`` pass.
    """
    if target is not None and since is not None:
        with suppress(NoDeployment):  # nothing was live then
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
        raise kind("there is no version in this time", hint="see 'mvc log' and 'mvc deploy --list'")
    return None
