"""The versions of a repository, the codings of each piece of a blob that are stored or could be
stored, and what these take.

A coding that is stored is taken as it is. What others would take is tried on some versions and
interpolated on the rest. A trial recovers the tensor and chooses a coding as a commit would. Sizes
of a line of tensors change slowly from version to version, so between two that are known the share
of raw bytes is taken to change evenly.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import TypeVar

from msgspec import Struct, field
from msgspec.structs import replace

from mvc.ids import CommitId, ManifestId
from mvc.limits import PIECE
from mvc.maintenance.estimate import sampled
from mvc.maintenance.graph import StorageGraph
from mvc.maintenance.rewrite_plan import encoding_policy
from mvc.model.commit import Commit
from mvc.model.manifest import Manifest
from mvc.model.tensor import TensorSpec
from mvc.repo.config import Config
from mvc.repo.content.predecessors import BaseFinder, content_names
from mvc.repo.lookup import manifests
from mvc.repo.lookup.manifest_stream import ManifestStream
from mvc.store.packs.records import BLOB
from mvc.store.recovery.rates import Rates
from mvc.store.store import Store
from mvc.store.writing.full_or_delta import Choice
from mvc.types import Progress


class Version(Struct, frozen=True):
    """``blobs``: its contents by id, each with its line: the path and name it is found under.

    ``sequence``: the operation that published it, ``entry_index``: its position in the graph. It
    has so many ``files`` of ``nbytes`` in all.
    """

    commit: CommitId
    sequence: int
    entry_index: int
    manifest: ManifestId
    parent: int | None
    blobs: Mapping[bytes, str]
    files: int
    nbytes: int


class Survey(Struct):
    """Versions in the order of publication; parents before children.

    ``specs``: of their blobs. ``numbers``: the place of each version. ``first``: by blob the place
    of the first version that has it.
    """

    store: Store
    config: Config
    found: StorageGraph
    versions: list[Version] = field(default_factory=list)
    specs: dict[bytes, TensorSpec] = field(default_factory=dict)
    numbers: dict[CommitId, int] = field(default_factory=dict)
    first: dict[bytes, int] = field(default_factory=dict)
    _generations: list[int] = field(default_factory=list)

    def size(self, id_: bytes) -> int:
        return self.specs[id_].nbytes

    def new_in(self, a: int, b: int) -> list[bytes]:
        """The blobs of version b that version a does not have."""
        there = self.versions[a].blobs
        return [id_ for id_ in self.versions[b].blobs if id_ not in there]

    def bases(self, a: int, b: int) -> dict[bytes, bytes]:
        """For blobs that b has and a lacks, the blob of a that is the base of a delta."""
        new = set(self.new_in(a, b))
        if not new:
            return {}
        finder = BaseFinder(self.manifest(a))
        found: dict[bytes, bytes] = {}
        for entry in self.manifest(b).all_entries:
            names = content_names(entry.contents, entry.tensors)
            for name, content in zip(names, entry.contents, strict=True):
                base = finder.find(entry.path, name, content.spec)
                if base is not None and content.id in new and base.id in self.versions[a].blobs:
                    found.setdefault(content.id, base.id)
        return found

    def manifest(self, i: int) -> Manifest:
        return manifests.load(self.store, self.versions[i].manifest)

    def generation(self, i: int) -> int:
        """How many ancestors a version has."""
        for j in range(len(self._generations), i + 1):
            parent = self.versions[j].parent
            self._generations.append(0 if parent is None else self._generations[parent] + 1)
        return self._generations[i]

    def distance(self, older: bytes, newer: bytes) -> int | None:
        """How many generations before the first version of a blob another one was last there."""
        at, generations = self.versions[self.first[newer]].parent, 1
        while at is not None and older not in self.versions[at].blobs:
            # No version before the first one that has the blob can have it.
            at = self.versions[at].parent if at > self.first[older] else None
            generations += 1
        return None if at is None else generations

    def ancestor(self, i: int, steps: int) -> int | None:
        """The version ``steps`` generations back; None before the first."""
        at: int | None = i
        for _ in range(steps):
            if at is None:
                return None
            at = self.versions[at].parent
        return at


def survey(
    store: Store, config: Config, found: StorageGraph, progress: Progress | None = None
) -> Survey:
    """Reads every manifest. Forgotten states and given up weights are left out."""
    made, stream = Survey(store, config, found), ManifestStream(store)
    gone = found.history.forgotten
    given_up = found.history.dropped_paths(found.history.numbers.keys() - gone.keys())
    commits: dict[CommitId, Commit] = {}
    published: dict[CommitId, tuple[int, int]] = {}
    for position, recorded in enumerate(found.entries):
        for commit in recorded.entry.commits:
            commits[commit.id] = commit
            published.setdefault(commit.id, (recorded.sequence, position))
    for id_, commit in commits.items():
        if id_ in gone or id_ in made.numbers:
            continue
        parent = _nearest(commit, commits, made.numbers)
        blobs: dict[bytes, str] = {}
        steps = [coding.step for coding in found.codings(commit.manifest)]
        entries = stream.load(commit.manifest, steps).all_entries
        for entry in entries:
            if entry.path in given_up.get(commit.manifest, ()):
                continue
            names = content_names(entry.contents, entry.tensors)
            for name, content in zip(names, entry.contents, strict=True):
                blobs.setdefault(content.id, f"{entry.path}\0{name}")
                made.specs[content.id] = content.spec
        made.numbers[id_] = len(made.versions)
        for blob in blobs:
            made.first.setdefault(blob, len(made.versions))
        number = None if parent is None else made.numbers[parent]
        sequence, entry_index = published[id_]
        nbytes = sum(entry.size for entry in entries)
        made.versions.append(
            Version(
                commit=id_,
                sequence=sequence,
                entry_index=entry_index,
                manifest=commit.manifest,
                parent=number,
                blobs=blobs,
                files=len(entries),
                nbytes=nbytes,
            )
        )
        if progress is not None:
            progress(len(made.versions), len(commits), "versions")
    return made


def _nearest(
    commit: Commit, commits: Mapping[CommitId, Commit], there: Mapping[CommitId, int]
) -> CommitId | None:
    """The nearest ancestor along first parents that still has its state."""
    at: Commit | None = commit
    while at is not None and at.parents:
        if at.parents[0] in there:
            return at.parents[0]
        at = commits.get(at.parents[0])
    return None


Node = tuple[bytes, int]
"""A blob's id and the first byte of one of its pieces."""


class Candidate(Struct, frozen=True):
    """A coding of one piece of a blob: in full, or as a delta from the same piece of ``base``.

    ``nbytes``: raw bytes. ``seconds``: estimated processor time to read and decode it.
    ``stored``: payload bytes; ``grouped`` candidates share a payload, of
    which ``stored`` is their share. ``place``: where it is stored, None if it is not; then
    ``sure`` says whether a trial has confirmed its form. ``reversible``: the base can be
    recovered from it. ``forward_only``: a coding whose stages drop bytes of the base, so that
    it cannot be reversed whichever of the two is published first. ``span``: generations between
    the blob and ``base``, as far as a delta that is not stored was asked for between two versions.
    ``predicted``: by an optimizer's step, which needs the same piece of ``inputs`` as well.
    """

    id: bytes
    start: int
    nbytes: int
    stored: int
    seconds: float
    base: bytes | None = None
    reversible: bool = False
    place: tuple[int, int, int] | None = None
    grouped: bool = False
    sure: bool = True
    forward_only: bool = False
    span: int = 1
    predicted: bool = False
    inputs: tuple[bytes, ...] = ()

    @property
    def node(self) -> Node:
        return self.id, self.start

    @property
    def group(self) -> tuple[int, int]:
        """Pack and offset of the record that it is stored in."""
        assert self.place is not None
        return self.place[:2]

    @property
    def needs(self) -> list[Node]:
        """The pieces that it is decoded from."""
        return [(id_, self.start) for id_ in (self.base, *self.inputs) if id_ is not None]

    @property
    def is_one_way(self) -> bool:
        """Whether the base cannot be recovered from it, but a delta of its kind could be reversed.

        Then the delta turned round can be stored in its place.
        """
        return not self.reversible and not self.forward_only


def starts_of(nbytes: int) -> range:
    """The offset of each piece of a blob of ``nbytes`` bytes."""
    return range(0, max(nbytes, 1), PIECE)


class Candidates:
    """The stored codings by piece."""

    def __init__(
        self, found: StorageGraph, rates: Rates, specs: Mapping[bytes, TensorSpec]
    ) -> None:
        self._by_node: dict[Node, list[Candidate]] = defaultdict(list)
        self.groups: dict[tuple[int, int], list[Candidate]] = defaultdict(list)
        for coding in found.all_codings():
            member = coding.member
            if member.kind != BLOB:
                continue
            candidate = Candidate(
                id=member.id,
                start=member.start,
                nbytes=member.nbytes,
                stored=coding.stored,
                seconds=rates.payload(coding.record.header, member, specs.get(member.id)),
                base=coding.base,
                reversible=coding.reversible,
                place=coding.place,
                grouped=coding.record.header.group,
                forward_only=member.coding.forward_only,
                predicted=member.coding.predicted,
                inputs=coding.inputs,
            )
            self._by_node[candidate.node].append(candidate)
            if candidate.grouped:
                self.groups[coding.record.pack, coding.record.offset].append(candidate)

    def __iter__(self) -> Iterator[Candidate]:
        for candidates in self._by_node.values():
            yield from candidates

    def of(self, node: Node) -> list[Candidate]:
        return self._by_node.get(node, [])

    def added(self, id_: bytes, nbytes: int) -> list[Candidate]:
        """All codings of an object that approximate steps or an optimizer's lead to; nothing of
        others.
        """
        found = [o for start in starts_of(nbytes) for o in self.of((id_, start))]
        steps = any(o.predicted or (o.forward_only and o.grouped) for o in found)
        return found if steps else []

    def full(self, id_: bytes, nbytes: int) -> list[Candidate] | None:
        """The smallest full record of each piece; None if a piece has none."""
        found = [
            min((o for o in self.of((id_, start)) if o.base is None), key=_stored, default=None)
            for start in starts_of(nbytes)
        ]
        return (
            None if None in found else [candidate for candidate in found if candidate is not None]
        )

    def delta(self, id_: bytes, nbytes: int, bases: Collection[bytes]) -> list[Candidate] | None:
        """The smallest delta of each piece from one of ``bases``.

        A piece without such a delta is taken from its full record. None if a piece has
        neither, or if none of the pieces is a delta.
        """
        found: list[Candidate] = []
        for start in starts_of(nbytes):
            fitting = [o for o in self.of((id_, start)) if o.base is None or o.base in bases]
            deltas = [o for o in fitting if o.base is not None]
            best = min(deltas or fitting, key=_stored, default=None)
            if best is None:
                return None
            found.append(best)
        return found if any(candidate.base is not None for candidate in found) else None


def found_from_base(found: StorageGraph, id_: bytes, base: bytes | None) -> bool:
    """Whether the reverse lookup from ``base`` would find a new delta that makes ``id_``."""
    return base is not None and found.entry_of(base) <= found.entry_of(id_)


def _stored(candidate: Candidate) -> int:
    return candidate.stored


_GUESS = {False: 0.9, True: 0.6}  # shares of full records and deltas before any is known


class Sizes:
    """Estimates of sizes, which get better with what is learned and measured.

    ``span``: generations between a blob and its base, 0 for a full record.
    """

    def __init__(self, survey: Survey) -> None:
        self._survey = survey
        self._policy = encoding_policy(survey.config)
        self._rates = survey.store.rates
        self._known: dict[tuple[str, int], list[tuple[int, float]]] = defaultdict(list)
        self._all: dict[int, list[float]] = defaultdict(lambda: [0.0, 0.0])
        self._tried: dict[tuple[bytes, bytes | None], Choice] = {}

    def learn(self, id_: bytes, span: int, share: float) -> None:
        """Records the share of its raw bytes that a blob takes."""
        at = self._survey.first[id_]
        insort(self._known[self._line(id_, at), span], (at, share))
        total = self._all[span]
        total[0] += share
        total[1] += 1

    def _line(self, id_: bytes, at: int) -> str:
        """The line of tensors that a blob belongs to in version ``at``."""
        return self._survey.versions[at].blobs[id_]

    def full(self, id_: bytes, at: int) -> list[Candidate]:
        tried = self._tried.get((id_, None))
        share = tried.share if tried else self._share(self._line(id_, at), at, 0)
        return self._pieces(id_, None, share, span=0, sure=tried is not None)

    def delta(self, id_: bytes, base: bytes, span: int) -> list[Candidate]:
        """The delta of a blob from a base; full if a trial showed that a delta is not worth it."""
        tried = self._tried.get((id_, base))
        if tried is None:
            alike = self._survey.size(id_) == self._survey.size(base)
            at = self._survey.first[id_]
            share = self._share(self._line(id_, at), at, span)
            return self._pieces(id_, base, share, span=span, reversible=alike)
        known, plain = base if tried.against else None, tried.pipeline and not tried.transform
        return self._pieces(id_, known, tried.share, span=span, reversible=bool(plain), sure=True)

    def _pieces(
        self,
        id_: bytes,
        base: bytes | None,
        share: float,
        *,
        span: int,
        reversible: bool = False,
        sure: bool = False,
    ) -> list[Candidate]:
        nbytes, spec = self._survey.size(id_), self._survey.specs[id_]
        pipeline = self._policy.pipeline if base else self._policy.pipeline.full()
        forward_only = base is not None and not reversible
        reversible = reversible and found_from_base(self._survey.found, id_, base)
        found = []
        for start in starts_of(nbytes):
            length = min(PIECE, nbytes - start)
            stored = max(1, round(share * length))
            found.append(
                Candidate(
                    id=id_,
                    start=start,
                    nbytes=length,
                    stored=stored,
                    seconds=self._rates.coding(pipeline, length, spec, stored),
                    base=base,
                    reversible=reversible,
                    sure=sure,
                    forward_only=forward_only,
                    span=span,
                )
            )
        return found

    def _share(self, line: str, at: int, span: int) -> float:
        known = self._known.get((line, span))
        if not known:
            return self._typical(span)
        place = bisect_left(known, (at, -1.0))
        if place == len(known) or place == 0:
            return known[min(place, len(known) - 1)][1]
        (a, low), (b, high) = known[place - 1], known[place]
        return low if a == b else low + (high - low) * (at - a) / (b - a)

    def _typical(self, span: int) -> float:
        """The mean of all lines; a longer delta is at least as large as a short one."""
        total, count = self._all[span]
        if count:
            return total / count
        if span > 1:
            return max(_GUESS[True], self._typical(1))
        return _GUESS[span > 0]

    # -- trials ------------------------------------------------------------------------

    def measure(self, id_: bytes, base: bytes | None, span: int) -> None:
        """A trial: recovers a blob and its base and encodes it as a commit would."""
        if (id_, base) in self._tried:
            return
        survey, under = self._survey, None
        spec, recovery, found = survey.specs[id_], survey.store.recovery, survey.found
        if base is not None and not found.shares_prefix[found.number(base)]:
            under = base, survey.specs[base]
        starts = starts_of(spec.nbytes)
        start = starts[len(starts) // 2 if len(starts) > 2 else 0]
        tried = sampled(recovery, self._policy, (id_, spec), under, start=start)
        self._tried[id_, base] = tried
        self.learn(id_, span if tried.against else 0, tried.share)


class Costs:
    """``candidates``: the stored codings. ``sources``: versions of which every blob is in full."""

    def __init__(self, survey: Survey, candidates: Candidates, sizes: Sizes, rates: Rates) -> None:
        self.survey = survey
        self.candidates = candidates
        self.sizes = sizes
        self.rates = rates
        self.sources = {i for i in range(len(survey.versions)) if self._is_source(i)}
        self._bases = cache(survey.bases)

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
            base = None if stored else self._bases(a, b).get(id_)
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
        return (
            (id_, base, list(pieces.values()))
            for (id_, base), pieces in found.items()
            if len(pieces) == len(starts_of(self.survey.size(id_)))
        )

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
