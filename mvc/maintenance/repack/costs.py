"""Which codings make a blob, in full or from another version, and what they take.

A coding that is stored is taken as it is; of others ``Sizes`` estimates the bytes.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from mvc.maintenance.repack.candidates import Candidate, Candidates, found_from_base, starts_of
from mvc.maintenance.repack.sizes import Sizes
from mvc.maintenance.repack.survey import Survey
from mvc.store.recovery.rates import Rates


class Costs:
    """``candidates``: the stored codings. ``sources``: versions of which every blob is in full."""

    def __init__(self, survey: Survey, candidates: Candidates, sizes: Sizes, rates: Rates) -> None:
        self.survey = survey
        self.candidates = candidates
        self.sizes = sizes
        self.rates = rates
        self.sources = {i for i in range(len(survey.versions)) if self._is_source(i)}
        self._bases: dict[tuple[int, int], dict[bytes, bytes]] = {}

    def _is_source(self, i: int) -> bool:
        blobs = self.survey.versions[i].blobs
        return all(self.candidates.full(id_, self.survey.size(id_)) for id_ in blobs)

    def full(self, i: int, id_: bytes) -> list[Candidate]:
        return self.candidates.full(id_, self.survey.size(id_)) or self.sizes.full(id_, i)

    def alone(self, id_: bytes) -> list[Candidate]:
        """The full records of a blob of any version."""
        return self.full(self.survey.first[id_], id_)

    def between(self, a: int, b: int) -> dict[bytes, list[Candidate]]:
        """For each blob of b that a lacks, the codings that make it from version a."""
        blobs_a, blobs_b = self.survey.versions[a].blobs, self.survey.versions[b].blobs
        found: dict[bytes, list[Candidate]] = {}
        for id_ in self.survey.new_in(a, b):
            nbytes = self.survey.size(id_)
            stored = self.candidates.delta(id_, nbytes, blobs_a.keys())
            stored = stored or self.candidates.delta(id_, nbytes, blobs_b.keys())
            if stored is None and b not in self.sources and self.candidates.full(id_, nbytes):
                found[id_] = self.full(b, id_)  # a commit found that a delta is not worth it
                continue
            base = None if stored else self._bases_of(a, b).get(id_)
            if base is not None:
                stored = self.candidates.delta(base, self.survey.size(base), [id_])
            if stored is not None:
                found[id_] = stored
            elif base is not None:
                span = self.survey.generation(b) - self.survey.generation(a)
                found[id_] = self._delta(id_, base, span)
            else:
                found[id_] = self.full(b, id_)
        return found

    def _bases_of(self, a: int, b: int) -> dict[bytes, bytes]:
        """As ``Survey.bases``, cached."""
        if (a, b) not in self._bases:
            self._bases[a, b] = self.survey.bases(a, b)
        return self._bases[a, b]

    def _delta(self, id_: bytes, base: bytes, span: int) -> list[Candidate]:
        made = self.sizes.delta(id_, base, span)
        return made if made[0].base is not None else self.alone(id_)

    def whole(self) -> Iterator[tuple[bytes, bytes | None, list[Candidate]]]:
        """The stored codings by blob and base that make all of the blob, both of versions."""
        first, found = self.survey.first, dict[tuple[bytes, bytes | None], dict[int, Candidate]]()
        for coding in self.candidates:
            if coding.id in first and (coding.base is None or coding.base in first):
                pieces = found.setdefault((coding.id, coding.base), {})
                best = pieces.setdefault(coding.start, coding)
                pieces[coding.start] = min(best, coding, key=lambda each: each.stored)
        for (id_, base), pieces in found.items():
            if len(pieces) == len(starts_of(self.survey.size(id_))):
                yield id_, base, list(pieces.values())

    def renewed(self, id_: bytes, base: bytes, candidates: list[Candidate]) -> list[Candidate]:
        """The same delta at the price that trials since then have shown."""
        new = [o for o in candidates if o.base is not None and o.place is None]
        return self._delta(id_, base, new[0].span) if new else candidates

    def tried(self, id_: bytes, base: bytes, span: int = 1) -> list[Candidate]:
        """A delta that is not stored, after trying it."""
        self.sizes.measure(id_, base, span)
        return self._delta(id_, base, span)

    def anew(self, id_: bytes) -> list[Candidate]:
        """The full record of a blob, encoded again although there is one, after trying it."""
        self.sizes.measure(id_, None, 0)
        return self.sizes.full(id_, self.survey.first[id_])

    def turned(self, candidate: Candidate) -> Candidate:
        """The delta from a piece to its base, taken to be of the same size."""
        id_, base = candidate.base, candidate.id
        assert id_ is not None
        reversible = found_from_base(self.survey.found, id_, base)
        return replace(
            candidate, id=id_, base=base, reversible=reversible, place=None, grouped=False
        )
