"""Metrics of a selection of codings: bytes in packs, and the recovery of every version."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from typing import TypeAlias

from msgspec import Struct

from mvc.errors import DamagedData
from mvc.ids import CommitId
from mvc.limits import PIECE
from mvc.maintenance.paths import CheapestPath
from mvc.maintenance.repack.candidates import Candidate, Node, starts_of
from mvc.maintenance.repack.costs import Costs
from mvc.maintenance.repack.selection import Selection
from mvc.maintenance.rewrite_plan import encoding_policy
from mvc.pipelines.pipeline import Pipeline
from mvc.store.packs.records import (
    BASE_BYTES,
    BLOB,
    MANIFEST,
    Coding,
    Member,
    RecordHeader,
    encode_header,
)
from mvc.store.recovery.rates import Part, of_group, together


class LayoutMetrics(Struct, frozen=True):
    """``bytes``: of all packs. Recovery of a whole version: estimated ``seconds`` on this machine,
    stored ``bytes`` to decode, and ``deltas`` to apply for the furthest blob; worst and mean over
    all versions. ``reset_points`` in the order of versions.
    """

    bytes: int
    reset_points: tuple[CommitId, ...]
    worst_seconds: float
    mean_seconds: float
    worst_bytes: int
    mean_bytes: float
    worst_deltas: int
    mean_deltas: float
    worst_commit: CommitId | None


def layout_metrics(costs: Costs, selection: Selection) -> LayoutMetrics:
    """The metrics of a selection. Raises DamagedData if a version cannot be recovered from it."""
    ways_to = selection.cheapest()
    reached, shared, survey = _reach(ways_to), _Shared(costs, selection), costs.survey
    full = {candidate.node for candidate in selection if candidate.base is None}
    times, sizes, depths, reset_points = [], [], [], []
    for version in survey.versions:
        nodes = [(i, start) for i in version.blobs for start in starts_of(survey.size(i))]
        for id_, _ in (node for node in nodes if node not in reached):
            raise DamagedData(
                f"version {version.commit.short} is damaged: object {id_.hex()[:10]} is lost",
                hint="run 'mvc fsck --repair', with --from if there is a backup; else 'mvc forget "
                f"{version.commit.short}' gives the version up",
            )
        ways = [reached[node] for node in nodes]
        walks: list[tuple[int, Iterable[Part]]] = [
            (min(PIECE, survey.size(id_) - start), shared.parts(ways_to, (id_, start)))
            for id_, start in nodes
        ]
        walks += shared.inputs(ways_to, nodes)
        works = together(walks, shared.seconds.__getitem__)
        times.append(costs.rates.version(works, version.files, version.nbytes))
        sizes.append(sum(way[1] for way in ways))
        depths.append(max((way[0] for way in ways), default=0))
        if all(node in full for node in nodes):
            reset_points.append(version.commit)
    count = max(1, len(times))
    worst = max(range(len(times)), key=times.__getitem__, default=None)
    return LayoutMetrics(
        bytes=_packed(costs, selection),
        reset_points=tuple(reset_points),
        worst_seconds=max(times, default=0.0),
        mean_seconds=sum(times) / count,
        worst_bytes=max(sizes, default=0),
        mean_bytes=sum(sizes) / count,
        worst_deltas=max(depths, default=0),
        mean_deltas=sum(depths) / count,
        worst_commit=None if worst is None else survey.versions[worst].commit,
    )


_Ways: TypeAlias = Mapping[Node, CheapestPath[Node, Candidate]]


def _reach(ways: _Ways) -> dict[Node, tuple[int, int]]:
    """(deltas, stored bytes) of the cheapest way to each piece."""
    stored: dict[Node, tuple[int, int]] = {}
    for node, path in ways.items():
        before = 0 if path.origin is None else stored[path.origin][1]
        stored[node] = (path.deltas, before + path.step.stored)
    return stored


class _Shared:
    """The groups of a selection: ``seconds`` to decode each of them as a whole.

    New codings of a pipeline that groups are taken to share a payload if one operation first
    published their objects, because they are written together.
    """

    def __init__(self, costs: Costs, selection: Selection) -> None:
        text = costs.survey.context.config.get("commit.pipeline")
        self._groups_new = Pipeline.parse(text).coding().scope == "group"
        self._found = costs.survey.found
        self._predicts = any(candidate.inputs for candidate in selection)
        groups: dict[Hashable, list[Candidate]] = defaultdict(list)
        for candidate in selection.new if self._groups_new else ():
            groups[self._group(candidate)].append(candidate)
        every = (*groups.items(), *costs.candidates.groups.items())
        self.seconds: dict[Hashable, float] = {
            key: of_group(o.seconds for o in made) for key, made in every
        }

    def parts(self, ways: _Ways, node: Node | None) -> Iterator[Part]:
        """The payloads on the way to a piece, the last one first."""
        while node is not None:
            step = ways[node].step
            yield step.seconds, self._group(step)
            node = ways[node].origin

    def inputs(self, ways: _Ways, nodes: Iterable[Node]) -> Iterator[tuple[int, list[Part]]]:
        """Pieces from which those of ``nodes`` are predicted, and that no way to these has."""
        done = set[Node]()
        waiting: list[Node] = []
        for node in nodes if self._predicts else ():
            waiting += self._passed(ways, node, done)[1]
        while waiting:
            node = waiting.pop()
            if node not in done:
                parts, more = self._passed(ways, node, done)
                waiting += more
                yield ways[node].step.nbytes, parts

    def _passed(
        self, ways: _Ways, at: Node | None, done: set[Node]
    ) -> tuple[list[Part], list[Node]]:
        """The payloads on the way to a piece that is not ``done``, and the inputs of these."""
        parts, inputs = list[Part](), list[Node]()
        while at is not None and at not in done:
            done.add(at)
            step = ways[at].step
            parts.append((step.seconds, self._group(step)))
            inputs += step.needs[1:]
            at = ways[at].origin
        return parts, inputs

    def _group(self, candidate: Candidate) -> Hashable | None:
        if candidate.place is not None:
            return candidate.place[:2] if candidate.grouped else None
        if not self._groups_new:
            return None
        return self._found.entry_of(candidate.id), candidate.base is None, "new"


# -- bytes in packs ------------------------------------------------------------------------


def _packed(costs: Costs, selection: Selection) -> int:
    """Bytes of all records after codings that are not chosen are dropped and new ones added."""
    gone = defaultdict(set)
    for candidate in selection.lacking(costs.candidates):
        assert candidate.place is not None
        gone[candidate.place[:2]].add(candidate.place[2])
    found = costs.survey.found
    headers = [(found.pack_reader.header(*place), members) for place, members in gone.items()]
    less = sum(header.size - _rest(header, members) for header, members in headers)
    fresh: dict[int, list[Candidate]] = defaultdict(list)
    for candidate in selection.new:
        fresh[found.entry_of(candidate.id)].append(candidate)
    pipeline = encoding_policy(costs.survey.context.config).pipeline
    more = sum(_added(candidates, pipeline) for candidates in fresh.values())
    return sum(found.lengths) - less + more


def _rest(header: RecordHeader, gone: set[int]) -> int:
    """Bytes of a record without some of its members."""
    kept = [member for i, member in enumerate(header.members) if i not in gone]
    if not kept or header.group:  # a group is dropped as a whole
        return 0 if not kept else header.size
    size = sum(member.stored for member in kept)
    apart = [member for member in kept if member.kind == MANIFEST]
    for manifest in apart:
        # It is encoded again alone, without the ids of the blobs beside it.
        ids = sum(member.kind == BLOB for member in header.members)
        size += 32 * ids + len(encode_header([manifest], group=False, body_size=0))
    together = [member for member in kept if member.kind != MANIFEST]
    return size + (_head(together) if together else 0)


def _added(candidates: Sequence[Candidate], pipeline: Pipeline) -> int:
    """Bytes of a record of new codings."""
    texts = (Coding(pipeline.full().text), Coding(pipeline.text))
    members = [
        Member(
            kind=BLOB,
            id=candidate.id,
            start=candidate.start,
            nbytes=candidate.nbytes,
            coding=texts[candidate.base is not None],
            base=(candidate.base or b"")[:BASE_BYTES],
            at=0,
            stored=candidate.stored,
            check=bytes(8),
        )
        for candidate in candidates
    ]
    return _head(members) + sum(candidate.stored for candidate in candidates)


def _head(members: Iterable[Member]) -> int:
    listed = [member._replace(at=0) for member in members]
    return len(encode_header(listed, group=False, body_size=0))
