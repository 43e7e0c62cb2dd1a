"""The history of a version, newest first, each ancestor once, read only as far as asked for."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import islice

from mvc.errors import DamagedData, WrongUsage
from mvc.ids import CommitId
from mvc.model.commit import Commit
from mvc.repo import deployments
from mvc.repo.context import Context
from mvc.repo.deployments import Deployed
from mvc.repo.lookup import commits, manifests, refs
from mvc.repo.lookup.ancestry import Ancestors, place
from mvc.repo.lookup.revisions import resolve
from mvc.store.snapshot import Snapshot

__all__ = ["LogEntry", "is_reset_point", "log"]


@dataclass(frozen=True, slots=True)
class LogEntry:
    """A commit with its names and deployments.

    ``refs``: ``HEAD``, branches, and tags as ``tag: NAME``. ``deployments``: all, retracted ones
    included, in the order they were recorded. ``reset_point`` is None if it was not asked for.
    ``forgotten_ns`` is when the state was forgotten, in ns since 1970, or None.
    """

    id: CommitId
    commit: Commit
    refs: tuple[str, ...]
    deployments: tuple[Deployed, ...]
    reset_point: bool | None = None
    forgotten_ns: int | None = None


def log(
    context: Context,
    rev: str | CommitId = "HEAD",
    *,
    limit: int | None = None,
    target: str | None = None,
    since: int | None = None,
    until: int | None = None,
    reset_points: bool = False,
    incomplete: list[DamagedData] | None = None,
) -> Iterator[LogEntry]:
    """A version and its ancestors by commit time, newest first; parents follow children.

    ``since`` and ``until`` (ns since 1970, inclusive) bound the commit time. With ``target``,
    only versions with a deployment there that is not retracted, by the time of the newest such
    deployment; the bounds apply to that time. The iterator reads only what is taken.
    Raises UnknownRevision, UnknownTarget and WrongUsage at once. Raises DamagedData where an
    entry of the history is lost; with ``incomplete`` the error is appended to that list and the
    rest of the history follows.
    """
    if limit is not None and limit < 0:
        raise WrongUsage(f"a limit of {limit} versions makes no sense")
    snapshot = context.fresh()
    start = resolve(context, rev)
    if target is None:
        found = _by_commit_time(snapshot, start, since, until, incomplete)
    else:
        deployments.check_target(context, target)
        found = _by_deployment(snapshot, start, target, since, until, incomplete)
    names = _names(context)
    return (
        LogEntry(
            commit.id,
            commit,
            tuple(names.get(commit.id, ())),
            deployments.of_commit(snapshot, commit.id, incomplete),
            is_reset_point(context, commit.id) if reset_points else None,
            manifests.forgotten_ns(context, commit.id),
        )
        for commit in islice(found, limit)
    )


def is_reset_point(context: Context, commit: CommitId) -> bool:
    """Whether every blob of a version is stored in full; False for a forgotten version."""
    if manifests.forgotten_ns(context, commit) is not None:
        return False
    graph = context.store.graph
    return all(
        any(not step.member.base for step in graph.codings(content.id))
        for entry in manifests.of_commit(context, commit).entries
        for content in entry.contents
    )


def _by_commit_time(
    snapshot: Snapshot,
    start: CommitId,
    since: int | None,
    until: int | None,
    incomplete: list[DamagedData] | None,
) -> Iterator[Commit]:
    """Continues below ``since``, because an imported checkpoint may be older than its parent."""
    heap: list[tuple[int, tuple[int, int], Commit]] = []
    known: set[CommitId] = set()

    def push(id_: CommitId) -> None:
        if id_ not in known:
            known.add(id_)
            try:
                recorded, commit = commits.placed(snapshot, id_)
            except DamagedData as error:
                if incomplete is None:
                    raise
                incomplete.append(error)
                return
            offset, position = place(recorded, commit)
            heappush(heap, (-commit.time_ns, (-offset, -position), commit))

    push(start)
    while heap:
        commit = heappop(heap)[2]
        if (since is None or commit.time_ns >= since) and (
            until is None or commit.time_ns <= until
        ):
            yield commit
        for parent in commit.parents:
            push(parent)


def _by_deployment(
    snapshot: Snapshot,
    start: CommitId,
    target: str,
    since: int | None,
    until: int | None,
    incomplete: list[DamagedData] | None,
) -> Iterator[Commit]:
    ancestors = Ancestors(snapshot, [start])
    seen: set[CommitId] = set()
    try:
        for deployed in deployments.on_target(snapshot, target, until=until, incomplete=incomplete):
            if since is not None and deployed.time_ns < since:
                return
            id_ = deployed.commit
            if not deployed.retracted and id_ not in seen and id_ in ancestors:
                seen.add(id_)
                yield commits.placed(snapshot, id_)[1]
    except DamagedData as error:  # the ancestors of ``start`` are not known further
        if incomplete is None:
            raise
        incomplete.append(error)


def _names(context: Context) -> dict[CommitId, list[str]]:
    names: dict[CommitId, list[str]] = defaultdict(list)
    at = refs.head_if_known(context)
    if at.commit is not None:
        names[at.commit].append(refs.HEAD)
    for ref in refs.branches(context):
        names[ref.commit].append(ref.name)
    for ref in refs.tags(context):
        names[ref.commit].append(f"tag: {ref.name}")
    return dict(names)
