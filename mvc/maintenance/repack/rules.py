"""Aims that say themselves what is stored: an interval, the layout of the settings, reset points
to add or to remove, longer deltas.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from heapq import heappop, heappush

from mvc.errors import Unattainable
from mvc.ids import CommitId
from mvc.maintenance.repack.candidates import starts_of
from mvc.maintenance.repack.codings import Codings
from mvc.maintenance.repack.contents import ContentGraph, Shape, coded_against, history
from mvc.maintenance.repack.selection import Selection, of_store
from mvc.maintenance.repack.solve.graph import Layout
from mvc.maintenance.repack.survey import Survey
from mvc.repo.lookup import manifests
from mvc.store.graph.search import Link
from mvc.store.writing.layout import Layout as SkipLayout

__all__ = [
    "at_interval",
    "skipping",
    "skips",
    "with_reset_points",
    "with_steps",
    "without_reset_points",
]


def at_interval(codings: Codings, interval: int) -> Selection:
    """A reset point every ``interval`` versions from the first on, and every delta to a parent.

    A version is recovered from the nearer reset point on either side (VSOL §3.2.8).
    """
    survey, shape = codings.survey, history(codings)
    sources = {number for id_, number in codings.number.items() if id_ not in shape}
    for i, version in enumerate(survey.versions):
        if survey.generation(i) % interval == 0:
            sources.update(codings.number[id_] for id_ in version.blobs)
    layout = Layout(frozenset(sources), frozenset(range(len(shape))))
    return ContentGraph(codings, shape).codings(layout)


def skips(codings: Codings, step: int) -> Shape:
    """Each content is made from the one that a layout with skip deltas names (``skipping``).

    Those that approximate steps lead to are made from their parent's.
    """
    survey, found = codings.survey, dict(history(codings))
    ways = _ways(survey, SkipLayout(step=step))
    bases = [None if len(way) == 1 else survey.numbers[CommitId(way[-2].id)] for way in ways]
    for id_, made in coded_against(codings, bases).items():
        if not codings.stored.added(id_, survey.size(id_)):
            found[id_] = made
    return found


def skipping(codings: Codings, layout: SkipLayout) -> Selection:
    """The codings of a layout as commits would have stored it.

    Each content is coded once, against the one in its place in the version that the layout names;
    those of a reset point also in full. A delta that is stored already does where that one is not
    worth it, unless it makes a long chain. Approximate steps stay: another delta would be larger.
    """
    made, survey, stored = Selection(codings), codings.survey, codings.stored
    made.add(candidate for candidate in stored if candidate.id not in survey.specs)
    depths: dict[bytes, int] = {}
    most = layout.deepest // 2
    for i, (version, way) in enumerate(zip(survey.versions, _ways(survey, layout), strict=True)):
        base = version.parent if len(way) == 1 else survey.numbers[CommitId(way[-2].id)]
        for id_, candidates in ({} if base is None else codings.between(base, i)).items():
            size = survey.size(id_)
            if codings.first[id_] != i or stored.added(id_, size):
                continue
            if not any(candidate.base for candidate in candidates):
                known = stored.delta(id_, size, survey.specs.keys()) or []
                under = max((depths.get(c.base or b"", 0) for c in known), default=0)
                candidates = known if known and under <= most else candidates
            made.add(candidates)
            depths[id_] = max(depths.get(c.base, 0) + 1 if c.base else 0 for c in candidates)
        for id_ in version.blobs:
            made.add(stored.added(id_, survey.size(id_)))
            if len(way) == 1:
                made.add(codings.full(id_))
                depths[id_] = 0
    made.complete()
    return made


def _ways(survey: Survey, layout: SkipLayout) -> list[tuple[Link, ...]]:
    """For each version what leads to it, from a version in full on; it comes last itself."""
    made: list[tuple[Link, ...]] = []
    for version in survey.versions:
        under = () if version.parent is None else made[version.parent]
        if under and not layout.ends(under, version.sequence):
            under = under[: under.index(layout.base(under, version.sequence)) + 1]
        else:
            under = ()
        made.append((*under, Link(version.commit, version.sequence, len(under), 0, 0)))
    return made


def with_reset_points(codings: Codings, ids: Sequence[CommitId]) -> Selection:
    """All stored codings plus full records of these versions."""
    chosen = of_store(codings)
    for i in _numbers(codings.survey, ids):
        for id_ in codings.survey.versions[i].blobs:
            chosen.add(codings.full(id_))
    return chosen


def with_steps(codings: Codings, step: int) -> Selection:
    """All stored codings, every delta to a parent, and one from every ``step``-th to the next.

    So a path has at most n / step long deltas and ``step`` short ones (LC-Checkpoint §3.2). None is
    added where versions are stored by approximate steps, which have super-steps of their own.
    """
    chosen, survey = of_store(codings), codings.survey
    if any(codings.stored.added(id_, survey.size(id_)) for id_ in codings.first):
        return chosen
    pairs = []
    for i in range(len(survey.versions)):
        start = survey.ancestor(i, step) if survey.generation(i) % step == 0 else None
        if start is not None:
            pairs.append((start, i))
    if not pairs:
        return chosen
    for _, candidates in history(codings).values():
        chosen.add(candidates)
    for pair in pairs:
        for candidates in codings.between(*pair).values():
            chosen.add(candidates)
    chosen.complete()
    return chosen


def without_reset_points(codings: Codings, ids: Sequence[CommitId]) -> Selection:
    """All stored codings without the full records that only these versions need.

    Missing deltas are added only if the stored ones do not do. Raises Unattainable if one of the
    versions is no reset point, or stays one.
    """
    survey, stored = codings.survey, of_store(codings)
    numbers, before = _numbers(survey, ids), _reset_points(survey, stored)
    for i in numbers:
        if i not in before:
            raise Unattainable(
                f"version {survey.versions[i].commit.short} is no reset point",
                hint="'mvc show' says of a version whether it is one",
            )
    needed = {id_ for i in before.difference(numbers) for id_ in survey.versions[i].blobs}
    gone = {id_ for i in numbers for id_ in survey.versions[i].blobs} - needed
    kept, connected = of_store(codings), of_store(codings)
    for chosen in (kept, connected):
        chosen.drop_full(gone)
    lost = _connect(codings, connected) & gone
    if 2 * sum(map(survey.size, lost)) > sum(map(survey.size, gone)):
        raise Unattainable(
            f"version {ids[0].short} could not be recovered any more: "
            "no delta leads to it from another reset point",
            hint="keep one of them, or add another reset point first",
        )
    for chosen in (kept, connected):
        chosen.complete()
        left = _reset_points(survey, chosen).intersection(numbers)
        if not left:
            return chosen
    raise Unattainable(
        f"version {survey.versions[min(left)].commit.short} stays a reset point: "
        "what it has is needed in full by others",
        hint="remove the reset points with the same tensors as well, or run 'mvc gc' first",
    )


def _reset_points(survey: Survey, chosen: Selection) -> set[int]:
    """The versions of which everything is stored in full."""
    full = {coding.node for coding in chosen if coding.base is None}
    nodes = (
        [(id_, start) for id_ in version.blobs for start in starts_of(survey.size(id_))]
        for version in survey.versions
    )
    return {i for i, each in enumerate(nodes) if full.issuperset(each)}


def _connect(codings: Codings, chosen: Selection) -> set[bytes]:
    """Adds the smallest deltas that lead to all contents; returns those that none leads to."""
    ways: dict[bytes, list[tuple[int, bytes, bytes]]] = defaultdict(list)
    full, shape = {o.node for o in chosen if o.base is None}, history(codings)
    for coding in chosen:
        if coding.base is not None:
            ways[coding.base].append((0, coding.id, b""))
            if coding.reversible:
                ways[coding.id].append((0, coding.base, b""))
    for id_, (base, candidates) in shape.items():
        size = max(1, sum(o.stored for o in candidates))
        ways[base].append((size, id_, id_))
        if not any(o.forward_only for o in candidates):
            ways[id_].append((size, base, id_))
    starts = {id_: starts_of(codings.survey.size(id_)) for id_ in codings.first}
    heap = [(0, i, b"") for i, each in starts.items() if all((i, start) in full for start in each)]
    lost = set(starts)
    while heap:
        _, id_, made = heappop(heap)
        if id_ not in lost:
            continue
        lost.discard(id_)
        chosen.add(shape[made][1] if made else ())
        for way in ways[id_]:
            heappush(heap, way)
    return lost


def _numbers(survey: Survey, ids: Sequence[CommitId]) -> list[int]:
    for id_ in ids:
        if id_ not in survey.numbers:
            manifests.check_kept(survey.context, id_)
            raise Unattainable(f"the state of version {id_.short} is not there any more")
    return [survey.numbers[id_] for id_ in ids]
