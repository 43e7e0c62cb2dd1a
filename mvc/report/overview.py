"""What the page and the charts show: versions, what was live when, how far versions are apart."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence

from msgspec import Struct

from mvc.errors import DamagedData, StateForgotten
from mvc.ids import CommitId
from mvc.maintenance.history import VersionHistory
from mvc.model.commit import Commit
from mvc.repo.context import Context
from mvc.repo.diff.diff import diff
from mvc.repo.history.log import names_by_commit
from mvc.repo.live import live_now
from mvc.repo.lookup import refs
from mvc.types import Progress


class Span(Struct, frozen=True):
    """``commit`` was live on a target from ``start_ns`` to ``end_ns``, in ns since 1970."""

    commit: CommitId
    start_ns: int
    end_ns: int


class Overview(Struct, frozen=True):
    """``versions`` that a name or a deployment leads to, by commit time, oldest first.

    ``spans``: by target, oldest first; the last one ends ``now_ns``. Deployments that were
    retracted or are still to come are not in them. ``live``: the targets of now by version.
    """

    now_ns: int
    head: CommitId | None
    versions: tuple[Commit, ...]
    names: Mapping[CommitId, Sequence[str]]
    live: Mapping[CommitId, Sequence[str]]
    spans: Mapping[str, tuple[Span, ...]]
    forgotten: frozenset[CommitId]


def overview(context: Context) -> Overview:
    """Reads the whole journal. Raises DamagedData if entries of it are lost."""
    head, names = refs.head_if_known(context).commit, names_by_commit(context)
    history, known = VersionHistory(), dict[CommitId, Commit]()
    made: dict[str, list[tuple[int, int, CommitId]]] = {}
    gone: set[tuple[str, int]] = set()
    now = context.store.clock.now_ns()
    for recorded in context.fresh().entries():  # after the names, so that it has what they name
        entry = recorded.entry
        history.take(recorded)
        known.update((commit.id, commit) for commit in entry.commits)
        for d in entry.deployments:
            made.setdefault(d.target, []).append((d.time_ns, recorded.sequence, d.commit))
        gone.update((r.target, r.sequence) for r in entry.retractions)
    there, found = history.reachable(), dict[str, tuple[Span, ...]]()
    for target, rows in sorted(made.items()):
        stay = [row for row in rows if (target, row[1]) not in gone and row[0] <= now]
        if stay:
            found[target] = _spans(stay, now)
    versions = (commit for id_, commit in known.items() if history.numbers[id_] in there)
    return Overview(
        now_ns=now,
        head=head,
        versions=tuple(sorted(versions, key=lambda commit: commit.time_ns)),
        names=names,
        live=live_now(context),
        spans=found,
        forgotten=frozenset(history.forgotten),
    )


def _spans(rows: list[tuple[int, int, CommitId]], now: int) -> tuple[Span, ...]:
    """What was live when on a target: of its deployments up to a moment the last one by time."""
    rows.sort(key=lambda row: row[:2])
    ends = [start for start, _, _ in rows[1:]] + [now]
    return tuple(Span(c, start, end) for (start, _, c), end in zip(rows, ends, strict=True))


class VersionChange(Struct, frozen=True):
    """How far ``commit`` is from its first parent.

    ``layers``: by tensor the L2 norm of its change and the number of its elements; None for one
    that was added, removed or has another shape.
    """

    commit: Commit
    layers: Mapping[str, tuple[float, int] | None]

    @property
    def l2(self) -> float:
        """The L2 norm of the whole change, over the tensors that can be compared."""
        return math.hypot(*(pair[0] for pair in self.layers.values() if pair is not None))


class _TimeIsUp(Exception):
    """No time is left for distances."""


def changes(
    context: Context, found: Overview, *, seconds: float, most: int
) -> tuple[list[VersionChange], int]:
    """Those of HEAD and its first parents, as many as ``seconds`` allow; and how many there are.

    Oldest first. A version whose state or whose parent's was forgotten, given up or is damaged is
    left out.
    """
    deadline, known = time.monotonic() + seconds, {c.id: c for c in found.versions}

    def check(_done: int, _total: int, _what: str) -> None:
        if time.monotonic() > deadline:
            raise _TimeIsUp

    line, tip = [], found.head
    while tip in known and known[tip].parents:
        line.append(known[tip])
        tip = known[tip].parents[0]
    measured: list[VersionChange] = []
    for commit in line[:most]:
        try:
            check(0, 0, "")
            layers = _layers(context, commit, check)
            if layers is not None:
                measured.append(VersionChange(commit, layers))
        except _TimeIsUp:
            break
        except (StateForgotten, DamagedData):
            continue
    return measured[::-1], len(line)


def _layers(
    context: Context, commit: Commit, check: Progress
) -> dict[str, tuple[float, int] | None] | None:
    """The distances by layer; None if the weights of one of the two versions were given up."""
    found = diff(context, commit.parents[0], commit.id, progress=check)
    if found.unmeasured:
        return None
    files = found.files
    several = sum(bool(file.tensors) for file in files) > 1
    return {
        f"{file.path}: {row.key}" if several else row.key: (
            (row.l2 or 0.0, row.new_spec.elements)
            if row.new_spec is not None and row.changed_share is not None
            else None
        )
        for file in files
        for row in file.tensors
    }
