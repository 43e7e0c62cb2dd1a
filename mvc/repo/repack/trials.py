"""Learning what codings cost: from what is stored, and by trying some of what is not."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar

from mvc.repo.context import Progress
from mvc.repo.repack.candidates import Option
from mvc.repo.repack.costs import Costs

__all__ = ["learn_stored", "try_missing", "try_new"]

_TRIALS = 32  # versions, or deltas between two
_FEWEST = 4
_RAW = 4 << 30  # bytes that trials may recover, unless there are fewer than that many

_T = TypeVar("_T")


def learn_stored(costs: Costs) -> None:
    """Takes in the share of raw bytes of every stored coding."""
    survey = costs.survey
    for i, version in enumerate(survey.versions):
        parent = {} if version.parent is None else survey.versions[version.parent].blobs
        for id_, line in version.blobs.items():
            raw = survey.size(id_)
            if costs.first[id_] != i or not raw:
                continue
            if full := costs.options.full(id_, raw):
                costs.sizes.learn(line, i, 0, _stored(full) / raw)
            if parent and (delta := costs.options.delta(id_, raw, parent.keys())):
                costs.sizes.learn(line, i, 1, _stored(delta) / raw)


def try_missing(
    costs: Costs,
    long: Iterable[tuple[int, int, int]],
    progress: Progress | None = None,
    *,
    full: bool,
) -> None:
    """Tries, for some versions, the full records and deltas that are not stored."""
    survey = costs.survey
    todo: list[Option] = []
    if full:
        numbers = [i for i in range(len(survey.versions)) if i not in costs.sources]
        for i in _spread(numbers, _count(costs, numbers)):
            todo += [o for id_ in survey.versions[i].blobs for o in costs.full(i, id_)]
    short = [(v.parent, i, 1) for i, v in enumerate(survey.versions) if v.parent is not None]
    for pairs in (short, list(long)):
        missing = [pair for pair in pairs if any(o.place is None for o in _made(costs, *pair))]
        for pair in _spread(missing, _count(costs, [b for _, b, _ in missing])):
            todo += _made(costs, *pair)
    _attempt(costs, todo, progress)


def try_new(costs: Costs, new: Sequence[Option], progress: Progress | None = None) -> None:
    """Tries codings that a plan would make: all of them where few versions are concerned."""
    unsure = [option for option in new if not option.sure]
    numbers = sorted({costs.first[option.id] for option in unsure})
    chosen = set(_spread(numbers, _count(costs, numbers)))
    _attempt(costs, [option for option in unsure if costs.first[option.id] in chosen], progress)


def _attempt(costs: Costs, options: Iterable[Option], progress: Progress | None) -> None:
    pairs = dict.fromkeys((o.id, o.base) for o in options if o.place is None)
    for done, (id_, base) in enumerate(pairs):
        costs.attempt(id_, base)
        if progress is not None:
            progress(done + 1, len(pairs), "trials")


def _made(costs: Costs, a: int, b: int, span: int) -> list[Option]:
    return [option for options in costs.between(a, b, span).values() for option in options]


def _count(costs: Costs, numbers: Sequence[int]) -> int:
    """How many of these versions to try."""
    survey = costs.survey
    raw = max(
        (sum(map(survey.size, survey.versions[i].blobs)) for i in numbers[:_TRIALS]), default=0
    )
    return max(_FEWEST, min(_TRIALS, _RAW // max(1, raw)))


def _spread(items: Sequence[_T], count: int) -> list[_T]:
    """Up to ``count`` items at equal distances, the first and the last among them."""
    if len(items) <= count:
        return list(items)
    return [items[round(i * (len(items) - 1) / (count - 1))] for i in range(count)]


def _stored(options: Iterable[Option]) -> int:
    return sum(option.stored for option in options)
