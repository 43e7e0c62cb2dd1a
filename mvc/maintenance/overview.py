"""The history of a repository as one value: versions, refs, and when versions were live."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct

from mvc.ids import CommitId
from mvc.maintenance.history import read_versions
from mvc.model.commit import Commit
from mvc.repo.history.log import names_by_commit
from mvc.repo.lookup.refs import Head, head_if_known
from mvc.repo.statements.annotations import Annotations
from mvc.repo.statements.live import Live, live_between, live_now
from mvc.store.store import Store


class History(Struct, frozen=True):
    """Versions that a ref or deployment reaches, sorted by commit time, oldest first.

    ``unreached``: the number of versions that no ref or deployment reaches. ``names``: maps a
    version to its names: HEAD, branches, ``tag: NAME`` and ``REMOTE/NAME``. ``spans``: maps a
    target to the times during which versions were live, oldest first, without retracted
    deployments. ``live``: maps a version to the targets on which it is live at ``now_ns``.
    ``absent``: versions received without their state; these are not in ``forgotten``. ``metrics``
    and ``params`` include annotations.
    """

    now_ns: int
    head: Head
    versions: Mapping[CommitId, Commit]
    unreached: int
    names: Mapping[CommitId, Sequence[str]]
    live: Mapping[CommitId, Sequence[str]]
    spans: Mapping[str, Sequence[Live]]
    forgotten: frozenset[CommitId]
    absent: frozenset[CommitId]
    metrics: Mapping[CommitId, Mapping[str, float]]
    params: Mapping[CommitId, Mapping[str, str]]


def history(store: Store, since: int | None, until: int | None) -> History:
    """Implements ``Repository.history``. ``since`` and ``until`` are in ns since 1970."""
    head, names = head_if_known(store.fresh()), names_by_commit(store.fresh())
    now, spans = store.clock.now_ns(), dict[str, list[Live]]()
    record, known = read_versions(
        store.fresh()
    )  # read after the names, so that every version that a name refers to was read
    first = -(1 << 63) if since is None else since  # the earliest time that can be recorded
    last = max(first, min(now if until is None else until, now))
    for live in live_between(store.fresh(), first, last):
        spans.setdefault(live.target, []).append(live)
    reached_numbers = record.reachable()
    reached = [commit for id_, commit in known.items() if record.numbers[id_] in reached_numbers]
    reached.sort(key=lambda commit: commit.time_ns)
    annotations = Annotations(store.snapshot)
    values = {commit.id: annotations.values(commit) for commit in reached}
    return History(
        now_ns=now,
        head=head,
        versions={commit.id: commit for commit in reached},
        unreached=len(known) - len(reached),
        names=names,
        live=live_now(store),
        spans=spans,
        forgotten=frozenset(record.forgotten.keys() - record.absent),
        absent=frozenset(record.absent),
        metrics={id_: metrics for id_, (metrics, _) in values.items()},
        params={id_: params for id_, (_, params) in values.items()},
    )
