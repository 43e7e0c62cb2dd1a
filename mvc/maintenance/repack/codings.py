"""What may be chosen for each content: its stored codings, and new ones at their estimated price.

Sizes of codings that are not stored are estimated from stored ones of the same line of
tensors; some are measured by encoding them (a trial).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

from msgspec.structs import replace

from mvc.maintenance.repack.candidates import (
    Candidate,
    Candidates,
    found_from_base,
    starts_of,
)
from mvc.maintenance.repack.sizes import Sizes
from mvc.maintenance.repack.survey import Survey
from mvc.store.recovery.timing import Timing
from mvc.types import Progress

__all__ = ["Codings"]

_TRIALS = 32  # versions of which contents are tried
_FEWEST = 4
_RAW = 4 << 30  # bytes that trials may recover, unless there are fewer than that many

_T = TypeVar("_T")


class Codings:
    """``first``: the first version that has a content. ``number``: of each content, in their order.
    ``stored``: all stored codings.
    """

    def __init__(self, survey: Survey, timing: Timing) -> None:
        self.survey = survey
        self.timing = timing
        self.stored = Candidates(survey.found, timing, survey.specs)
        self.first: dict[bytes, int] = {}
        for i, version in enumerate(survey.versions):
            for id_ in version.blobs:
                self.first.setdefault(id_, i)
        self.number = {id_: number for number, id_ in enumerate(self.first)}
        self._sizes = Sizes(survey)
        self._spans: dict[tuple[bytes, bytes | None], int] = {}
        self._learn()

    def full(self, id_: bytes) -> list[Candidate]:
        """The full records of a content."""
        stored = self.stored.full(id_, self.survey.size(id_))
        return stored or self._sizes.full(id_, self._line(id_), self.first[id_])

    def anew(self, id_: bytes) -> list[Candidate]:
        """The full records of a content, encoded again although there are some."""
        self._attempt(id_, None)
        return self._sizes.full(id_, self._line(id_), self.first[id_])

    def between(self, a: int, b: int) -> dict[bytes, list[Candidate]]:
        """For each content of version b that a lacks, the codings that make it from version a."""
        survey, stored = self.survey, self.stored
        blobs_a, blobs_b = survey.versions[a].blobs, survey.versions[b].blobs
        found: dict[bytes, list[Candidate]] = {}
        for id_ in survey.new_in(a, b):
            nbytes = survey.size(id_)
            known = stored.delta(id_, nbytes, blobs_a.keys())
            known = known or stored.delta(id_, nbytes, blobs_b.keys())
            base = None if known else survey.bases(a, b).get(id_)
            if base is not None:
                known = stored.delta(base, survey.size(base), [id_])
                self._spans.setdefault((id_, base), survey.generation(b) - survey.generation(a))
            new = self.full(id_) if base is None else self._delta(id_, base)
            found[id_] = known or new
        return found

    def renewed(self, id_: bytes, base: bytes, candidates: list[Candidate]) -> list[Candidate]:
        """The same delta at the price that trials since then have shown."""
        new = any(o.base is not None and o.place is None for o in candidates)
        return self._delta(id_, base) if new else candidates

    def tried(self, id_: bytes, base: bytes) -> list[Candidate]:
        """A delta that is not stored, after trying it."""
        self._attempt(id_, base)
        return self._delta(id_, base)

    def turned(self, candidate: Candidate) -> Candidate:
        """The delta from a piece to its base, taken to be of the same size."""
        id_, base = candidate.base, candidate.id
        assert id_ is not None
        self._spans[id_, base] = self._spans.get((base, id_), 1)
        reversible = found_from_base(self.survey.found, id_, base)
        return replace(
            candidate, id=id_, base=base, reversible=reversible, place=None, grouped=False
        )

    def attempt(self, candidates: Iterable[Candidate], progress: Progress | None = None) -> None:
        """Tries those of the codings that are not stored: all if they concern few versions."""
        new = [candidate for candidate in candidates if candidate.place is None]
        numbers = sorted({self.first[candidate.id] for candidate in new})
        chosen = set(_spread(numbers, self._count(numbers)))
        pairs = dict.fromkeys((o.id, o.base) for o in new if self.first[o.id] in chosen)
        for done, (id_, base) in enumerate(pairs):
            self._attempt(id_, base)
            if progress is not None:
                progress(done + 1, len(pairs), "trials")

    def _delta(self, id_: bytes, base: bytes) -> list[Candidate]:
        span = self._spans.get((id_, base), 1)
        made = self._sizes.delta(id_, base, self._line(id_), self.first[id_], span)
        return made if made[0].base is not None else self.full(id_)

    def _attempt(self, id_: bytes, base: bytes | None) -> None:
        span = 0 if base is None else self._spans.get((id_, base), 1)
        self._sizes.attempt(id_, base, self._line(id_), self.first[id_], span)

    def _count(self, numbers: Sequence[int]) -> int:
        """How many of these versions to try."""
        survey = self.survey
        each = (sum(map(survey.size, survey.versions[i].blobs)) for i in numbers[:_TRIALS])
        return max(_FEWEST, min(_TRIALS, _RAW // max(1, *each, 1)))

    def _line(self, id_: bytes) -> str:
        return self.survey.versions[self.first[id_]].blobs[id_]

    def _learn(self) -> None:
        """Records the share of raw bytes that every stored coding takes."""
        for id_, base, made in self.whole():
            newer, span = id_, 0
            if base is not None:
                older, newer = sorted((id_, base), key=self.number.__getitem__)
                generations = self._generations(older, newer)
                if generations is None:
                    continue
                span = generations
            if raw := self.survey.size(id_):
                share = sum(coding.stored for coding in made) / raw
                self._sizes.learn(self._line(newer), self.first[newer], span, share)

    def whole(self) -> Iterator[tuple[bytes, bytes | None, list[Candidate]]]:
        """The stored codings by content and base that make all of the content."""
        found: dict[tuple[bytes, bytes | None], dict[int, Candidate]] = defaultdict(dict)
        for coding in self.stored:
            if coding.id in self.first and (coding.base is None or coding.base in self.first):
                pieces = found[coding.id, coding.base]
                best = pieces.setdefault(coding.start, coding)
                pieces[coding.start] = min(best, coding, key=lambda each: each.stored)
        for (id_, base), pieces in found.items():
            if len(pieces) == len(starts_of(self.survey.size(id_))):
                yield id_, base, list(pieces.values())

    def _generations(self, older: bytes, newer: bytes) -> int | None:
        """How many generations before the first version of a content another one was last there."""
        versions, first, generations = self.survey.versions, self.first[older], 1
        at = versions[self.first[newer]].parent
        while at is not None and older not in versions[at].blobs:
            # No version before the first one that has the content can have it.
            at = versions[at].parent if at > first else None
            generations += 1
        return None if at is None else generations


def _spread(items: Sequence[_T], count: int) -> list[_T]:
    """Up to ``count`` items at equal distances, including the first and the last."""
    if len(items) <= count:
        return list(items)
    return [items[round(i * (len(items) - 1) / (count - 1))] for i in range(count)]
