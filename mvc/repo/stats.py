"""stats: what the repository holds, its size on disk, how long versions take to recover."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Mapping

import numpy as np

from mvc.dataclasses import dataclass
from mvc.ids import CommitId, ManifestId
from mvc.limits import PIECE
from mvc.repo.context import Context
from mvc.repo.lookup.manifest_stream import ManifestStream
from mvc.repo.lookup.refs import branches, tags
from mvc.repo.maintenance.inventory import Contents, Inventory, inventory
from mvc.repo.maintenance.storage_graph import Integers, StorageGraph, column
from mvc.store.index.folder import current
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
    contents = Contents(ManifestStream(context.store))
    found = inventory(snapshot, contents, timing.payload)
    for damage in found.damaged:
        raise damage
    states, history = found.history.states(), found.history
    for manifest in states.values():
        contents.require(manifest)
    held = _Held(found, contents, states, timing)
    stored = held.bytes | {"journal": snapshot.position.offset, "index": _index_bytes(snapshot)}
    total = sum(stored.values())
    count = len(set(history.published))
    worst = max(range(len(held.seconds)), key=held.seconds.__getitem__, default=None)
    return Stats(
        count,
        held.reset_points,
        len(held.depths),
        stored,
        total,
        held.raw,
        total / held.raw if held.raw else 0.0,
        int(held.depths.max(initial=0)),
        int(held.depths.sum()) / max(1, len(held.depths)),
        0.0 if worst is None else held.seconds[worst],
        sum(held.seconds) / max(1, len(states)),
        None if worst is None else list(states)[worst],
        history.deployments,
        len(history.targets),
        len(branches(context)),
        len(tags(context)),
        count - len(states),
    )


class _Held:
    """What the manifests of versions hold.

    ``depths``: deltas to apply for each blob; ``seconds``: to recover each version; ``bytes``:
    in packs by kind, where skeletons are metadata.
    """

    def __init__(
        self,
        found: Inventory,
        contents: Contents,
        states: Mapping[CommitId, ManifestId],
        timing: Timing,
    ) -> None:
        graph, count = found.graph, len(contents.raw)
        versions = np.array([contents.manifests[id_] for id_ in states.values()], np.int64)
        held = np.bincount(versions, minlength=count) > 0  # by manifest
        self.raw = int(column(contents.raw)[versions].sum())
        manifest = np.repeat(np.arange(count), np.diff(column(contents.ends)))  # by mention
        slot, skeleton = column(contents.slots), column(contents.skeletons).astype(np.bool_)
        objects = graph.numbers(contents.ids)  # by slot
        named = objects[slot[skeleton & held[manifest]]]
        self.bytes = _bytes_in_packs(found, named[named >= 0])
        # Each content of a manifest counts once.
        keys = (manifest * len(objects) + slot)[~skeleton & held[manifest]]
        _, first = np.unique(keys, return_index=True)
        manifest, slot = np.divmod(keys[np.sort(first)], max(1, len(objects)))
        pieces = _Pieces(graph, contents, objects)
        self.depths = _depths(objects, pieces.depth, np.unique(slot), contents)
        parts = np.bincount(manifest, ~pieces.full[slot], count)
        self.reset_points = int((parts[versions] == 0).sum())
        ends = np.searchsorted(manifest, np.arange(count + 1))
        seconds = {
            number: timing.version(
                pieces.works(slot[ends[number] : ends[number + 1]].tolist()),
                contents.files[number],
                contents.raw[number],
            )
            for number in np.flatnonzero(held).tolist()
        }
        self.seconds = [seconds[number] for number in versions.tolist()]


def _bytes_in_packs(found: Inventory, skeletons: Integers) -> dict[str, int]:
    """Bytes in packs by kind. ``skeletons``: objects that are metadata, beside manifests."""
    graph, payloads = found.graph, column(found.payloads)
    is_skeleton = np.zeros(len(graph), np.bool_)
    is_skeleton[skeletons] = True
    metadata = graph.manifest | is_skeleton[graph.object]
    kinds = {"full": ~metadata & ~graph.delta, "delta": ~metadata & graph.delta}
    sums = {kind: int(payloads[rows].sum()) for kind, rows in kinds.items()}
    return sums | {"metadata": int(payloads[metadata].sum()) + sum(found.heads)}


class _Pieces:
    """The pieces of every slot. By slot: ``depth``, the deltas to apply, and ``full``, whether
    every piece is stored in full.
    """

    def __init__(self, graph: StorageGraph, contents: Contents, objects: Integers) -> None:
        starts = [range(0, max(spec.nbytes, 1), PIECE) for spec in contents.known_specs]
        self._sizes = [spec.nbytes for spec in contents.known_specs]
        self._specs = contents.specs
        counts = np.array([len(starts[spec]) for spec in contents.specs], np.int64)
        offsets = array("Q")
        for spec in contents.specs:
            offsets.extend(starts[spec])
        slots = np.repeat(np.arange(len(objects)), counts)
        nodes = graph.nodes(objects[slots], column(offsets))
        lost = (nodes < 0) | ~np.isfinite(graph.costs[nodes])
        self._costs = array("d", np.where(lost, 0.0, graph.costs[nodes]).tobytes())
        self._begins = array("q", np.append(0, np.cumsum(counts)).tobytes())
        self.depth = np.zeros(len(objects), np.int64)
        np.maximum.at(self.depth, slots, np.where(lost, 0, graph.depths[nodes]))
        parts = (nodes < 0) | ~graph.full[nodes]
        self.full = np.bincount(slots, parts, len(objects)) == 0

    def works(self, slots: Iterable[int]) -> Iterator[tuple[int, float]]:
        """(bytes, seconds to decode) of the pieces of some slots."""
        for slot in slots:
            left = self._sizes[self._specs[slot]]
            for at in range(self._begins[slot], self._begins[slot + 1]):
                yield min(left, PIECE), self._costs[at]
                left -= PIECE


def _depths(objects: Integers, depth: Integers, slots: Integers, contents: Contents) -> Integers:
    """The depth of every object among some slots; 0 where it is lost."""
    numbers = objects[slots]
    lost = {contents.id_of(slot) for slot in slots[numbers < 0].tolist()}
    _, first = np.unique(numbers[numbers >= 0], return_index=True)
    return np.append(depth[slots[numbers >= 0][first]], np.zeros(len(lost), np.int64))


def _index_bytes(snapshot: Snapshot) -> int:
    fs, folder = snapshot.fs, snapshot.folder / INDEX
    places = [p for p in (folder, current(fs, folder)) if p is not None and fs.stat(p) is not None]
    found = (fs.stat(place / name) for place in places for name in fs.list(place))
    return sum(identity.size for identity in found if identity is not None and identity.is_file)
