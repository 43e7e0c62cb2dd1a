"""Costs of the planning graph: bytes and time of each version and each delta."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from mvc.maintenance.repack.candidates import Candidate, Candidates, found_from_base
from mvc.maintenance.repack.sizes import Sizes
from mvc.maintenance.repack.solve.model import Edge, Selected, Versions
from mvc.maintenance.repack.survey import Survey
from mvc.store.recovery.timing import Timing

_LOSS = 0.02  # an edge that loses more of a version's bytes on the way back is forward only


class Costs:
    """Prices blobs and deltas, stored or not, and builds the planner's graph."""

    def __init__(
        self, survey: Survey, candidates: Candidates, sizes: Sizes, timing: Timing
    ) -> None:
        self.survey = survey
        self.candidates = candidates
        self.sizes = sizes
        self.timing = timing
        self._bases: dict[tuple[int, int], dict[bytes, bytes]] = {}
        self._spans: dict[tuple[bytes, bytes | None], int] = {}
        self._roots = self._families()
        self._common = self._shared_blobs()
        self.sources = {i for i in range(len(survey.versions)) if self._is_source(i)}
        self.first: dict[bytes, int] = {}
        for i, version in enumerate(survey.versions):
            for id_ in version.blobs:
                self.first.setdefault(id_, i)

    def full(self, i: int, id_: bytes) -> list[Candidate]:
        """The full records of a blob of version i."""
        nbytes = self.survey.size(id_)
        line = self.survey.versions[i].blobs[id_]
        return self.candidates.full(id_, nbytes) or self.sizes.full(id_, line, i)

    def alone(self, id_: bytes) -> list[Candidate]:
        """The full records of a blob of any version."""
        return self.full(self.first[id_], id_)

    def between(self, a: int, b: int, span: int) -> dict[bytes, list[Candidate]]:
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
            base = None if stored else self.bases(a, b).get(id_)
            if base is not None:
                stored = self.candidates.delta(base, self.survey.size(base), [id_])
            if stored is not None:
                found[id_] = stored
            elif base is not None:
                self._spans[id_, base] = span
                found[id_] = self._delta(id_, base)
            else:
                found[id_] = self.full(b, id_)
        return found

    def _delta(self, id_: bytes, base: bytes) -> list[Candidate]:
        i = self.first[id_]
        line = self.survey.versions[i].blobs[id_]
        made = self.sizes.delta(id_, base, line=line, at=i, span=self._spans[id_, base])
        return made if made[0].base is not None else self.full(i, id_)

    def attempt(self, id_: bytes, base: bytes | None) -> None:
        """Measures by trial the size of a coding that is not stored."""
        i = self.first[id_]
        span = 0 if base is None else self._spans[id_, base]
        self.sizes.attempt(id_, base, line=self.survey.versions[i].blobs[id_], at=i, span=span)

    def tried(self, id_: bytes, base: bytes) -> list[Candidate]:
        """A delta that is not stored, after trying it."""
        self._spans.setdefault((id_, base), 1)
        self.attempt(id_, base)
        return self._delta(id_, base)

    def anew(self, id_: bytes) -> list[Candidate]:
        """The full record of a blob, encoded again although there is one, after trying it."""
        self.attempt(id_, None)
        i = self.first[id_]
        return self.sizes.full(id_, self.survey.versions[i].blobs[id_], i)

    def turned(self, candidate: Candidate) -> Candidate:
        """The delta from a piece to its base, taken to be of the same size."""
        id_, base = candidate.base, candidate.id
        assert id_ is not None
        self._spans[id_, base] = self._spans.get((base, id_), 1)
        reversible = found_from_base(self.survey.found, id_, base)
        return replace(
            candidate, id=id_, base=base, reversible=reversible, place=None, grouped=False
        )

    def stored_long(self) -> set[tuple[int, int, int]]:
        """Stored deltas over more than one generation: (from, to, generations)."""
        found = set()
        for candidate in self.candidates:
            if candidate.base is None or not {candidate.id, candidate.base} <= self.first.keys():
                continue
            older, newer = sorted((candidate.id, candidate.base), key=self.first.__getitem__)
            b: int = self.first[newer]
            a, span = self.survey.versions[b].parent, 1
            if older in self.survey.versions[b].blobs:
                continue
            while a is not None and older not in self.survey.versions[a].blobs:
                # No version before the first one that has the blob can have it.
                a = self.survey.versions[a].parent if a > self.first[older] else None
                span += 1
            if a is not None and span > 1:
                found.add((a, b, span))
        return found

    def bases(self, a: int, b: int) -> dict[bytes, bytes]:
        """As ``Survey.bases``, cached."""
        if (a, b) not in self._bases:
            self._bases[a, b] = self.survey.bases(a, b)
        return self._bases[a, b]

    def versions(self, long: Iterable[tuple[int, int, int]] = ()) -> Versions:
        """The planner's graph; ``long``: further deltas (from, to, generations)."""
        full_bytes, full_ns = [], []
        for i, version in enumerate(self.survey.versions):
            fulls = {id_: self.full(i, id_) for id_ in version.blobs}
            common = self._common[self._roots[i]]
            full_bytes.append(sum(_bytes(o) for id_, o in fulls.items() if id_ not in common))
            seconds = self.timing.version(_works(fulls.values()), version.files, version.nbytes)
            full_ns.append(round(seconds * 1e9))
        edges = [
            self._edge(version.parent, i, 1, long=False)
            for i, version in enumerate(self.survey.versions)
            if version.parent is not None
        ]
        edges += [self._edge(a, b, span, long=True) for a, b, span in long]
        shared = {id_ for ids in self._common.values() for id_ in ids}
        once = sum(_bytes(self.alone(id_)) for id_ in shared)
        return Versions(full_bytes, full_ns, edges, once)

    def _edge(self, a: int, b: int, span: int, *, long: bool) -> Edge:
        made = self.between(a, b, span)
        deltas = [candidates for candidates in made.values() if any(o.base for o in candidates)]
        lost = set(self.survey.new_in(b, a))
        every = [candidate for candidates in made.values() for candidate in candidates]
        lost -= {
            candidate.base for candidate in every if candidate.base and not candidate.forward_only
        }
        lost -= {candidate.id for candidate in every}
        size = sum(self.survey.size(id_) for id_ in self.survey.versions[a].blobs)
        forward = sum(self.survey.size(id_) for id_ in lost) > _LOSS * size
        ns = round(self.timing.decoding(_works(deltas)) * 1e9)
        return Edge(
            a,
            b,
            bytes=sum(map(_bytes, made.values())),
            ns=ns,
            forward=forward,
            long=long,
            span=span,
        )

    def today(self, versions: Versions) -> Selected:
        """The layout that is stored."""
        sources = frozenset(self.sources)
        edges = {n for n, edge in enumerate(versions.edges) if self._is_stored(edge, sources)}
        return Selected(sources, frozenset(edges))

    def _is_source(self, i: int) -> bool:
        """Whether a version is a reset point: all of its blobs are full records."""
        blobs = self.survey.versions[i].blobs
        return all(self.candidates.full(id_, self.survey.size(id_)) for id_ in blobs)

    def _is_stored(self, edge: Edge, sources: frozenset[int]) -> bool:
        made = self.between(edge.a, edge.b, edge.span).values()
        if any(candidate.place is None for candidates in made for candidate in candidates):
            return False
        deltas = any(candidate.base for candidates in made for candidate in candidates)
        return deltas or edge.b not in sources or not made

    def _families(self) -> list[int]:
        """The root that each version descends from."""
        roots: list[int] = []
        for i, version in enumerate(self.survey.versions):
            roots.append(i if version.parent is None else roots[version.parent])
        return roots

    def _shared_blobs(self) -> dict[int, set[bytes]]:
        """By root, the blobs that it and all its descendants have."""
        common: dict[int, set[bytes]] = {}
        for i, version in enumerate(self.survey.versions):
            root = self._roots[i]
            if root == i:
                common[root] = set(version.blobs)
            else:
                common[root] &= version.blobs.keys()
        return common


def _works(made: Iterable[Iterable[Candidate]]) -> list[tuple[int, float]]:
    """As ``Timing.decoding`` takes them."""
    return [(each.nbytes, each.seconds) for candidates in made for each in candidates]


def _bytes(candidates: Iterable[Candidate]) -> int:
    return sum(candidate.stored for candidate in candidates)
