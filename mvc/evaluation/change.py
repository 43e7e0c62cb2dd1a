"""Since when does the model say something else? One sample asked of every version, in order."""

from __future__ import annotations

from collections.abc import Callable
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
    """The first version that labels the sample otherwise than the version before it.

    ``time_ns`` is when it went live on the target, or without one when it was committed;
    ``previous`` is the version before, which still said ``before``. ``looked_at`` counts the
    versions that were asked.
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
    """When a sample's label changed for the first time; None if it never did.

    ``predict(state, sample)`` gives the label that a version's state has for the sample: any
    value that can be compared, or an array or tensor of one element. With ``target`` the
    versions are those that were live there, the one that was live at ``since`` included;
    without it HEAD and its ancestors, by commit time. Every version is decoded once. Raises
    NoDeployment or UnknownRevision if there is no version in that time, and what ``predict``
    raises.
    """
    if target is not None and since is not None:
        since = _went_live(repo, since, target)
    before: Any = None
    previous: CommitId | None = None
    versions = repo.iter_versions(since, until, target)
    for looked_at, (version, state) in enumerate(versions, start=1):
        label = _plain(predict(state, sample))
        commit = version.id if isinstance(version, Commit) else version.commit
        if previous is not None and label != before:
            return Change(commit, version.time_ns, before, label, previous, looked_at)
        before, previous = label, commit
    if previous is None:
        kind = UnknownRevision if target is None else NoDeployment
        raise kind("there is no version in this time", hint="see 'mvc log' and 'mvc deployments'")
    return None


def _went_live(repo: Repository, moment: Time, target: str) -> Time:
    """When the version that was live at a moment had gone live; the moment if there was none."""
    try:
        return repo.live(moment, target).time_ns
    except NoDeployment:
        return moment


def _plain(label: Any) -> Any:
    """A tensor or array of one element as the number that it holds."""
    return label.item() if hasattr(label, "item") else label
