"""What is known of sizes: those of stored codings, and of some that are tried by encoding them."""

from __future__ import annotations

from collections.abc import Iterable

from mvc.maintenance.repack.problem import Candidate, Costs, most_tried, spread
from tests.maintenance.old_planner.version_graph import Stride, parents, stored_strides


def learn_stored(costs: Costs) -> None:
    """Records the share of raw bytes that every stored coding takes."""
    survey, stored = costs.survey, costs.candidates
    for i, version in enumerate(survey.versions):
        parent = {} if version.parent is None else survey.versions[version.parent].blobs
        for id_ in _new_at(costs, i):
            if full := stored.full(id_, survey.size(id_)):
                costs.sizes.learn(id_, 0, _stored(full) / survey.size(id_))
            delta = stored.delta(id_, survey.size(id_), parent.keys()) if parent else None
            if delta and not any(candidate.predicted for candidate in delta):
                costs.sizes.learn(id_, 1, _stored(delta) / survey.size(id_))
    for each in stored_strides(costs):
        there = survey.versions[each.start].blobs.keys()
        for id_ in _new_at(costs, each.end):
            if delta := stored.delta(id_, survey.size(id_), there):
                costs.sizes.learn(id_, each.span, _stored(delta) / survey.size(id_))


def _new_at(costs: Costs, i: int) -> list[bytes]:
    """The blobs, other than empty ones, that version i is the first to have."""
    survey = costs.survey
    return [id_ for id_ in survey.versions[i].blobs if survey.first[id_] == i and survey.size(id_)]


def try_missing(costs: Costs, long: Iterable[Stride], *, full: bool) -> None:
    """Tries full records and deltas that are not stored, for some versions."""
    survey = costs.survey
    todo: list[Candidate] = []
    if full:
        numbers = [i for i in range(len(survey.versions)) if i not in costs.sources]
        for i in spread(numbers, most_tried(costs, numbers)):
            todo += [o for id_ in survey.versions[i].blobs for o in costs.full(i, id_)]
    for strides in (parents(costs), list(long)):
        missing = [each for each in strides if any(o.place is None for o in _made(costs, each))]
        for each in spread(missing, most_tried(costs, [stride.end for stride in missing])):
            todo += _made(costs, each)
    for (id_, base), span in {(o.id, o.base): o.span for o in todo if o.place is None}.items():
        costs.sizes.measure(id_, base, span)


def _made(costs: Costs, stride: Stride) -> list[Candidate]:
    made = costs.between(stride.start, stride.end).values()
    return [candidate for candidates in made for candidate in candidates]


def _stored(candidates: Iterable[Candidate]) -> int:
    return sum(candidate.stored for candidate in candidates)
