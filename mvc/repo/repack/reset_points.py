"""Reset points added and removed by name."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from mvc.errors import Unattainable
from mvc.ids import CommitId
from mvc.repo.lookup import manifests
from mvc.repo.repack import layouts
from mvc.repo.repack.goal import plain
from mvc.repo.repack.metrics import Figures, figures
from mvc.repo.repack.problem import Ground
from mvc.repo.repack.selection import Selection, of_store

__all__ = ["added", "removed"]


def added(ground: Ground) -> Selection:
    """Everything stored, and all of these versions in full."""
    costs = ground.costs

    def build() -> Selection:
        chosen = of_store(costs)
        for i in _numbers(ground, ground.wish.add):
            for id_ in _blobs(ground, i):
                chosen.add(costs.full(i, id_))
        return chosen

    ground.attempt(build())
    return build()


def removed(ground: Ground) -> Selection:
    """Everything stored, less the full records of these versions that no other needs.

    Deltas that are missing then are added. Raises Unattainable where none can be, or where
    a version would take longer than the settings allow.
    """
    numbers = _numbers(ground, ground.wish.remove)
    versions, today = ground.versions(full=False)
    for i in numbers:
        if i not in today.sources:
            raise Unattainable(
                f"version {_name(ground, i)} is no reset point",
                hint="'mvc show' says of a version whether it is one",
            )
    layout = layouts.without(versions, today, numbers)
    lost = [i for i, ns in enumerate(versions.recovery(layout)) if ns is None]
    if lost:
        raise Unattainable(
            f"version {_name(ground, lost[0])} could not be recovered any more: "
            "no delta leads to it from another reset point",
            hint="keep one of them, or add another reset point first",
        )
    chosen = ground.with_edges(versions, layout, complete=False)
    needed = {id_ for i in layout.sources for id_ in _blobs(ground, i)}
    gone = {id_ for i in numbers for id_ in _blobs(ground, i)} - needed
    chosen.drop([o for o in chosen if o.base is None and o.id in gone])
    chosen.complete()
    _check_bound(ground, figures(ground.costs, chosen))
    return chosen


def _check_bound(ground: Ground, after: Figures) -> None:
    bound = ground.wish.bound
    if bound is None or after.worst_seconds <= bound:
        return
    name = after.worst_commit.short if after.worst_commit else "?"
    raise Unattainable(
        f"version {name} would take {plain(after.worst_seconds, 3)} s; "
        f"store.max_recovery allows {plain(bound)} s",
        hint="raise store.max_recovery, or remove fewer reset points",
    )


def _numbers(ground: Ground, ids: Sequence[CommitId]) -> list[int]:
    numbers = ground.survey.numbers
    for id_ in ids:
        if id_ not in numbers:
            manifests.check_kept(ground.survey.context, id_)
            raise Unattainable(f"the state of version {id_.short} is not there any more")
    return [numbers[id_] for id_ in ids]


def _blobs(ground: Ground, i: int) -> Collection[bytes]:
    return ground.survey.versions[i].blobs.keys()


def _name(ground: Ground, i: int) -> str:
    return ground.survey.versions[i].commit.short
