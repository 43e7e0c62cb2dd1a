"""The history of a version, newest first, each ancestor once, read only as far as asked for."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from heapq import heappop, heappush
from itertools import islice

from mvc.errors import DamagedData, WrongUsage
from mvc.ids import CommitId
from mvc.model.commit import Commit
from mvc.repo import deployments
from mvc.repo.context import Context
from mvc.repo.history.drawing import GraphRow, graph_lines
from mvc.repo.history.entry import LogEntry
from mvc.repo.lookup import commits, manifests
from mvc.repo.lookup import refs as pointers
from mvc.repo.lookup.ancestry import Ancestors, is_ancestor, place
from mvc.repo.lookup.revisions import resolve
from mvc.store.snapshot import Snapshot

__all__ = ["GraphRow", "LogEntry", "graph_lines", "is_ancestor", "is_reset_point", "log"]


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

    ``since`` and ``until`` (ns, inclusive) bound the commit time. With ``target`` only
    versions that a deployment there, not retracted, made live, by time of the newest such
    deployment, which the bounds then mean. Nothing is read beyond what is taken.
    Raises UnknownRevision, UnknownTarget, WrongUsage at once, and DamagedData where the
    history goes on with what is lost; with ``incomplete`` that is noted there, and what is
    left of the history follows.
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
    """Whether every blob of a version is stored as a full record; not if it was forgotten."""
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
    """Goes on below ``since``: an imported checkpoint may be older than its parent."""
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
    except DamagedData as error:  # from here on nobody knows what comes before ``start``
        if incomplete is None:
            raise
        incomplete.append(error)


def _names(context: Context) -> dict[CommitId, list[str]]:
    names: dict[CommitId, list[str]] = defaultdict(list)
    at = pointers.head_if_known(context)
    if at.commit is not None:
        names[at.commit].append(pointers.HEAD)
    for ref in pointers.branches(context):
        names[ref.commit].append(ref.name)
    for ref in pointers.tags(context):
        names[ref.commit].append(f"tag: {ref.name}")
    return dict(names)
