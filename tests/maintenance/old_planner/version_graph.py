"""The planner's graph of versions (``solve.model``), from the costs of their blobs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import Struct

from mvc.maintenance.repack import solve
from mvc.maintenance.repack.problem import Candidate, Costs, Survey
from mvc.maintenance.repack.solve import Selected
from tests.maintenance.old_planner.model import Edge, Versions

_LOSS = 0.02  # an edge that loses more of a version's bytes on the way back is forward only


class Stride(Struct, frozen=True, order=True):
    """Two versions of one line of descent, and the generations between them."""

    start: int
    end: int
    span: int


def version_graph(costs: Costs, long: Iterable[Stride] = ()) -> Versions:
    """Every version in full, every delta from a parent, and ``long`` deltas."""
    survey = costs.survey
    roots = _roots(survey)
    common = _shared_blobs(survey, roots)
    full_bytes, full_ns = [], []
    for i, version in enumerate(survey.versions):
        fulls = {id_: costs.full(i, id_) for id_ in version.blobs}
        apart = fulls.keys() - common[roots[i]]
        full_bytes.append(sum(_bytes(fulls[id_]) for id_ in apart))
        seconds = costs.rates.version(_works(fulls.values()), version.files, version.nbytes)
        full_ns.append(round(seconds * 1e9))
    edges = [_edge(costs, each, long=False) for each in parents(costs)]
    edges += [_edge(costs, each, long=True) for each in long]
    shared = {id_ for ids in common.values() for id_ in ids}
    once = sum(_bytes(costs.full_of(id_)) for id_ in shared)
    return Versions(full_bytes, full_ns, edges, once)


def parents(costs: Costs) -> list[Stride]:
    """From each version's parent to the version."""
    versions = enumerate(costs.survey.versions)
    return [Stride(each.parent, i, 1) for i, each in versions if each.parent is not None]


def stored_layout(costs: Costs, versions: Versions) -> Selected:
    """The layout that is stored."""
    edges = {n for n, edge in enumerate(versions.edges) if _is_stored(costs, edge)}
    return Selected(frozenset(costs.sources), frozenset(edges))


def stored_strides(costs: Costs) -> list[Stride]:
    """Stored deltas over more than one generation, in order."""
    survey, found = costs.survey, set[Stride]()
    for each in costs.candidates:
        if each.base is None or not {each.id, each.base} <= survey.first.keys():
            continue
        older, newer = sorted((each.id, each.base), key=survey.first.__getitem__)
        end = survey.first[newer]
        start, span = survey.versions[end].parent, 1
        if older in survey.versions[end].blobs:
            continue
        while start is not None and older not in survey.versions[start].blobs:
            # No version before the first one that has the blob can have it.
            start = survey.versions[start].parent if start > survey.first[older] else None
            span += 1
        if start is not None and span > 1:
            found.add(Stride(start, end, span))
    return sorted(found)


def _edge(costs: Costs, stride: Stride, *, long: bool) -> Edge:
    survey, a, b = costs.survey, stride.start, stride.end
    made = costs.between(a, b)
    every = [candidate for candidates in made.values() for candidate in candidates]
    deltas = [candidates for candidates in made.values() if any(o.base for o in candidates)]
    lost = set(survey.new_in(b, a)) - {candidate.id for candidate in every}
    lost -= {o.base for o in every if o.base and not o.forward_only}
    size = sum(map(survey.size, survey.versions[a].blobs))
    return Edge(
        a,
        b,
        bytes=sum(map(_bytes, made.values())),
        ns=round(costs.rates.decoding(_works(deltas)) * 1e9),
        forward=sum(map(survey.size, lost)) > _LOSS * size,
        long=long,
    )


def _is_stored(costs: Costs, edge: solve.Edge) -> bool:
    made = costs.between(edge.a, edge.b).values()
    every = [candidate for candidates in made for candidate in candidates]
    if any(candidate.place is None for candidate in every):
        return False
    return any(candidate.base for candidate in every) or edge.b not in costs.sources or not made


def _roots(survey: Survey) -> list[int]:
    """The first version of the line that each version belongs to."""
    roots: list[int] = []
    for i, version in enumerate(survey.versions):
        roots.append(i if version.parent is None else roots[version.parent])
    return roots


def _shared_blobs(survey: Survey, roots: Sequence[int]) -> dict[int, set[bytes]]:
    """By root, the blobs that it and all its descendants have."""
    common: dict[int, set[bytes]] = {}
    for root, version in zip(roots, survey.versions, strict=True):
        common.setdefault(root, set(version.blobs)).intersection_update(version.blobs)
    return common


def _works(made: Iterable[Iterable[Candidate]]) -> list[tuple[int, float]]:
    """As ``Rates.decoding`` takes them."""
    return [(each.nbytes, each.seconds) for candidates in made for each in candidates]


def _bytes(candidates: Iterable[Candidate]) -> int:
    return sum(candidate.stored for candidate in candidates)
