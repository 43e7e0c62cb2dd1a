"""Goals that say themselves what is stored: an interval, the layout of the settings, reset points
to add or to remove, longer deltas. Each function is a ``Selection`` of codings.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence, Set
from heapq import heappop, heappush

from mvc.errors import Unattainable
from mvc.ids import CommitId
from mvc.maintenance.repack.candidates import starts_of
from mvc.maintenance.repack.completion import completed
from mvc.maintenance.repack.contents import ContentPlan, Shape, coded_against, history, of_others
from mvc.maintenance.repack.costs import Costs
from mvc.maintenance.repack.selection import Selection
from mvc.maintenance.repack.solve.graph import Selected
from mvc.maintenance.repack.survey import Survey
from mvc.repo.lookup import availability
from mvc.store.graph.search import Link
from mvc.store.writing.layout import Layout as SkipLayout


def at_interval(costs: Costs, interval: int) -> Selection:
    """A reset point every ``interval`` versions from the first on, and the deltas to parents.

    A version is recovered from the nearer reset point on either side (VSOL §3.2.8). Below three
    versions both are as near, and no delta leads to a reset point (``Layout.is_near``).
    """
    survey, plan = costs.survey, ContentPlan(costs, history(costs))
    sources = set(plan.roots)
    for i, version in enumerate(survey.versions):
        if survey.generation(i) % interval == 0:
            sources.update(plan.numbers[id_] for id_ in version.blobs)
    edges = {
        n for n, edge in enumerate(plan.contents.edges) if interval > 2 or edge.b not in sources
    }
    return plan.codings(Selected(frozenset(sources), frozenset(edges)))


def skips(costs: Costs, step: int) -> Shape:
    """Each content is made from the one that a layout with skip deltas names (``skipping``).

    Those that approximate steps or an optimizer's lead to are made from their parent's.
    """
    survey, found = costs.survey, dict(history(costs))
    ways = chains(costs, SkipLayout(step=step))
    bases = [None if len(way) == 1 else survey.numbers[CommitId(way[-2].id)] for way in ways]
    for id_, made in coded_against(costs, bases).items():
        if not costs.candidates.added(id_, survey.size(id_)):
            found[id_] = made
    return found


def skipping(costs: Costs, layout: SkipLayout) -> Selection:
    """The codings of a layout as commits would have stored it.

    Each blob is coded once, against the blob in its place in the version that the layout names;
    those of a reset point also in full, or, near another one, only so. A delta that is stored
    already does where that one is not worth it, unless it makes a long chain. Approximate steps
    and those of an optimizer stay: another delta would be larger.
    """
    made, survey, ways = of_others(costs), costs.survey, chains(costs, layout)
    depths: dict[bytes, int] = {}
    most = layout.deepest // 2
    for i, (version, way) in enumerate(zip(survey.versions, ways, strict=True)):
        base = version.parent if len(way) == 1 else survey.numbers[CommitId(way[-2].id)]
        if len(way) == 1 and base is not None and layout.is_near(ways[base], version.sequence):
            base = None
        for id_, candidates in ({} if base is None else costs.between(base, i)).items():
            size = survey.size(id_)
            if survey.first[id_] != i or costs.candidates.added(id_, size):
                continue
            if not any(candidate.base for candidate in candidates):
                stored = costs.candidates.delta(id_, size, survey.specs.keys()) or []
                under = max((depths.get(c.base or b"", 0) for c in stored), default=0)
                candidates = stored if stored and under <= most else candidates
            made.add(candidates)
            depths[id_] = max(depths.get(c.base, 0) + 1 if c.base else 0 for c in candidates)
        for id_ in version.blobs:
            made.add(costs.candidates.added(id_, survey.size(id_)))
            if len(way) == 1:
                made.add(costs.full(i, id_))
                depths[id_] = 0
    return completed(made, costs)


def chains(costs: Costs, layout: SkipLayout) -> list[tuple[Link, ...]]:
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


def with_reset_points(costs: Costs, ids: Sequence[CommitId]) -> Selection:
    """All stored codings plus full records of these versions."""
    chosen = Selection(costs.candidates)
    for i in numbers_of(costs.survey, ids):
        for id_ in costs.survey.versions[i].blobs:
            chosen.add(costs.full(i, id_))
    return chosen


def with_steps(costs: Costs, step: int) -> Selection:
    """All stored codings, every delta to a parent, and one from every ``step``-th to the next.

    So a path has at most n / step long deltas and ``step`` short ones (LC-Checkpoint §3.2). None is
    added where versions are stored by approximate steps, which have super-steps of their own.
    """
    chosen, survey = Selection(costs.candidates), costs.survey
    if step == 1 or any(costs.candidates.added(id_, survey.size(id_)) for id_ in survey.first):
        return chosen
    ends = [i for i in range(len(survey.versions)) if survey.generation(i) % step == 0]
    pairs = [(start, i) for i in ends if (start := survey.ancestor(i, step)) is not None]
    if not pairs:
        return chosen
    pairs += [(v.parent, i) for i, v in enumerate(survey.versions) if v.parent is not None]
    for pair in pairs:
        for candidates in costs.between(*pair).values():
            chosen.add(candidates)
    return completed(chosen, costs)


def without_reset_points(costs: Costs, ids: Sequence[CommitId]) -> tuple[Selection, Selection]:
    """All stored codings without the full records that only these versions need: as they are, and
    with the smallest deltas that lead to what nothing led to.

    Raises Unattainable if one of the versions is no reset point, or could not be recovered.
    """
    survey, stored = costs.survey, Selection(costs.candidates)
    numbers, before = numbers_of(survey, ids), costs.sources
    for i in numbers:
        if i not in before:
            raise Unattainable(
                f"version {survey.versions[i].commit.short} is no reset point",
                hint="'mvc show' says of a version whether it is one",
            )
    needed = {id_ for i in before.difference(numbers) for id_ in survey.versions[i].blobs}
    gone = {id_ for i in numbers for id_ in survey.versions[i].blobs} - needed
    connected = Selection(costs.candidates)
    for chosen in (stored, connected):
        drop_full(chosen, costs, gone)
    lost = _connect(costs, connected) & gone
    if 2 * sum(map(survey.size, lost)) > sum(map(survey.size, gone)):
        raise Unattainable(
            f"version {ids[0].short} could not be recovered any more: "
            "no delta leads to it from another reset point",
            hint="keep one of them, or add another reset point first",
        )
    return completed(stored, costs), completed(connected, costs)


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


def _connect(costs: Costs, chosen: Selection) -> set[bytes]:
    """Adds the smallest deltas that lead to all contents; returns those that none leads to."""
    ways: dict[bytes, list[tuple[int, bytes, bytes]]] = defaultdict(list)
    full, shape = {o.node for o in chosen if o.base is None}, history(costs)
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
    starts = {id_: starts_of(costs.survey.size(id_)) for id_ in costs.survey.first}
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


def numbers_of(survey: Survey, ids: Sequence[CommitId]) -> list[int]:
    """The places of versions. Raises Unattainable if the state of one is not there."""
    for id_ in ids:
        if id_ not in survey.numbers:
            availability.check_kept(survey.context, id_)
            raise Unattainable(f"the state of version {id_.short} is not there any more")
    return [survey.numbers[id_] for id_ in ids]
