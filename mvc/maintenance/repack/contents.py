"""The contents of a repository as a planning graph (``solve``).

A *shape* says from which earlier content each one may be made, and by which codings. The solver
decides which of these deltas are kept, and what is stored in full.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import TypeAlias

from mvc.ids import CommitId
from mvc.maintenance.repack.candidates import Candidate
from mvc.maintenance.repack.completion import completed
from mvc.maintenance.repack.costs import Costs
from mvc.maintenance.repack.goal import Proven
from mvc.maintenance.repack.selection import Selection
from mvc.maintenance.repack.solve.bundles import Bundles
from mvc.maintenance.repack.solve.graph import Edge, Nodes, Selected
from mvc.maintenance.repack.solve.priced import BYTES_ALONE, Priced, Solver, Training
from mvc.maintenance.repack.survey import Survey, Version

Shape: TypeAlias = Mapping[bytes, tuple[bytes, list[Candidate]]]
"""By content the earlier one that it may be made from, and the codings for that."""
Group: TypeAlias = tuple[int, int]
"""Pack and offset of a payload that several codings share."""


def of_others(costs: Costs) -> Selection:
    """The stored codings of blobs that no version has."""
    specs = costs.survey.specs
    return Selection(candidate for candidate in costs.candidates if candidate.id not in specs)


def coded_against(costs: Costs, bases: Iterable[int | None]) -> Shape:
    """Each content is made from its first version's base. ``bases``: a version for each version."""
    first, found = costs.survey.first, dict[bytes, tuple[bytes, list[Candidate]]]()
    for i, base in enumerate(bases):
        for id_, candidates in ({} if base is None else costs.between(base, i)).items():
            ends = {o.id for o in candidates} | {o.base for o in candidates if o.base}
            others = ends - {id_}
            if first[id_] == i and len(others) == 1:
                (other,) = others
                if first.get(other, i) < i:
                    found[id_] = other, candidates
    return found


def history(costs: Costs) -> Shape:
    """Each content is made from its version's parent, as in a chain."""
    return coded_against(costs, (version.parent for version in costs.survey.versions))


def as_stored(costs: Costs) -> Shape:
    """Each content is made by the smallest delta that is stored."""
    found: dict[bytes, tuple[bytes, list[Candidate]]] = {}
    numbers = {id_: number for number, id_ in enumerate(costs.survey.first)}
    for id_, base, candidates in costs.whole():
        if base is None:
            continue
        older, newer = sorted((id_, base), key=numbers.__getitem__)
        size = sum(o.stored for o in candidates)
        smaller = newer not in found or size < sum(o.stored for o in found[newer][1])
        if smaller and (newer == id_ or all(o.reversible for o in candidates)):
            found[newer] = older, candidates
    return found


class ContentPlan:
    """``contents``: those of the versions, in their order, and ``numbers``, their places by id."""

    def __init__(
        self,
        costs: Costs,
        shape: Shape,
        weight: float | None = None,
        proven: Mapping[CommitId, Proven] | None = None,
        factors: Mapping[Group, float] | None = None,
    ) -> None:
        """``weight``: seconds that a gigabyte is worth. ``proven``: recipes that may be chosen.

        ``factors``: by group what its bytes count for.
        """
        self._costs, self._shape, self._factors = costs, shape, factors or {}
        survey = costs.survey
        self._ids = list(survey.first)
        self.numbers = {id_: number for number, id_ in enumerate(self._ids)}
        self._held = [[self.numbers[id_] for id_ in v.blobs] for v in survey.versions]
        self._full = [costs.alone(id_) for id_ in self._ids]
        self._made = [(id_, *shape[id_]) for id_ in self._ids if id_ in shape]
        timed = list(map(self._timed, survey.versions, self._held))
        fixed, self._shares = [ns for ns, _ in timed], [share for _, share in timed]
        self.contents = Nodes(
            list(map(self._bytes, self._full)),
            list(map(self._ns, self._ids, self._full)),
            [self._edge(*each) for each in self._made],
        )
        self._alone = weight is None
        self._priced = Priced(
            self.contents,
            self._held,
            fixed,
            BYTES_ALONE if weight is None else weight,
            trainings=trainings(survey, proven or {}, self.numbers),
        )

    @cached_property
    def _bundles(self) -> Bundles | None:
        return Bundles(self._priced) if self._alone else None

    @cached_property
    def solver(self) -> Solver:
        """Of the problem; where only bytes count (no ``weight``), of bundles of contents."""
        return Solver(self._priced if self._bundles is None else self._bundles.priced)

    @property
    def roots(self) -> Iterator[int]:
        """The contents that no delta leads to from an earlier one."""
        return (number for id_, number in self.numbers.items() if id_ not in self._shape)

    def _bytes(self, candidates: Iterable[Candidate]) -> int:
        known = self._factors
        each = (o.stored * (known.get(o.group, 1) if o.grouped else 1) for o in candidates)
        return round(sum(each))

    def _timed(self, version: Version, held: Iterable[int]) -> tuple[int, float]:
        """Nanoseconds of a version's recovery beside decoding, and the share of processor seconds
        that passes where its large contents are decoded by several threads.
        """
        every = [o for number in held for o in self._full[number]]
        large = [0.0 if self._is_serial(o) else o.seconds for o in every]
        idle, busy = (
            self._costs.rates.version(
                [(o.nbytes, ns) for o, ns in zip(every, seconds, strict=True)],
                version.files,
                version.nbytes,
            )
            for seconds in ([0.0] * len(every), large)
        )
        return round(idle * 1e9), (busy - idle) / sum(large) if any(large) else 1.0

    def _is_serial(self, coding: Candidate) -> bool:
        """Whether it is too small for several threads."""
        return self._costs.rates.decoding([(coding.nbytes, 1.0)]) >= 1

    def _ns(self, id_: bytes, candidates: Iterable[Candidate]) -> int:
        share = self._shares[self._costs.survey.first[id_]]
        seconds = (o.seconds * (1 if self._is_serial(o) else share) for o in candidates)
        return round(sum(seconds) * 1e9)

    def _edge(self, id_: bytes, base: bytes, candidates: Sequence[Candidate]) -> Edge:
        forward = any(o.forward_only for o in candidates)
        ns, stored = self._ns(id_, candidates), self._bytes(candidates)
        return Edge(self.numbers[base], self.numbers[id_], stored, ns=ns, forward=forward)

    def selection(self, layout: Selected) -> Selection:
        """The codings that a layout of the solver needs, and those of blobs that no version has."""
        return self.codings(layout if self._bundles is None else self._bundles.contents(layout))

    def codings(self, layout: Selected) -> Selection:
        """As ``selection``, of a layout of single contents.

        Each delta leads into the direction that recovery takes.
        """
        chosen = of_others(self._costs)
        for number in sorted(layout.sources):
            chosen.add(self._costs.alone(self._ids[number]))
        times = self.contents.recovery(layout)
        for number in sorted(layout.edges):
            edge, (id_, base, made) = self.contents.edges[number], self._made[number]
            forward = times.get(edge.a, 0) + edge.ns == times.get(edge.b)
            backward = times.get(edge.b, 0) + edge.ns == times.get(edge.a)
            for candidate in self._costs.renewed(id_, base, made):
                against = backward if candidate.id == id_ else forward
                if candidate.base and against and candidate.is_one_way:
                    chosen.drop([candidate])
                    candidate = self._costs.turned(candidate)
                chosen.add([candidate])
        return completed(chosen, self._costs)


def deltas(shape: Shape) -> Iterator[Candidate]:
    """All codings of a shape."""
    return (candidate for _, made in shape.values() for candidate in made)


def trainings(
    survey: Survey, proven: Mapping[CommitId, Proven], numbers: Mapping[bytes, int]
) -> dict[int, Training]:
    """The recipes of versions that have their weights. A base that gave its up is trained, too,
    if its recipe is proven. ``numbers``: of contents.
    """
    gone, found = survey.found.history.dropped, dict[int, Training]()
    for commit, recipe in proven.items():
        at, seconds = recipe.base, recipe.seconds
        while at in gone and at in proven:
            at, seconds = proven[at].base, seconds + proven[at].seconds
        number, base = survey.numbers.get(commit), survey.numbers.get(at)
        if number is None or base is None or {commit, at} & gone.keys():
            continue
        blobs = survey.versions[number].blobs
        made = f"{recipe.path}\0"
        kept = [numbers[id_] for id_, line in blobs.items() if not line.startswith(made)]
        found[number] = Training(base, round(seconds * 1e9), kept)
    return found
