"""What is known of sizes: those of stored codings, and of some that are tried by encoding them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar

from mvc.maintenance.repack.candidates import Candidate
from mvc.maintenance.repack.costs import Costs
from mvc.types import Progress

_TRIALS = 32  # versions of which codings are tried
_FEWEST = 4
_RAW = 4 << 30  # bytes that trials may recover, unless there are fewer than that many

_T = TypeVar("_T")


def learn_stored(costs: Costs) -> None:
    """Records the share of raw bytes that every stored coding takes."""
    survey = costs.survey
    for id_, base, made in costs.whole():
        newer, span, raw = id_, 0, survey.size(id_)
        if base is not None:
            older, newer = sorted((id_, base), key=survey.first.__getitem__)
            span = survey.distance(older, newer) or 0
        if raw and not any(o.predicted for o in made) and (base is None or span):
            costs.sizes.learn(newer, span, sum(o.stored for o in made) / raw)


def attempt(
    costs: Costs, candidates: Iterable[Candidate], progress: Progress | None = None
) -> bool:
    """Tries codings that are not stored: all of them if they concern few versions.

    Returns whether there were any.
    """
    first = costs.survey.first
    unsure = [candidate for candidate in candidates if not candidate.sure]
    numbers = sorted({first[candidate.id] for candidate in unsure})
    chosen = set(spread(numbers, most_tried(costs, numbers)))
    todo = {(o.id, o.base): o.span for o in unsure if first[o.id] in chosen}
    for done, ((id_, base), span) in enumerate(todo.items()):
        costs.sizes.measure(id_, base, span)
        if progress is not None:
            progress(done + 1, len(todo), "trials")
    return bool(todo)


def most_tried(costs: Costs, numbers: Sequence[int]) -> int:
    """Of how many of these versions codings are tried."""
    survey = costs.survey
    raw = max(
        (sum(map(survey.size, survey.versions[i].blobs)) for i in numbers[:_TRIALS]), default=0
    )
    return max(_FEWEST, min(_TRIALS, _RAW // max(1, raw)))


def spread(items: Sequence[_T], count: int) -> list[_T]:
    """Up to ``count`` items at equal distances, including the first and the last."""
    if len(items) <= count:
        return list(items)
    return [items[round(i * (len(items) - 1) / (count - 1))] for i in range(count)]
