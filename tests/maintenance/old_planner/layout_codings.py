"""The codings that a layout of versions needs: what is stored, and what has to be made."""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set

from mvc.ids import CommitId
from mvc.maintenance.repack.candidates import Candidate
from mvc.maintenance.repack.completion import completed
from mvc.maintenance.repack.costs import Costs
from mvc.maintenance.repack.selection import Selection
from mvc.store.graph.search import Link
from mvc.store.writing.layout import Layout as SkipLayout
from tests.maintenance.old_planner.model import Edge, Selected, Versions


def of_store(costs: Costs) -> Selection:
    """All stored codings."""
    return Selection(costs.candidates)


def of_others(costs: Costs) -> Selection:
    """The stored codings of blobs that no version has."""
    specs = costs.survey.specs
    return Selection(candidate for candidate in costs.candidates if candidate.id not in specs)


def of_layout(costs: Costs, versions: Versions, layout: Selected) -> Selection:
    """The codings that a layout needs, and those of blobs that no version has."""
    made = of_others(costs)
    for i in sorted(layout.sources):
        for id_ in costs.survey.versions[i].blobs:
            made.add(costs.full(i, id_))
    add_edges(made, costs, versions, layout)
    return completed(made, costs)


def of_skips(costs: Costs, layout: SkipLayout) -> Selection:
    """The codings of a layout as commits would have stored it.

    Each blob is coded once, against the blob in its place in the version that the layout names;
    those of a reset point also in full, or, near another one, only so. A delta that is stored
    already does where that one is not worth it, unless it makes a long chain. Approximate steps
    and those of an optimizer stay: another delta would be larger.
    """
    made, survey, ways = of_others(costs), costs.survey, _skips(costs, layout)
    depths: dict[bytes, int] = {}
    most = layout.deepest // 2
    for i, (version, way) in enumerate(zip(survey.versions, ways, strict=True)):
        base = version.parent if len(way) == 1 else survey.numbers[CommitId(way[-2].id)]
        if len(way) == 1 and base is not None and layout.is_near(ways[base], version.sequence):
            base = None
        if base is not None:
            for id_, candidates in costs.between(base, i).items():
                if survey.first[id_] != i or costs.candidates.added(id_, survey.size(id_)):
                    continue
                if not any(candidate.base for candidate in candidates):
                    size = survey.size(id_)
                    stored = costs.candidates.delta(id_, size, survey.specs.keys()) or []
                    under = max((depths.get(c.base or b"", 0) for c in stored), default=0)
                    candidates = stored if stored and under <= most else candidates
                made.add(candidates)
                depths[id_] = max(depths.get(c.base, 0) + 1 if c.base else 0 for c in candidates)
        for id_ in version.blobs:
            made.add(costs.candidates.added(id_, survey.size(id_)))
        if len(way) == 1:
            for id_ in version.blobs:
                made.add(costs.full(i, id_))
                depths[id_] = 0
    return completed(made, costs)


def _skips(costs: Costs, layout: SkipLayout) -> list[tuple[Link, ...]]:
    """For each version what leads to it, from a version in full on; it comes last itself."""
    made: list[tuple[Link, ...]] = []
    for i, version in enumerate(costs.survey.versions):
        under = () if version.parent is None else made[version.parent]
        predicted = bool(under) and _is_predicted(costs, i)
        if predicted:
            pass  # against the version before it
        elif under and not layout.ends(under, version.sequence):
            under = under[: under.index(layout.base(under, version.sequence)) + 1]
        else:
            under = ()
        link = Link(
            version.commit,
            version.sequence,
            depth=len(under),
            stored=0,
            nbytes=0,
            predicted=predicted,
        )
        made.append((*under, link))
    return made


def _is_predicted(costs: Costs, i: int) -> bool:
    """Whether an optimizer's step leads to some of a version."""
    survey = costs.survey
    fresh = (id_ for id_ in survey.versions[i].blobs if survey.first[id_] == i)
    return any(o.predicted for id_ in fresh for o in costs.candidates.of((id_, 0)))


def add_edges(chosen: Selection, costs: Costs, versions: Versions, layout: Selected) -> None:
    """Adds the deltas of a layout, each in the direction that recovery takes."""
    times = versions.recovery(layout)
    for number in sorted(layout.edges):
        edge = versions.edges[number]
        for id_, candidates in costs.between(edge.a, edge.b).items():
            add_delta(chosen, costs, id_, candidates, used=directions(edge, times))


def add_delta(
    chosen: Selection,
    costs: Costs,
    id_: bytes,
    candidates: Iterable[Candidate],
    *,
    used: tuple[bool, bool],
) -> None:
    """Adds the delta that makes ``id_``; ``used``: whether recoveries go forward, and backward."""
    forward, backward = used
    for candidate in candidates:
        against = backward if candidate.id == id_ else forward
        if candidate.base and against and candidate.is_one_way:
            chosen.drop([candidate])
            candidate = costs.turned(candidate)
        chosen.add([candidate])


def directions(edge: Edge, times: Sequence[int | None]) -> tuple[bool, bool]:
    """Whether cheapest paths use the edge forward, and backward. ``times``: to recover each end."""
    a, b = times[edge.a], times[edge.b]
    if a is None or b is None:
        return False, False
    return a + edge.ns == b, b + edge.ns == a


def drop_full(chosen: Selection, costs: Costs, gone: Set[bytes]) -> None:
    """Drops the full records of blobs. What shares a payload with one of them is encoded anew.

    A group stays if a blob in it is of no version, since nothing new can be made of that.
    """
    others: set[bytes] = set()
    for group in costs.candidates.groups.values():
        ids = {candidate.id for candidate in group if candidate.base is None}
        if not ids.isdisjoint(gone) and ids <= costs.survey.first.keys():
            others |= ids - gone
    dropped = gone | others
    chosen.drop([o for o in chosen if o.base is None and o.id in dropped])
    for id_ in sorted(others):
        chosen.add(costs.anew(id_))
