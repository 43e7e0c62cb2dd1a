"""stats: what the repository holds, its size on disk, how long versions take to recover."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from mvc.ids import BlobId, CommitId, ManifestId
from mvc.limits import PIECE
from mvc.model.manifest import Manifest
from mvc.repo.context import Context
from mvc.repo.lookup.manifest_stream import ManifestStream
from mvc.repo.lookup.refs import branches, tags
from mvc.repo.maintenance.storage_graph import StorageGraph
from mvc.store.graph.search import Step
from mvc.store.index.folder import current
from mvc.store.journal.entries import Region
from mvc.store.packs.records import BLOB
from mvc.store.recovery.timing import Timing
from mvc.store.snapshot import INDEX, Snapshot

__all__ = ["Stats", "stats"]


@dataclass(frozen=True)
class Stats:
    """Figures of a repository. Sizes are bytes, times estimated seconds.

    ``bytes``: on disk by kind: full, delta, metadata (manifests, skeletons, record headers),
    journal, index. ``raw_bytes``: all files of all versions as plain copies; ``ratio`` is
    stored / raw (0 for an empty repository). ``tensors``: distinct blobs of versions.
    ``reset_points``: versions with a full record of every blob. A chain is the number of deltas
    to apply for one blob; ``recovery_*`` are for whole versions, from opening the repository
    until their files are written. ``forgotten`` versions count in ``versions``, and only with the
    bytes that are still stored.
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


def stats(context: Context) -> Stats:
    """Reads the journal, every record's header and every manifest, but few tensors."""
    snapshot = context.fresh()
    timing = context.store.timing
    scan, stream = _Scan(snapshot, timing), ManifestStream(context.store)
    for recorded in snapshot.entries():
        scan.commits.update((commit.id, commit.manifest) for commit in recorded.entry.commits)
        scan.forgotten.update(each.commit for each in recorded.entry.forgotten)
        scan.deployments += len(recorded.entry.deployments)
        scan.targets.update(d.target for d in recorded.entry.deployments)
        for region in recorded.entry.regions:
            scan.region(region)
        scan.look(stream)
    scan.objects.settle()
    held = _Held(scan, stream)
    stored = scan.bytes(held.skeletons) | {
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
    timing: Timing
    objects: StorageGraph = field(default_factory=StorageGraph)
    commits: dict[CommitId, ManifestId] = field(default_factory=dict)
    sketches: dict[ManifestId, _Sketch] = field(default_factory=dict)
    forgotten: set[CommitId] = field(default_factory=set)
    deployments: int = 0
    targets: set[str] = field(default_factory=set)
    _metadata: int = 0
    _payloads: list[tuple[bytes, bool, int]] = field(default_factory=list)
    _codings: dict[bytes, list[Step]] = field(default_factory=dict)  # manifests of one entry

    def region(self, region: Region) -> None:
        for at, header in self.snapshot.packs.records(region):
            self._metadata += header.size - header.body_size
            for i, member in enumerate(header.members):
                self.objects.add(member, self.timing.payload(header, member))
                if header.group and i:
                    continue  # all members share one payload
                if member.kind == BLOB:
                    self._payloads.append((member.id, bool(member.base), member.stored))
                else:
                    self._metadata += member.stored
                    step = Step(region.pack, at, header, member, False)
                    self._codings.setdefault(member.id, []).append(step)

    def look(self, stream: ManifestStream) -> None:
        """Reads an entry's manifests while their bases are still cached."""
        for id_, codings in self._codings.items():
            manifest = stream.near(ManifestId(id_), codings)
            if manifest is not None:
                self.sketches[manifest.id] = _Sketch(manifest)
        self._codings.clear()

    def bytes(self, skeletons: set[BlobId]) -> dict[str, int]:
        """Bytes in packs by kind; skeletons are metadata."""
        kinds = {"full": 0, "delta": 0, "metadata": self._metadata}
        for id_, is_delta, stored in self._payloads:
            kind = "metadata" if id_ in skeletons else "delta" if is_delta else "full"
            kinds[kind] += stored
        return kinds


class _Sketch:
    """The part of a manifest that is needed later: bytes of its files and of its objects."""

    __slots__ = ("contents", "files", "raw", "skeletons")

    def __init__(self, manifest: Manifest) -> None:
        self.raw = sum(entry.size for entry in manifest.entries)
        self.files = len(manifest.entries)
        self.skeletons = {e.skeleton for e in manifest.entries if e.skeleton is not None}
        contents = (content for entry in manifest.entries for content in entry.contents)
        self.contents = {c.id: c.spec.nbytes for c in contents}


class _Held:
    """What is gathered from the manifests of versions; equal manifests are read once."""

    def __init__(self, scan: _Scan, stream: ManifestStream) -> None:
        self._objects, self._timing = scan.objects, scan.timing
        self.raw = self.reset_points = 0
        self.skeletons: set[BlobId] = set()
        self.depths: dict[BlobId, int] = {}
        self.seconds: list[tuple[float, CommitId | None]] = []
        known: dict[ManifestId, tuple[bool, float]] = {}
        for id_, manifest in scan.commits.items():
            if id_ in scan.forgotten:
                continue
            sketch = scan.sketches.get(manifest)
            if sketch is None:
                sketch = scan.sketches[manifest] = _Sketch(stream.load(manifest))
            if manifest not in known:
                known[manifest] = self._look(sketch)
            is_reset_point, seconds = known[manifest]
            self.raw += sketch.raw
            self.reset_points += is_reset_point
            self.seconds.append((seconds, id_))

    def _look(self, sketch: _Sketch) -> tuple[bool, float]:
        works, full = [], True
        self.skeletons.update(sketch.skeletons)
        for id_, nbytes in sketch.contents.items():
            depth = 0
            for start in range(0, max(nbytes, 1), PIECE):
                seconds, deltas = self._objects.reach(id_, start) or (0.0, 0)
                works.append((min(PIECE, nbytes - start), seconds))
                depth = max(depth, deltas)
                full = full and self._objects.is_full(id_, start)
            self.depths[id_] = depth
        return full, self._timing.version(works, sketch.files, sketch.raw)


def _index_bytes(snapshot: Snapshot) -> int:
    fs, folder = snapshot.fs, snapshot.folder / INDEX
    places = [p for p in (folder, current(fs, folder)) if p is not None and fs.stat(p) is not None]
    found = (fs.stat(place / name) for place in places for name in fs.list(place))
    return sum(identity.size for identity in found if identity is not None and identity.is_file)
