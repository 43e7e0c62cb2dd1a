"""stats: what the repository and each version hold and cost, and how long recovery takes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from mvc.ids import BlobId, CommitId, ManifestId
from mvc.io.process import cpu_count
from mvc.model.manifest import Manifest
from mvc.repo.content.hashing import pieces
from mvc.repo.context import Context
from mvc.repo.lookup.manifest_stream import ManifestStream
from mvc.repo.lookup.refs import branches, tags
from mvc.repo.maintenance.storage_graph import StorageGraph
from mvc.store.graph.cost import Speed, measure
from mvc.store.graph.search import Step
from mvc.store.index.folder import current
from mvc.store.journal.entries import Region
from mvc.store.packs.records import BLOB
from mvc.store.snapshot import INDEX, Snapshot

__all__ = ["Stats", "VersionStats", "by_version", "stats"]

_KINDS = ("full", "delta", "metadata")


@dataclass(frozen=True)
class Stats:
    """Figures of a repository. Sizes are bytes, times estimated seconds on all cores.

    ``bytes``: on disk by kind: full, delta, metadata (manifests, skeletons, record headers),
    journal, index. ``raw_bytes``: all files of all versions as plain copies; ``ratio`` is
    stored / raw (0 for an empty repository). ``tensors``: distinct blobs of versions.
    ``reset_points``: versions with a full record of every blob. A chain is the number of deltas
    to apply for one blob; ``recovery_*`` are for whole versions. ``forgotten`` versions count
    in ``versions``, and only with the bytes that are still stored.
    """

    versions: int
    reset_points: int
    tensors: int
    bytes: Mapping[str, int]
    stored_bytes: int
    raw_bytes: int
    ratio: float
    chain_max: int
    chain_mean: float
    recovery_worst: float
    recovery_mean: float
    recovery_worst_commit: CommitId | None
    deployments: int
    targets: int
    branches: int
    tags: int
    forgotten: int = 0


@dataclass(frozen=True, slots=True)
class VersionStats:
    """``bytes`` by kind (full, delta, metadata) that came with a version; its ``reset_point``.

    ``deltas`` lead from a full record, stored with the version ``base``, to the version's
    furthest content; ``base`` is None for a version without contents, or if that is not known.
    """

    bytes: Mapping[str, int]
    reset_point: bool
    deltas: int
    base: CommitId | None


def stats(context: Context) -> Stats:
    """Reads the journal, every record's header and every manifest, but no tensor."""
    return _total(context, *_read(context))


def by_version(context: Context) -> tuple[Stats, dict[CommitId, VersionStats]]:
    """As ``stats``, and the figures of every version that is not forgotten."""
    scan, held = _read(context)
    stored, found = scan.bytes(held.skeletons), {}
    for id_, manifest in scan.commits.items():
        if id_ not in scan.forgotten:
            of = held.known[manifest]
            source = None if of.furthest is None else scan.objects.source(*of.furthest)
            base = None if source is None else scan.homes.get(source)
            found[id_] = VersionStats(stored.get(id_, {}), of.full, of.deltas, base)
    return _total(context, scan, held), found


def _read(context: Context) -> tuple[_Scan, _Held]:
    snapshot = context.fresh()
    scan, stream = _Scan(snapshot, measure()), ManifestStream(context.store)
    for recorded in snapshot.entries():
        scan.commits.update((commit.id, commit.manifest) for commit in recorded.entry.commits)
        scan.forgotten.update(each.commit for each in recorded.entry.forgotten)
        scan.deployments += len(recorded.entry.deployments)
        scan.targets.update(d.target for d in recorded.entry.deployments)
        home = recorded.entry.commits[-1].id if recorded.entry.commits else None
        for region in recorded.entry.regions:
            scan.region(region, home)
        scan.look(stream)
    scan.objects.settle()
    return scan, _Held(scan, stream)


def _total(context: Context, scan: _Scan, held: _Held) -> Stats:
    snapshot, kinds = scan.snapshot, scan.bytes(held.skeletons).values()
    stored = {kind: sum(k[kind] for k in kinds) for kind in _KINDS} | {
        "journal": snapshot.position.offset,
        "index": _index_bytes(snapshot),
    }
    total = sum(stored.values())
    count = len(scan.commits)
    gone = len(scan.forgotten & scan.commits.keys())
    worst = max(held.seconds, key=lambda pair: pair[0], default=(0.0, None))
    return Stats(
        count,
        held.reset_points,
        len(held.depths),
        stored,
        total,
        held.raw,
        total / held.raw if held.raw else 0.0,
        max(held.depths.values(), default=0),
        sum(held.depths.values()) / max(1, len(held.depths)),
        worst[0],
        sum(seconds for seconds, _ in held.seconds) / max(1, count - gone),
        worst[1],
        scan.deployments,
        len(scan.targets),
        len(branches(context)),
        len(tags(context)),
        gone,
    )


@dataclass
class _Scan:
    """What is gathered from the journal and the record headers."""

    snapshot: Snapshot
    speed: Speed
    objects: StorageGraph = field(default_factory=StorageGraph)
    commits: dict[CommitId, ManifestId] = field(default_factory=dict)
    sketches: dict[ManifestId, _Sketch] = field(default_factory=dict)
    forgotten: set[CommitId] = field(default_factory=set)
    deployments: int = 0
    targets: set[str] = field(default_factory=set)
    homes: dict[bytes, CommitId | None] = field(default_factory=dict)  # of full records
    _metadata: Counter[CommitId | None] = field(default_factory=Counter)
    _payloads: list[tuple[bytes, bool, int, CommitId | None]] = field(default_factory=list)
    _codings: dict[bytes, list[Step]] = field(default_factory=dict)  # manifests of one entry

    def region(self, region: Region, home: CommitId | None) -> None:
        for at, header in self.snapshot.packs.records(region):
            self._metadata[home] += header.size - header.body_size
            for i, member in enumerate(header.members):
                self.objects.add(member, self.speed.seconds(member))
                if not member.base:
                    self.homes.setdefault(member.id, home)
                if header.group and i:
                    continue  # all members share one payload
                if member.kind == BLOB:
                    self._payloads.append((member.id, bool(member.base), member.stored, home))
                else:
                    self._metadata[home] += member.stored
                    step = Step(region.pack, at, header, member, False)
                    self._codings.setdefault(member.id, []).append(step)

    def look(self, stream: ManifestStream) -> None:
        """Reads an entry's manifests while their bases are still cached."""
        for id_, codings in self._codings.items():
            manifest = stream.near(ManifestId(id_), codings)
            if manifest is not None:
                self.sketches[manifest.id] = _Sketch(manifest)
        self._codings.clear()

    def bytes(self, skeletons: set[BlobId]) -> dict[CommitId | None, dict[str, int]]:
        """Bytes in packs by version and kind; skeletons are metadata."""
        found = {home: dict.fromkeys(_KINDS, 0) for home in self._metadata}
        for id_, is_delta, stored, home in self._payloads:
            kind = "metadata" if id_ in skeletons else "delta" if is_delta else "full"
            found[home][kind] += stored
        for home, nbytes in self._metadata.items():
            found[home]["metadata"] += nbytes
        return found


class _Sketch:
    """The part of a manifest that is needed later: bytes of its files, pieces of its objects."""

    __slots__ = ("contents", "raw", "skeletons")

    def __init__(self, manifest: Manifest) -> None:
        self.raw = sum(entry.size for entry in manifest.entries)
        self.skeletons = {e.skeleton for e in manifest.entries if e.skeleton is not None}
        contents = (content for entry in manifest.entries for content in entry.contents)
        self.contents = {c.id: tuple(start for start, _ in pieces(c.spec)) for c in contents}


class _Path(NamedTuple):
    """How a version is recovered; ``furthest``: the piece with the most deltas to apply."""

    full: bool
    seconds: float
    deltas: int
    furthest: tuple[BlobId, int] | None


class _Held:
    """What is gathered from the manifests of versions; equal manifests are read once."""

    def __init__(self, scan: _Scan, stream: ManifestStream) -> None:
        self._objects = scan.objects
        self.raw = self.reset_points = 0
        self.skeletons: set[BlobId] = set()
        self.depths: dict[BlobId, int] = {}
        self.seconds: list[tuple[float, CommitId | None]] = []
        self.known: dict[ManifestId, _Path] = {}
        for id_, manifest in scan.commits.items():
            if id_ in scan.forgotten:
                continue
            sketch = scan.sketches.get(manifest)
            if sketch is None:
                sketch = scan.sketches[manifest] = _Sketch(stream.load(manifest))
            if manifest not in self.known:
                self.known[manifest] = self._look(sketch)
            path = self.known[manifest]
            self.raw += sketch.raw
            self.reset_points += path.full
            self.seconds.append((path.seconds, id_))

    def _look(self, sketch: _Sketch) -> _Path:
        cost, full, furthest, most = 0.0, True, None, -1
        self.skeletons.update(sketch.skeletons)
        for id_, starts in sketch.contents.items():
            depth = 0
            for start in starts:
                seconds, deltas = self._objects.reach(id_, start) or (0.0, 0)
                cost += seconds
                depth = max(depth, deltas)
                full = full and self._objects.is_full(id_, start)
                if deltas > most:
                    furthest, most = (id_, start), deltas
            self.depths[id_] = depth
        return _Path(full, cost / cpu_count(), max(most, 0), furthest)


def _index_bytes(snapshot: Snapshot) -> int:
    fs, folder = snapshot.fs, snapshot.folder / INDEX
    places = [p for p in (folder, current(fs, folder)) if p is not None and fs.stat(p) is not None]
    found = (fs.stat(place / name) for place in places for name in fs.list(place))
    return sum(identity.size for identity in found if identity is not None and identity.is_file)
