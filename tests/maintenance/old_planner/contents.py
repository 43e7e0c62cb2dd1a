"""The contents of a repository as a planning graph, for the lowest price (``solve``).

A content's base is the one of its first version's parent, as for commits. Processor seconds of
decoding count as the share that passes where a version is decoded by several threads.
"""

from __future__ import annotations

from mvc.maintenance.repack.plan import Selection, completed
from mvc.maintenance.repack.problem import Candidate
from mvc.maintenance.repack.rules import of_unversioned, trainings
from mvc.maintenance.repack.solve import ENDLESS, Edge, Nodes, Priced, Selected
from tests.maintenance.old_planner.layout_codings import add_delta, directions
from tests.maintenance.old_planner.problem import RepackProblem
from tests.maintenance.old_planner.trials import try_missing


class ContentGraph:
    """``priced``: the problem to solve; its contents are those of the versions, in their order."""

    def __init__(self, problem: RepackProblem, weight: float, bound: float | None) -> None:
        """``weight``: seconds that a gigabyte is worth. ``bound``: seconds of a recovery."""
        self._problem, self._costs = problem, problem.costs
        try_missing(self._costs, (), full=True)
        self._ids = list(problem.survey.first)
        self._numbers = {id_: i for i, id_ in enumerate(self._ids)}
        self._deltas: list[list[Candidate]] = []
        versions, rates = problem.survey.versions, self._costs.rates
        held = [[self._numbers[id_] for id_ in version.blobs] for version in versions]
        alone = [self._costs.full_of(id_) for id_ in self._ids]
        fixed, total, elapsed = list[float](), 0.0, 0.0
        for version, mine in zip(versions, held, strict=True):
            works = [(o.nbytes, o.seconds) for number in mine for o in alone[number]]
            unread = [(nbytes, 0.0) for nbytes, _ in works]
            fixed.append(rates.version(unread, version.files, version.nbytes))
            elapsed += rates.version(works, version.files, version.nbytes) - fixed[-1]
            total += sum(seconds for _, seconds in works)
        self._share = elapsed / total if total else 1.0
        self.priced = Priced(
            contents=Nodes(
                [sum(o.stored for o in each) for each in alone],
                [self._ns(each) for each in alone],
                self._edges(),
            ),
            holdings=held,
            fixed_ns=[round(seconds * 1e9) for seconds in fixed],
            weight=weight,
            bound=round(1e9 * bound) if bound is not None else ENDLESS,
            trainings=trainings(problem.survey, problem.goal.alternatives, self._numbers),
        )

    def _ns(self, candidates: list[Candidate]) -> int:
        return round(sum(o.seconds for o in candidates) * self._share * 1e9)

    def _edges(self) -> list[Edge]:
        found = []
        for i, version in enumerate(self._problem.survey.versions):
            if version.parent is None:
                continue
            for id_, candidates in self._costs.between(version.parent, i).items():
                ends = {o.id for o in candidates} | {o.base for o in candidates if o.base}
                other = next(iter(ends - {id_}), None)
                if (
                    self._problem.survey.first[id_] != i
                    or len(ends) != 2
                    or other not in self._numbers
                ):
                    continue
                if self._problem.survey.first[other] >= i:
                    continue
                a, b = self._numbers[other], self._numbers[id_]
                forward = any(o.forward_only for o in candidates)
                stored = sum(o.stored for o in candidates)
                found.append(Edge(a, b, bytes=stored, ns=self._ns(candidates), forward=forward))
                self._deltas.append(candidates)
        return found

    def selection(self, layout: Selected) -> Selection:
        chosen = of_unversioned(self._costs)
        for number in sorted(layout.sources):
            chosen.add(self._costs.full_of(self._ids[number]))
        times = self.priced.contents.recovery(layout)
        for number in sorted(layout.edges):
            edge = self.priced.contents.edges[number]
            used, id_ = directions(edge, times), self._ids[edge.b]
            add_delta(chosen, self._costs, id_, self._deltas[number], used=used)
        return completed(chosen, self._costs)
