"""The history of a version, newest first, each ancestor once, read only as far as asked for.

Orphans are versions that only a detached HEAD led to, and no branch or tag.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from heapq import heappop, heappush
from itertools import islice

from mvc.dataclasses import dataclass
from mvc.errors import DamagedData, WrongUsage
from mvc.ids import CommitId
from mvc.model.commit import Commit
from mvc.repo import deployments
from mvc.repo.context import Context, noting
from mvc.repo.deployments import Deployed
from mvc.repo.lookup import commits, manifests, refs
from mvc.repo.lookup.commits import Ancestors, newest_first
from mvc.repo.lookup.revisions import Rev, resolve
from mvc.repo.times import within
from mvc.store.snapshot import Snapshot

__all__ = ["LogEntry", "Orphans", "is_reset_point", "log", "orphans"]


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
    rev: Rev = "HEAD",
    *,
    limit: int | None = None,
    target: str | None = None,
    since: int | None = None,
    until: int | None = None,
    reset_points: bool = False,
    incomplete: list[DamagedData] | None = None,
) -> Iterator[LogEntry]:
    """``Repository.log``: parents follow children; times are in ns since 1970.

    The iterator reads only what is taken.
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
    waiting: tuple[CommitId, ...] = (start,)
    while True:
        for id_ in waiting:
            if id_ not in known:
                known.add(id_)
                with noting(incomplete):
                    recorded, commit = commits.placed(snapshot, id_)
                    heappush(heap, (-commit.time_ns, newest_first(recorded, commit), commit))
        if not heap:
            return
        commit = heappop(heap)[2]
        waiting = commit.parents
        if within(commit.time_ns, since, until):
            yield commit


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
    with noting(incomplete):  # after an error the ancestors of ``start`` are not known further
        for deployed in deployments.on_target(snapshot, target, until=until, incomplete=incomplete):
            if since is not None and deployed.time_ns < since:
                return
            id_ = deployed.commit
            if not deployed.retracted and id_ not in seen and id_ in ancestors:
                seen.add(id_)
                yield commits.placed(snapshot, id_)[1]


def _names(context: Context) -> dict[CommitId, list[str]]:
    names: dict[CommitId, list[str]] = {}
    if (tip := refs.head_if_known(context).commit) is not None:
        names[tip] = [refs.HEAD]
    for ref in refs.branches(context):
        names.setdefault(ref.commit, []).append(ref.name)
    for ref in refs.tags(context):
        names.setdefault(ref.commit, []).append(f"tag: {ref.name}")
    return names


@dataclass(frozen=True, slots=True)
class Orphans:
    """``count`` orphaned versions, of which ``newest`` is the tip.

    ``deployed`` of them were deployed or are ancestors of a deployed one; gc keeps those.
    """

    newest: CommitId
    count: int
    deployed: int


def orphans(context: Context, tip: CommitId, to: CommitId | None = None) -> Orphans | None:
    """``tip`` and its ancestors that no branch, no tag and not ``to`` leads to; None if none."""
    snapshot = context.fresh()
    names = {ref.commit for ref in (*refs.branches(context), *refs.tags(context))}
    reached = Ancestors(snapshot, names if to is None else names | {to})
    found: dict[CommitId, int] = {}  # where each was published
    waiting = [tip]
    while waiting:
        id_ = waiting.pop()
        if id_ not in found and id_ not in reached:
            recorded, commit = commits.placed(snapshot, id_)
            found[id_] = recorded.offset
            waiting.extend(commit.parents)
    if not found:
        return None
    # A deployment that keeps one of them was recorded after the first was published.
    kept = Ancestors(snapshot, _deployed_since(snapshot, min(found.values())))
    return Orphans(tip, len(found), sum(id_ in kept for id_ in found))


def _deployed_since(snapshot: Snapshot, offset: int) -> Collection[CommitId]:
    """The versions of deployments recorded from a journal offset on, retracted ones included."""
    found = set()
    for target in snapshot.targets():

        def look(target: str = target) -> list[CommitId]:
            return [
                deployment.commit
                for at in snapshot.deployments_on(target, offset)
                for deployment in snapshot.entry(at).entry.deployments
            ]

        found.update(snapshot.retry_on_rewrite(look))
    return found
