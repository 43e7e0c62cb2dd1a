"""What the page and the charts show: versions, what was live when, how far versions are apart."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence

from msgspec import Struct

from mvc.api import Annotations, Commit
from mvc.errors import DamagedData, StateForgotten
from mvc.ids import CommitId
from mvc.maintenance.history import VersionHistory
from mvc.names import is_training_key, training_files
from mvc.repo.context import Context
from mvc.repo.diff.diff import diff
from mvc.repo.history.log import names_by_commit
from mvc.repo.lookup import refs
from mvc.repo.statements.live import live_between, live_now
from mvc.report.axis import By
from mvc.times import within
from mvc.types import Progress


class Span(Struct, frozen=True):
    """``commit`` was live on a target from ``start_ns`` to ``end_ns``, in ns since 1970.

    ``author`` and ``reason`` of the deployment; empty where they are not known.
    """

    commit: CommitId
    start_ns: int
    end_ns: int
    author: str = ""
    reason: str = ""


class Excerpt(Struct, frozen=True):
    """What is looked at: versions and deployments from ``since`` to ``until``, both included, in ns
    since 1970, on an axis of time or of version numbers; None: the one that shows more.
    """

    since: int | None = None
    until: int | None = None
    by: By | None = None

    def shows(self, commit: Commit) -> bool:
        """Whether a version lies in this time."""
        return within(commit.time_ns, self.since, self.until)


class Overview(Struct, frozen=True):
    """``known``: the versions that a name or a deployment leads to, by commit time, oldest first;
    ``versions``: those of the time that is looked at. ``unreached``: how many others there are.

    ``lines``: by version its run, else its branch, else its tag. ``spans``: by target, oldest
    first; the last one ends ``now_ns``. Deployments that were retracted, are still to come or
    ended before ``view.since`` are not in them. ``live``: the targets of now by version.
    ``absent``: versions whose states never came here, which are not among the ``forgotten``.
    ``metrics`` and ``params`` of a version are also those of its annotations.
    """

    now_ns: int
    view: Excerpt
    head: CommitId | None
    known: Mapping[CommitId, Commit]
    versions: tuple[Commit, ...]
    unreached: int
    lines: Mapping[CommitId, str]
    names: Mapping[CommitId, Sequence[str]]
    live: Mapping[CommitId, Sequence[str]]
    spans: Mapping[str, Sequence[Span]]
    forgotten: frozenset[CommitId]
    absent: frozenset[CommitId]
    metrics: Mapping[CommitId, Mapping[str, float]]
    params: Mapping[CommitId, Mapping[str, str]]


def overview(context: Context, view: Excerpt) -> Overview:
    """Reads the whole journal. Raises DamagedData if entries of it are lost."""
    head, names = refs.head_if_known(context), names_by_commit(context)
    history, known = VersionHistory(), dict[CommitId, Commit]()
    spans: dict[str, list[Span]] = {}
    now = context.store.clock.now_ns()
    snapshot = context.fresh()
    for recorded in snapshot.entries():  # after the names, so that it has what they name
        entry = recorded.entry
        history.take(recorded)
        known.update((commit.id, commit) for commit in entry.commits)
    first = -(1 << 63) if view.since is None else view.since  # the earliest that can be recorded
    last = now if view.until is None else max(first, min(view.until, now))
    for each in live_between(context, first, last):
        end = now if each.until_ns is None else min(each.until_ns, now)
        span = Span(
            each.commit,
            each.since_ns,
            end,
            author=each.deployment.author,
            reason=each.deployment.reason,
        )
        spans.setdefault(each.target, []).append(span)
    there = history.reachable()
    reached = [commit for id_, commit in known.items() if history.numbers[id_] in there]
    reached.sort(key=lambda commit: commit.time_ns)
    by_id = {commit.id: commit for commit in reached}
    annotations = Annotations(context.store.snapshot)
    values = {commit.id: annotations.values(commit) for commit in reached}
    return Overview(
        now_ns=now,
        view=view,
        head=head.commit,
        known=by_id,
        versions=tuple(filter(view.shows, reached)),
        unreached=len(known) - len(reached),
        lines=_lines(by_id, head, names, {ref.name for ref in refs.remote_refs(context)}),
        names=names,
        live=live_now(context),
        spans=spans,
        forgotten=frozenset(history.forgotten.keys() - history.absent),
        absent=frozenset(history.absent),
        metrics={id_: metrics for id_, (metrics, _) in values.items()},
        params={id_: params for id_, (_, params) in values.items()},
    )


def _lines(
    known: Mapping[CommitId, Commit],
    head: refs.Head,
    names: Mapping[CommitId, Sequence[str]],
    remote: Collection[str],
) -> dict[CommitId, str]:
    """By version its run, else the branch from which first parents lead to it, else a tag.

    The current branch comes before the others; names of remotes, which are ``remote``, come last.
    """
    tips = sorted((name, id_) for id_, each in names.items() for name in each)
    tips.sort(key=lambda t: (t[0] != head.branch, t[0] in remote, t[0].startswith("tag: ")))
    found = dict[CommitId, str]()
    for name, tip in [*tips, *(("no branch", id_) for id_ in reversed(list(known)))]:
        at: CommitId | None = tip if name != "HEAD" or head.branch is None else None
        while at is not None and at in known and at not in found:
            found[at] = known[at].run or name
            at = next(iter(known[at].parents), None)
    return found


class VersionChange(Struct, frozen=True):
    """How far ``commit`` is from its first parent.

    ``layers``: by tensor of a model the L2 norm of its change and the number of its elements;
    None for one that was added, removed or has another shape. ``training``: the tensors of
    optimizers, schedulers and random generators.
    """

    commit: Commit
    layers: Mapping[str, tuple[float, int] | None]
    training: Collection[str]


class _TimeIsUp(Exception):
    """No time is left for distances."""


def changes(
    context: Context, found: Overview, *, seconds: float, most: int
) -> tuple[list[VersionChange], int]:
    """Those of HEAD and its first parents, as many as ``seconds`` allow; and how many there are.

    Oldest first, of the time that is looked at. A version whose state or whose parent's was
    forgotten, given up or is damaged is left out.
    """
    deadline, known = time.monotonic() + seconds, found.known

    def check(_done: int, _total: int, _what: str) -> None:
        if time.monotonic() > deadline:
            raise _TimeIsUp

    line, tip = [], found.head
    while tip is not None and tip in known and known[tip].parents:
        if found.view.shows(known[tip]):
            line.append(known[tip])
        tip = known[tip].parents[0]
    measured: list[VersionChange] = []
    for commit in line[:most]:
        try:
            check(0, 0, "")
            if (change := _change(context, commit, check)) is not None:
                measured.append(change)
        except _TimeIsUp:
            break
        except (StateForgotten, DamagedData):
            continue
    return measured[::-1], len(line)


def _change(context: Context, commit: Commit, check: Progress) -> VersionChange | None:
    """The distances by layer, of models; None if weights were given up."""
    found = diff(context, commit.parents[0], commit.id, progress=check)
    if found.unmeasured:
        return None
    several = sum(bool(file.tensors) for file in found.files) > 1
    of_training = training_files({file.path for file in found.files})
    layers, training = dict[str, tuple[float, int] | None](), set[str]()
    for file in found.files:
        for row in file.tensors:
            key = f"{file.path}: {row.key}" if several else row.key
            if file.path in of_training or is_training_key(row.key):
                training.add(key)
            elif row.new_spec is not None and row.changed_share is not None:
                layers[key] = row.l2 or 0.0, row.new_spec.elements
            else:
                layers[key] = None
    return VersionChange(commit, layers, training)
