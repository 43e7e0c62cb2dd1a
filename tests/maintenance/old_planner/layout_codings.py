"""The codings that a layout of versions needs: what is stored, and what has to be made."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from mvc.ids import CommitId
from mvc.maintenance.repack.plan import Selection, completed
from mvc.maintenance.repack.problem import Candidate, Costs
from mvc.maintenance.repack.rules import chains, of_unversioned
from mvc.maintenance.repack.solve import Edge, Selected
from mvc.store.writing.layout import Layout as SkipLayout
from tests.maintenance.old_planner.model import Versions


def of_layout(costs: Costs, versions: Versions, layout: Selected) -> Selection:
    """The codings that a layout needs, and those of blobs that no version has."""
    made = of_unversioned(costs)
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
    made, survey, ways = of_unversioned(costs), costs.survey, chains(costs, layout)
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
            candidate = costs.reversed(candidate)
        chosen.add([candidate])


def directions(edge: Edge, times: Mapping[int, int]) -> tuple[bool, bool]:
    """Whether cheapest paths use the edge forward, and backward. ``times``: to recover each end."""
    a, b = times.get(edge.a), times.get(edge.b)
    if a is None or b is None:
        return False, False
    return a + edge.ns == b, b + edge.ns == a
