"""What ``mvc repack`` chooses from: the ways to store each tensor, with their sizes and times.

A *blob* is the data of a tensor, in *pieces* of up to 32 MiB. A *coding* stores a piece in full, or
as a delta from the same piece of another blob. The sizes of stored codings are known. For codings
that are not stored, some versions are tried: a trial encodes a piece as a commit would. For all
other versions, the ratio of stored to raw size is interpolated linearly along a *line*: the tensors
with the same path and name in successive versions.
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
from mvc.types import Counted, Progress


class Version(Struct, frozen=True):
    """``blobs``: maps the id of a blob to its line, the path and name of the tensor.

    ``sequence``: the number of the operation that published the version. ``entry_index``: the
    position of this operation in ``StorageGraph.entries``. ``parent``: the position of the nearest
    ancestor in ``Survey.versions``. ``files``, ``nbytes``: number and size of the version's files.
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
    """Versions in the order of publication, so that parents are before children.

    ``specs``: maps a blob to its dtype and shape. ``numbers``: maps a version to its position.
    ``first``: maps a blob to the position of the first version with the blob.
    """

    store: Store
    config: Config
    graph: StorageGraph
    versions: list[Version] = field(default_factory=list)
    specs: dict[bytes, TensorSpec] = field(default_factory=dict)
    numbers: dict[CommitId, int] = field(default_factory=dict)
    first: dict[bytes, int] = field(default_factory=dict)
    _generations: list[int] = field(default_factory=list)

    def size(self, id_: bytes) -> int:
        return self.specs[id_].nbytes

    def new_in(self, a: int, b: int) -> list[bytes]:
        """The blobs of version b that version a does not have."""
        existing = self.versions[a].blobs
        return [id_ for id_ in self.versions[b].blobs if id_ not in existing]

    def bases(self, a: int, b: int) -> dict[bytes, bytes]:
        """Maps the blobs that b has and a lacks to the blobs of a that would be their bases."""
        new = set(self.new_in(a, b))
        if not new:
            return {}
        finder = BaseFinder(self.manifest(a))
        bases_: dict[bytes, bytes] = {}
        for entry in self.manifest(b).all_entries:
            names = content_names(entry.contents, entry.tensors)
            for name, content in zip(names, entry.contents, strict=True):
                base = finder.find(entry.path, name, content.spec)
                if base is not None and content.id in new and base.id in self.versions[a].blobs:
                    bases_.setdefault(content.id, base.id)
        return bases_

    def manifest(self, i: int) -> Manifest:
        return manifests.load(self.store, self.versions[i].manifest)

    def generation(self, i: int) -> int:
        """The number of ancestors of a version."""
        for j in range(len(self._generations), i + 1):
            parent = self.versions[j].parent
            self._generations.append(0 if parent is None else self._generations[parent] + 1)
        return self._generations[i]

    def distance(self, older: bytes, newer: bytes) -> int | None:
        """Generations from the last version with ``older`` to the first version with ``newer``.

        None if ``older`` is in no ancestor.
        """
        current, generations = self.versions[self.first[newer]].parent, 1
        while current is not None and older not in self.versions[current].blobs:
            # no version before ``first[older]`` has the blob
            current = self.versions[current].parent if current > self.first[older] else None
            generations += 1
        return None if current is None else generations

    def ancestor(self, i: int, steps: int) -> int | None:
        """The ancestor ``steps`` generations before a version; None if there is none."""
        current: int | None = i
        for _ in range(steps):
            if current is None:
                return None
            current = self.versions[current].parent
        return current


def survey(
    store: Store, config: Config, graph: StorageGraph, progress: Progress | None = None
) -> Survey:
    """Reads every manifest. Skips forgotten states and dropped weights."""
    result, stream = Survey(store, config, graph), ManifestStream(store)
    forgotten = graph.history.forgotten
    dropped = graph.history.dropped_paths(graph.history.numbers.keys() - forgotten.keys())
    commits: dict[CommitId, Commit] = {}
    published: dict[CommitId, tuple[int, int]] = {}
    for position, recorded in enumerate(graph.entries):
        for commit in recorded.entry.commits:
            commits[commit.id] = commit
            published.setdefault(commit.id, (recorded.sequence, position))
    for id_, commit in Counted(progress, len(commits)).iterate(commits.items(), "versions"):
        if id_ in forgotten or id_ in result.numbers:
            continue
        parent = _nearest(commit, commits, result.numbers)
        blobs: dict[bytes, str] = {}
        steps = [coding.step for coding in graph.codings(commit.manifest)]
        entries = stream.load(commit.manifest, steps).all_entries
        for entry in entries:
            if entry.path in dropped.get(commit.manifest, ()):
                continue
            names = content_names(entry.contents, entry.tensors)
            for name, content in zip(names, entry.contents, strict=True):
                blobs.setdefault(content.id, f"{entry.path}\0{name}")
                result.specs[content.id] = content.spec
        result.numbers[id_] = len(result.versions)
        for blob in blobs:
            result.first.setdefault(blob, len(result.versions))
        number = None if parent is None else result.numbers[parent]
        sequence, entry_index = published[id_]
        nbytes = sum(entry.size for entry in entries)
        result.versions.append(
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
    return result


def _nearest(
    commit: Commit, commits: Mapping[CommitId, Commit], stored: Mapping[CommitId, int]
) -> CommitId | None:
    """The nearest ancestor along first parents that is in ``stored``."""
    current: Commit | None = commit
    while current is not None and current.parents:
        if current.parents[0] in stored:
            return current.parents[0]
        current = commits.get(current.parents[0])
    return None


Node = tuple[bytes, int]
"""A blob's id and the offset of one of its pieces."""


class Candidate(Struct, frozen=True):
    """A coding of one piece of a blob: in full, or as a delta from the same piece of ``base``.

    ``nbytes``: raw size of the piece. ``stored``: encoded size. ``grouped``: several codings are
    encoded together; ``stored`` is the part of this coding. ``seconds``: estimated CPU time to read
    and decode the piece. ``place``: where the coding is stored; None for a coding that is not
    stored. ``sure``: False if a coding is not stored and no trial measured it. ``reversible``:
    ``base`` can be recovered from the blob. ``forward_only``: the delta cannot be reversed, because
    encoding drops bytes of ``base``. ``span``: the generations between the blob and ``base``.
    ``predicted``: a delta from the result of an optimizer's step. The step needs the same piece of
    each of ``inputs``.
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
        """Pack and offset of the record that stores this coding."""
        assert self.place is not None
        return self.place[:2]

    @property
    def needs(self) -> list[Node]:
        """The pieces that decoding this coding needs."""
        return [(id_, self.start) for id_ in (self.base, *self.inputs) if id_ is not None]

    @property
    def is_one_way(self) -> bool:
        """Whether the base cannot be recovered from this delta, but could be from a reversed delta.

        Then the reversed delta can be stored instead.
        """
        return not self.reversible and not self.forward_only


def starts_of(nbytes: int) -> range:
    """The offset of each piece of a blob of ``nbytes`` bytes."""
    return range(0, max(nbytes, 1), PIECE)


class Candidates:
    """The stored codings of each piece."""

    def __init__(
        self, graph: StorageGraph, rates: Rates, specs: Mapping[bytes, TensorSpec]
    ) -> None:
        self._by_node: dict[Node, list[Candidate]] = defaultdict(list)
        self.groups: dict[tuple[int, int], list[Candidate]] = defaultdict(list)
        for coding in graph.all_codings():
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
        """All codings of a blob, if one of them is an approximate step or an optimizer's step.

        Empty otherwise.
        """
        codings = [o for start in starts_of(nbytes) for o in self.of((id_, start))]
        steps = any(o.predicted or (o.forward_only and o.grouped) for o in codings)
        return codings if steps else []

    def full(self, id_: bytes, nbytes: int) -> list[Candidate] | None:
        """The smallest full record of each piece; None if a piece has no full record."""
        records = [
            min((o for o in self.of((id_, start)) if o.base is None), key=_stored, default=None)
            for start in starts_of(nbytes)
        ]
        return (
            None
            if None in records
            else [candidate for candidate in records if candidate is not None]
        )

    def delta(self, id_: bytes, nbytes: int, bases: Collection[bytes]) -> list[Candidate] | None:
        """The smallest delta of each piece from one of ``bases``, or the piece's full record.

        None if a piece has no delta and no full record, or if no piece has a delta.
        """
        smallest: list[Candidate] = []
        for start in starts_of(nbytes):
            fitting = [o for o in self.of((id_, start)) if o.base is None or o.base in bases]
            deltas = [o for o in fitting if o.base is not None]
            best = min(deltas or fitting, key=_stored, default=None)
            if best is None:
                return None
            smallest.append(best)
        return smallest if any(candidate.base is not None for candidate in smallest) else None


def is_found_from_base(graph: StorageGraph, id_: bytes, base: bytes | None) -> bool:
    """Whether readers that look for deltas from ``base`` would find a new delta for ``id_``."""
    return base is not None and graph.entry_of(base) <= graph.entry_of(id_)


def _stored(candidate: Candidate) -> int:
    return candidate.stored


_GUESS = {False: 0.9, True: 0.6}  # stored / raw bytes: full record, delta


class Sizes:
    """Estimates the sizes of codings from the sizes of stored and tried codings.

    The argument ``span`` is the number of generations between a blob and its base, 0 for a full
    record.
    """

    def __init__(self, survey: Survey) -> None:
        self._survey = survey
        self._policy = encoding_policy(survey.config)
        self._rates = survey.store.rates
        self._known: dict[tuple[str, int], list[tuple[int, float]]] = defaultdict(list)
        self._all: dict[int, list[float]] = defaultdict(lambda: [0.0, 0.0])
        self._tried: dict[tuple[bytes, bytes | None], Choice] = {}

    def learn(self, id_: bytes, span: int, share: float) -> None:
        """Records ``share``, the ratio of stored to raw bytes of a coding of a blob."""
        at = self._survey.first[id_]
        insort(self._known[self._line(id_, at), span], (at, share))
        total = self._all[span]
        total[0] += share
        total[1] += 1

    def _line(self, id_: bytes, at: int) -> str:
        """The path and name of a blob in version ``at``."""
        return self._survey.versions[at].blobs[id_]

    def full(self, id_: bytes, at: int) -> list[Candidate]:
        tried = self._tried.get((id_, None))
        share = tried.share if tried else self._share(self._line(id_, at), at, 0)
        return self._pieces(id_, None, share, span=0, sure=tried is not None)

    def delta(self, id_: bytes, base: bytes, span: int) -> list[Candidate]:
        """The delta of a blob from a base; a full record if a trial chose a full record."""
        tried = self._tried.get((id_, base))
        if tried is None:
            alike = self._survey.size(id_) == self._survey.size(base)
            at = self._survey.first[id_]
            share = self._share(self._line(id_, at), at, span)
            return self._pieces(id_, base, share, span=span, reversible=alike)
        base_, plain = base if tried.against else None, tried.pipeline and not tried.transform
        return self._pieces(id_, base_, tried.share, span=span, reversible=bool(plain), sure=True)

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
        reversible = reversible and is_found_from_base(self._survey.graph, id_, base)
        pieces_ = []
        for start in starts_of(nbytes):
            length = min(PIECE, nbytes - start)
            stored = max(1, round(share * length))
            pieces_.append(
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
        return pieces_

    def _share(self, line: str, at: int, span: int) -> float:
        known = self._known.get((line, span))
        if not known:
            return self._typical(span)
        position = bisect_left(known, (at, -1.0))
        if position == len(known) or position == 0:
            return known[min(position, len(known) - 1)][1]
        (a, low), (b, high) = known[position - 1], known[position]
        return low if a == b else low + (high - low) * (at - a) / (b - a)

    def _typical(self, span: int) -> float:
        """The mean ratio of stored to raw bytes over all lines.

        If ``span`` is above 1 and no such delta is known, returns the ratio for one generation, but
        at least 0.6.
        """
        total, count = self._all[span]
        if count:
            return total / count
        if span > 1:
            return max(_GUESS[True], self._typical(1))
        return _GUESS[span > 0]

    # -- trials ------------------------------------------------------------------------

    def measure(self, id_: bytes, base: bytes | None, span: int) -> None:
        """Tries a coding: encodes one piece of the blob as a commit would."""
        if (id_, base) in self._tried:
            return
        survey, base_blob = self._survey, None
        spec, recovery, graph = survey.specs[id_], survey.store.recovery, survey.graph
        if base is not None and not graph.shares_prefix[graph.number(base)]:
            base_blob = base, survey.specs[base]
        starts = starts_of(spec.nbytes)
        start = starts[len(starts) // 2 if len(starts) > 2 else 0]
        tried = sampled(recovery, self._policy, (id_, spec), base_blob, start=start)
        self._tried[id_, base] = tried
        self.learn(id_, span if tried.against else 0, tried.share)


class Costs:
    """The codings with which a version can be stored as deltas from another version.

    ``candidates``: the stored codings. ``sources``: positions of the reset points (versions that
    are stored in full).
    """

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

    def full_of(self, id_: bytes) -> list[Candidate]:
        """The full records of a blob of any version."""
        return self.full(self.survey.first[id_], id_)

    def between(self, a: int, b: int) -> dict[bytes, list[Candidate]]:
        """Maps each blob that version b has and version a lacks to its codings from version a."""
        blobs_a, blobs_b = self.survey.versions[a].blobs, self.survey.versions[b].blobs
        codings: dict[bytes, list[Candidate]] = {}
        for id_ in self.survey.new_in(a, b):
            nbytes = self.survey.size(id_)
            stored = self.candidates.delta(id_, nbytes, blobs_a.keys())
            stored = stored or self.candidates.delta(id_, nbytes, blobs_b.keys())
            if stored is None and b not in self.sources and self.candidates.full(id_, nbytes):
                codings[id_] = self.full(b, id_)  # stored in full by a commit
                continue
            base = None if stored else self._bases(a, b).get(id_)
            if base is not None:
                stored = self.candidates.delta(base, self.survey.size(base), [id_])
            if stored is not None:
                codings[id_] = stored
            elif base is not None:
                span = self.survey.generation(b) - self.survey.generation(a)
                codings[id_] = self._delta(id_, base, span)
            else:
                codings[id_] = self.full(b, id_)
        return codings

    def _delta(self, id_: bytes, base: bytes, span: int) -> list[Candidate]:
        codings = self.sizes.delta(id_, base, span)
        return codings if codings[0].base is not None else self.full_of(id_)

    def of_whole_blobs(self) -> Iterator[tuple[bytes, bytes | None, list[Candidate]]]:
        """Yields (blob, base, codings) for every blob with stored codings for all its pieces.

        Leaves out blobs and bases that no version has.
        """
        first, by_base = self.survey.first, dict[tuple[bytes, bytes | None], dict[int, Candidate]]()
        for coding in self.candidates:
            if coding.id in first and (coding.base is None or coding.base in first):
                pieces = by_base.setdefault((coding.id, coding.base), {})
                best = pieces.setdefault(coding.start, coding)
                pieces[coding.start] = min(best, coding, key=lambda candidate: candidate.stored)
        return (
            (id_, base, list(pieces.values()))
            for (id_, base), pieces in by_base.items()
            if len(pieces) == len(starts_of(self.survey.size(id_)))
        )

    def tried(self, id_: bytes, base: bytes, span: int = 1) -> list[Candidate]:
        """A delta that is not stored, with the size that a trial measured."""
        self.sizes.measure(id_, base, span)
        return self._delta(id_, base, span)

    def encoded_again(self, id_: bytes) -> list[Candidate]:
        """A new full record of a blob, with a size that a trial measured."""
        self.sizes.measure(id_, None, 0)
        return self.sizes.full(id_, self.survey.first[id_])

    def reversed(self, candidate: Candidate) -> Candidate:
        """The opposite delta, which stores the base of ``candidate`` as a delta from its blob.

        The opposite delta is assumed to have the same size.
        """
        id_, base = candidate.base, candidate.id
        assert id_ is not None
        reversible = is_found_from_base(self.survey.graph, id_, base)
        return replace(
            candidate, id=id_, base=base, reversible=reversible, place=None, grouped=False
        )


_TRIALS = 32  # the most versions whose codings are tried
_FEWEST = 4
_RAW = 4 << 30  # limit of bytes that trials recover (but at least _FEWEST versions are tried)

_T = TypeVar("_T")


def learn_stored(costs: Costs) -> None:
    """Records the ratio of stored to raw bytes of every stored coding."""
    survey = costs.survey
    for id_, base, codings in costs.of_whole_blobs():
        newer, span, raw = id_, 0, survey.size(id_)
        if base is not None:
            older, newer = sorted((id_, base), key=survey.first.__getitem__)
            span = survey.distance(older, newer) or 0
        if raw and not any(o.predicted for o in codings) and (base is None or span):
            costs.sizes.learn(newer, span, sum(o.stored for o in codings) / raw)


def attempt(
    costs: Costs, candidates: Iterable[Candidate], progress: Progress | None = None
) -> bool:
    """Tries the ``candidates`` that are not ``sure``, for at most ``_TRIALS`` versions.

    Returns whether any coding was tried.
    """
    first = costs.survey.first
    unsure = [candidate for candidate in candidates if not candidate.sure]
    numbers = sorted({first[candidate.id] for candidate in unsure})
    chosen = set(spread(numbers, most_tried(costs, numbers)))
    todo = {(o.id, o.base): o.span for o in unsure if first[o.id] in chosen}
    for (id_, base), span in Counted(progress, len(todo)).iterate(todo.items(), "trials"):
        costs.sizes.measure(id_, base, span)
    return bool(todo)


def most_tried(costs: Costs, numbers: Sequence[int]) -> int:
    """How many of the versions ``numbers`` are tried."""
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
