"""stats: what the repository holds, what it costs on disk, how long versions take to recover."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from mvc.ids import BlobId, CommitId, ManifestId
from mvc.io.process import cpu_count
from mvc.model.commit import Commit
from mvc.model.manifest import Manifest
from mvc.repo import manifests
from mvc.repo.context import Context
from mvc.repo.objects import ObjectGraph
from mvc.repo.pointers import branches, tags
from mvc.store.entries import Region
from mvc.store.records import BLOB
from mvc.store.speed import Speed
from mvc.store.view import INDEX, View

__all__ = ["Stats", "stats"]


@dataclass(frozen=True)
class Stats:
    """``bytes``: on disk by kind, that is full, delta, metadata (manifests, skeletons,
    record headers), journal and index. ``raw_bytes``: all files of all versions as plain
    copies; ``ratio`` is stored / raw (0 for an empty repository).

    ``tensors`` are distinct blobs of versions, ``reset_points`` versions all of whose
    blobs are full records. A chain is the number of deltas to apply for one blob;
    ``recovery_*`` are estimated seconds for whole versions on this machine's cores. Of the
    ``forgotten`` among the versions only bytes that are still stored count.
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
    """Reads the journal, every record's header and every manifest; no tensor."""
    from mvc.store.calibrate import measure

    view = context.fresh()
    scan = _Scan(view, measure())
    for recorded in view.entries():
        scan.commits.update((commit.id, commit) for commit in recorded.entry.commits)
        scan.forgotten.update(each.commit for each in recorded.entry.forgotten)
        scan.deployments += len(recorded.entry.deployments)
        scan.targets.update(d.target for d in recorded.entry.deployments)
        for region in recorded.entry.regions:
            scan.region(region)
    scan.objects.settle()
    held = _Held(context, scan)
    stored = scan.bytes(held.skeletons) | {
        "journal": view.position.offset,
        "index": _index_bytes(view),
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
    """What journal and record headers say."""

    view: View
    speed: Speed
    objects: ObjectGraph = field(default_factory=ObjectGraph)
    commits: dict[CommitId, Commit] = field(default_factory=dict)
    forgotten: set[CommitId] = field(default_factory=set)
    deployments: int = 0
    targets: set[str] = field(default_factory=set)
    _metadata: int = 0
    _payloads: list[tuple[bytes, bool, int]] = field(default_factory=list)

    def region(self, region: Region) -> None:
        for _, header in self.view.packs.records(region):
            self._metadata += header.size - header.body_size
            for i, member in enumerate(header.members):
                self.objects.add(member, self.speed.seconds(member))
                if header.group and i:
                    continue  # all members share one payload
                if member.kind == BLOB:
                    self._payloads.append((member.id, bool(member.base), member.stored))
                else:
                    self._metadata += member.stored

    def bytes(self, skeletons: set[BlobId]) -> dict[str, int]:
        """Bytes in packs by kind; skeletons are metadata."""
        kinds = {"full": 0, "delta": 0, "metadata": self._metadata}
        for id_, is_delta, stored in self._payloads:
            kind = "metadata" if id_ in skeletons else "delta" if is_delta else "full"
            kinds[kind] += stored
        return kinds


class _Held:
    """What the versions' manifests say; equal manifests are looked at once."""

    def __init__(self, context: Context, scan: _Scan) -> None:
        self._objects = scan.objects
        self.raw = self.reset_points = 0
        self.skeletons: set[BlobId] = set()
        self.depths: dict[BlobId, int] = {}
        self.seconds: list[tuple[float, CommitId | None]] = []
        known: dict[ManifestId, tuple[int, bool, float]] = {}
        for commit in scan.commits.values():
            if commit.id in scan.forgotten:
                continue
            if commit.manifest not in known:
                known[commit.manifest] = self._look(manifests.load(context, commit.manifest))
            raw, is_reset_point, seconds = known[commit.manifest]
            self.raw += raw
            self.reset_points += is_reset_point
            self.seconds.append((seconds, commit.id))

    def _look(self, manifest: Manifest) -> tuple[int, bool, float]:
        from mvc.repo.hashing import pieces

        cost, full, seen = 0.0, True, set()
        for entry in manifest.entries:
            if entry.skeleton is not None:
                self.skeletons.add(entry.skeleton)
            for content in entry.contents:
                if content.id in seen:
                    continue
                seen.add(content.id)
                depth = 0
                for start, _ in pieces(content.spec):
                    seconds, deltas = self._objects.reach(content.id, start) or (0.0, 0)
                    cost += seconds
                    depth = max(depth, deltas)
                    full = full and self._objects.is_full(content.id, start)
                self.depths[content.id] = depth
        return sum(e.size for e in manifest.entries), full, cost / cpu_count()


def _index_bytes(view: View) -> int:
    folder = view.folder / INDEX
    if view.fs.stat(folder) is None:
        return 0
    sizes = (view.fs.stat(folder / name) for name in view.fs.list(folder))
    return sum(identity.size for identity in sizes if identity is not None)
