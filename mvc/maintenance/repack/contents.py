"""The contents of a repository as a planning graph (``solve``).

A *shape* says from which earlier content each one may be made, and by which codings. The planner
decides which of these deltas are kept, and what is stored in full.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

from mvc.ids import CommitId
from mvc.maintenance.repack.candidates import Candidate
from mvc.maintenance.repack.codings import Codings
from mvc.maintenance.repack.goal import Proven
from mvc.maintenance.repack.selection import Selection
from mvc.maintenance.repack.solve.bundles import Bundles, Wholes
from mvc.maintenance.repack.solve.graph import Contents, Edge, Layout
from mvc.maintenance.repack.solve.priced import BYTES_ALONE, Priced, Solver, Training
from mvc.maintenance.repack.survey import Version

__all__ = ["ContentGraph", "Shape", "as_stored", "coded_against", "history"]

Shape: TypeAlias = Mapping[bytes, tuple[bytes, list[Candidate]]]
"""By content the earlier one that it may be made from, and the codings for that."""


def coded_against(codings: Codings, bases: Iterable[int | None]) -> Shape:
    """Each content is made from its first version's base. ``bases``: a version for each version."""
    found: dict[bytes, tuple[bytes, list[Candidate]]] = {}
    for i, base in enumerate(bases):
        made = {} if base is None else codings.between(base, i)
        for id_, candidates in made.items():
            ends = {o.id for o in candidates} | {o.base for o in candidates if o.base}
            (other, *more) = *(ends - {id_}), b""
            known = other in codings.number and len(more) < 2
            if codings.first[id_] == i and known and codings.number[other] < codings.number[id_]:
                found[id_] = other, candidates
    return found


def history(codings: Codings) -> Shape:
    """Each content is made from its version's parent, as in a chain."""
    return coded_against(codings, (version.parent for version in codings.survey.versions))


def as_stored(codings: Codings) -> Shape:
    """Each content is made by the smallest delta that is stored."""
    found: dict[bytes, tuple[bytes, list[Candidate]]] = {}
    for id_, base, candidates in codings.whole():
        if base is None:
            continue
        older, newer = sorted((id_, base), key=codings.number.__getitem__)
        size = sum(o.stored for o in candidates)
        smaller = newer not in found or size < sum(o.stored for o in found[newer][1])
        if smaller and (newer == id_ or all(o.reversible for o in candidates)):
            found[newer] = older, candidates
    return found


class ContentGraph:
    """``solver``: of the problem. Its contents are those of the versions, in their order;
    where only bytes count (no ``weight``), bundles of them.
    """

    def __init__(
        self,
        codings: Codings,
        shape: Shape,
        weight: float | None = None,
        proven: Mapping[CommitId, Proven] | None = None,
        *,
        whole: bool = False,
    ) -> None:
        """``weight``: seconds that a gigabyte is worth. ``proven``: recipes that may be chosen.

        ``whole``: what is stored in full is decided by versions.
        """
        self._codings, self._shape = codings, shape
        self._ids = list(codings.first)
        self._held = [[codings.number[id_] for id_ in v.blobs] for v in codings.survey.versions]
        self._full = [codings.full(id_) for id_ in self._ids]
        self._made = [(id_, *shape[id_]) for id_ in self._ids if id_ in shape]
        parents = [version.parent for version in codings.survey.versions]
        timed = list(map(self._timed, codings.survey.versions, self._held))
        fixed, self._shares = [ns for ns, _ in timed], [share for _, share in timed]
        self._contents = Contents(
            [sum(o.stored for o in each) for each in self._full],
            list(map(self._ns, self._ids, self._full)),
            [self._edge(*each) for each in self._made],
        )
        priced = Priced(
            self._contents,
            self._held,
            fixed,
            BYTES_ALONE if weight is None else weight,
            trainings=self._trainings(proven or {}),
        )
        self._bundles: Bundles | Wholes | None = None
        if weight is None:
            self._bundles = Wholes(priced, parents) if whole else Bundles(priced)
        self.solver = Solver(priced if self._bundles is None else self._bundles.priced)

    def _timed(self, version: Version, held: Iterable[int]) -> tuple[int, float]:
        """Nanoseconds of a version's recovery beside decoding, and the share of processor seconds
        that passes where its large contents are decoded by several threads.
        """
        every = [o for number in held for o in self._full[number]]
        large = [0.0 if self._is_serial(o) else o.seconds for o in every]
        idle, busy = (
            self._codings.timing.version(
                [(o.nbytes, ns) for o, ns in zip(every, seconds, strict=True)],
                version.files,
                version.nbytes,
            )
            for seconds in ([0.0] * len(every), large)
        )
        return round(idle * 1e9), (busy - idle) / sum(large) if any(large) else 1.0

    def _is_serial(self, coding: Candidate) -> bool:
        """Whether it is too small for several threads."""
        return self._codings.timing.decoding([(coding.nbytes, 1.0)]) >= 1

    def _ns(self, id_: bytes, candidates: Iterable[Candidate]) -> int:
        share = self._shares[self._codings.first[id_]]
        seconds = (o.seconds * (1 if self._is_serial(o) else share) for o in candidates)
        return round(sum(seconds) * 1e9)

    def _edge(self, id_: bytes, base: bytes, candidates: Sequence[Candidate]) -> Edge:
        number, stored = self._codings.number, sum(o.stored for o in candidates)
        forward = any(o.forward_only for o in candidates)
        return Edge(number[base], number[id_], stored, self._ns(id_, candidates), forward)

    def _trainings(self, proven: Mapping[CommitId, Proven]) -> dict[int, Training]:
        """The recipes of versions that have their weights. A base that gave its up is trained, too,
        if its recipe is proven.
        """
        survey, found = self._codings.survey, {}
        gone = survey.found.history.dropped
        for commit, recipe in proven.items():
            at, seconds = recipe.base, recipe.seconds
            while at in gone and at in proven:
                at, seconds = proven[at].base, seconds + proven[at].seconds
            number, base = survey.numbers.get(commit), survey.numbers.get(at)
            if number is None or base is None or {commit, at} & gone.keys():
                continue
            blobs = survey.versions[number].blobs
            made = f"{recipe.path}\0"
            kept = [
                self._codings.number[id_]
                for id_, line in blobs.items()
                if not line.startswith(made)
            ]
            found[number] = Training(base, round(seconds * 1e9), kept)
        return found

    def selection(self, layout: Layout) -> Selection:
        """The codings that a layout of the solver needs, and those of blobs that no version has."""
        return self.codings(layout if self._bundles is None else self._bundles.contents(layout))

    def codings(self, layout: Layout) -> Selection:
        """As ``selection``, of a layout of single contents.

        Each delta leads into the direction that recovery takes.
        """
        chosen = Selection(self._codings)
        chosen.add(o for o in self._codings.stored if o.id not in self._codings.survey.specs)
        for number in sorted(layout.sources):
            chosen.add(self._codings.full(self._ids[number]))
        times = self._contents.recovery(layout)
        for number in sorted(layout.edges):
            edge, (id_, base, made) = self._contents.edges[number], self._made[number]
            forward = times.get(edge.a, 0) + edge.ns == times.get(edge.b)
            backward = times.get(edge.b, 0) + edge.ns == times.get(edge.a)
            candidates = self._codings.renewed(id_, base, made)
            chosen.add_delta(id_, candidates, forward=forward, backward=backward)
        chosen.complete()
        return chosen
