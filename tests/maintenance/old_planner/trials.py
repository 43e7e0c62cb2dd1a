"""What is known of sizes: those of stored codings, and of some that are tried by encoding them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar

from mvc.maintenance.repack.candidates import Candidate
from mvc.maintenance.repack.costs import Costs
from mvc.types import Progress
from tests.maintenance.old_planner.version_graph import Stride, parents, stored_strides

_TRIALS = 32  # versions, or deltas between two
_FEWEST = 4
_RAW = 4 << 30  # bytes that trials may recover, unless there are fewer than that many

_T = TypeVar("_T")


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


def try_missing(
    costs: Costs, long: Iterable[Stride], progress: Progress | None = None, *, full: bool
) -> None:
    """Tries full records and deltas that are not stored, for some versions."""
    survey = costs.survey
    todo: list[Candidate] = []
    if full:
        numbers = [i for i in range(len(survey.versions)) if i not in costs.sources]
        for i in _spread(numbers, _count(costs, numbers)):
            todo += [o for id_ in survey.versions[i].blobs for o in costs.full(i, id_)]
    for strides in (parents(costs), list(long)):
        missing = [each for each in strides if any(o.place is None for o in _made(costs, each))]
        for each in _spread(missing, _count(costs, [stride.end for stride in missing])):
            todo += _made(costs, each)
    _try(costs, todo, progress)


def try_new(costs: Costs, new: Sequence[Candidate], progress: Progress | None = None) -> None:
    """Tries codings that a plan would make: all of them if it concerns few versions."""
    first = costs.survey.first
    unsure = [candidate for candidate in new if not candidate.sure]
    numbers = sorted({first[candidate.id] for candidate in unsure})
    chosen = set(_spread(numbers, _count(costs, numbers)))
    _try(costs, [candidate for candidate in unsure if first[candidate.id] in chosen], progress)


def _try(costs: Costs, candidates: Iterable[Candidate], progress: Progress | None) -> None:
    todo = {(o.id, o.base): o.span for o in candidates if o.place is None}
    for done, ((id_, base), span) in enumerate(todo.items()):
        costs.sizes.measure(id_, base, span)
        if progress is not None:
            progress(done + 1, len(todo), "trials")


def _made(costs: Costs, stride: Stride) -> list[Candidate]:
    made = costs.between(stride.start, stride.end).values()
    return [candidate for candidates in made for candidate in candidates]


def _count(costs: Costs, numbers: Sequence[int]) -> int:
    survey = costs.survey
    raw = max(
        (sum(map(survey.size, survey.versions[i].blobs)) for i in numbers[:_TRIALS]), default=0
    )
    return max(_FEWEST, min(_TRIALS, _RAW // max(1, raw)))


def _spread(items: Sequence[_T], count: int) -> list[_T]:
    """Up to ``count`` items at equal distances, including the first and the last."""
    if len(items) <= count:
        return list(items)
    return [items[round(i * (len(items) - 1) / (count - 1))] for i in range(count)]


def _stored(candidates: Iterable[Candidate]) -> int:
    return sum(candidate.stored for candidate in candidates)
