"""Computes the figures of ``mvc stats``: sizes, and times to recover versions.

The storage graph has a *row* for each stored piece of an object: a full piece or a delta. A *slot*
is the number of a content (the data of a tensor).
"""

from __future__ import annotations

from array import array
from collections.abc import Hashable, Iterable, Iterator, Mapping

import numpy as np
from msgspec import Struct, field
from numpy.typing import NDArray

from mvc.ids import CommitId
from mvc.limits import PIECE
from mvc.maintenance.graph import Contents, Flags, Integers, StorageGraph, column, read
from mvc.maintenance.payloads import decoded
from mvc.maintenance.rewrite_plan import retry_on_rewrite
from mvc.repo.config import Config
from mvc.repo.lookup.availability import Dropped, all_dropped
from mvc.repo.lookup.refs import branches, tags
from mvc.repo.version_stats import VersionStats
from mvc.store.index.folder import current
from mvc.store.packs.records import Coding
from mvc.store.recovery.rates import Part, Rates, calibrated, of_group, together, width_of
from mvc.store.snapshot import INDEX, Snapshot
from mvc.store.store import Store
from mvc.types import Progress

_KINDS = ("full", "delta", "metadata")


class Predictions(Struct, frozen=True):
    """Tensors that are stored as an optimizer's step from the previous version.

    ``contents``: how many. ``bytes``: their stored size.
    """

    contents: int
    bytes: int


class Stats(Struct, frozen=True):
    """Figures of a repository. All sizes are in bytes, and all times are estimated seconds.

    ``bytes``: size on disk by kind: full, delta, metadata (manifests, skeletons, record headers),
    journal, index. ``stored_bytes``: their sum. ``raw_bytes``: the size of all files of all
    versions as plain copies. ``ratio``: ``stored_bytes`` / ``raw_bytes``, 0 if empty. ``tensors``:
    how many distinct tensors. ``reset_points``: how many versions store all their tensors in full.
    ``deltas_*``: the largest number of deltas that must be decoded for one tensor of a version.
    ``recovery_*``: the time from opening the repository until the files of a version are written.
    ``*_worst``, ``*_mean``: the maximum and the mean over all stored versions.

    ``versions`` includes ``forgotten`` and ``absent`` versions. ``dropped``: how many versions have
    weights that only a recipe can restore; ``recovery_*`` excludes these versions. ``kinds``: maps
    ``VersionStats.kind`` to the number of versions. ``price``: the seconds to recover every version
    once, plus the size of the packs in GB times the setting ``store.storage_weight``; None without
    this setting. ``predicted``: None if no tensor is stored as an optimizer's step.
    """

    versions: int
    reset_points: int
    tensors: int
    bytes: Mapping[str, int]
    stored_bytes: int
    raw_bytes: int
    ratio: float
    deltas_worst: int
    deltas_mean: float
    recovery_worst: float
    recovery_mean: float
    recovery_worst_commit: CommitId | None
    deployments: int
    targets: int
    branches: int
    tags: int
    forgotten: int = 0
    dropped: int = 0
    kinds: Mapping[str, int] = field(default_factory=dict)
    price: float | None = None
    absent: int = 0
    predicted: Predictions | None = None


def stats(store: Store, config: Config, progress: Progress | None = None) -> Stats:
    """The figures of a repository. Reads metadata, but no tensor.

    ``progress`` counts bytes of the journal.
    """
    return retry_on_rewrite(store.snapshot, lambda: _read_figures(store, config, progress))[0]


def by_version(
    store: Store, config: Config, progress: Progress | None = None
) -> tuple[Stats, dict[CommitId, VersionStats]]:
    """The figures of a repository, and of every version that is not forgotten."""
    total, figures = retry_on_rewrite(
        store.snapshot, lambda: _read_figures(store, config, progress)
    )
    return total, figures.by_version(config.get("store.storage_weight"))


def _read_figures(
    store: Store, config: Config, progress: Progress | None
) -> tuple[Stats, _Figures]:
    snapshot = store.fresh()
    graph = read(store, progress)
    graph.refuse_damage()
    history = graph.history
    states = history.states()
    for manifest in states.values():
        graph.contents.require(manifest)
    figures = _Figures(graph, calibrated(store.fs), all_dropped(store))
    stored = dict(zip(_KINDS, figures.bytes.sum(axis=0).tolist(), strict=True))
    packs, weight = sum(stored.values()), config.get("store.storage_weight")
    stored |= {"journal": snapshot.position.offset, "index": _index_bytes(snapshot)}
    total, kinds = sum(stored.values()), figures.kinds()
    count, absent = len(set(history.published)), len(history.absent)
    timed = [i for i, id_ in enumerate(states) if id_ not in history.dropped]
    worst = max(timed, key=figures.seconds.__getitem__, default=None)
    return Stats(
        versions=count,
        reset_points=int(figures.full.sum()),
        tensors=figures.tensors,
        bytes=stored,
        stored_bytes=total,
        raw_bytes=figures.raw,
        ratio=total / figures.raw if figures.raw else 0.0,
        deltas_worst=int(figures.deltas.max(initial=0)),
        deltas_mean=int(figures.deltas.sum()) / max(1, len(states)),
        recovery_worst=0.0 if worst is None else figures.seconds[worst],
        recovery_mean=sum(figures.seconds[i] for i in timed) / max(1, len(timed)),
        recovery_worst_commit=None if worst is None else list(states)[worst],
        deployments=history.deployments,
        targets=len(history.targets),
        branches=len(branches(store.fresh())),
        tags=len(tags(store.fresh())),
        forgotten=count - len(states) - absent,
        absent=absent,
        predicted=_predictions(graph),
        dropped=len(states) - len(timed),
        kinds={kind: kinds.count(kind) for kind in ("full", "update", "delta", "recipe")},
        price=None
        if weight is None
        else packs * weight / 1e9 + sum(map(figures.seconds_of, states)),
    ), figures


def _predicted_rows(graph: StorageGraph) -> Integers:
    """The rows that are stored as an optimizer's step."""
    kinds = [n for text, n in graph.texts.items() if Coding(text).predicted]
    return np.flatnonzero(graph.sound & np.isin(column(graph.forms), kinds))


def _predictions(graph: StorageGraph) -> Predictions | None:
    rows = _predicted_rows(graph)
    if not len(rows):
        return None
    nbytes = int(column(graph.payloads)[rows].sum())
    return Predictions(len(np.unique(graph.object[rows])), nbytes)


def _seconds(graph: StorageGraph, rates: Rates) -> NDArray[np.float64]:
    """For each row: the seconds to read and decode its bytes."""
    contents, kinds, texts = graph.contents, column(graph.forms), list(graph.texts)
    sizes, shares = graph.sizes.astype(np.float64), _shares(graph)
    widths = np.array([*map(width_of, contents.known_specs), 0])  # 0: no spec
    specs = np.full(len(graph) + 1, len(widths) - 1, np.int32)
    specs[graph.numbers(contents.ids)] = column(contents.specs)
    width, seconds = widths[specs[graph.object]], np.zeros(len(kinds))
    order = np.lexsort((width, kinds))
    ends = np.flatnonzero(np.diff(kinds[order]) | np.diff(width[order])) + 1
    for rows in np.split(order, ends) if len(order) else ():
        text, size = texts[kinds[rows[0]]], int(width[rows[0]])
        seconds[rows] = rates.seconds(text, sizes[rows], shares[rows], size)
    return seconds


def _shares(graph: StorageGraph) -> NDArray[np.float64]:
    """For each row: the number of its stored bytes.

    The rows of a group are stored together. The bytes of a group are divided among its rows.
    """
    record, sizes, stored = graph.records_by_row, graph.sizes, column(graph.payloads)
    raw, total = (np.bincount(record, values)[record] for values in (sizes, stored))
    grouped = column(graph.groups)[record] > 0
    return np.where(grouped, total * sizes / np.maximum(raw, 1), stored.astype(np.float64))


class _SharedPayloads:
    """Computes decoding times where several rows share one payload (a group)."""

    def __init__(self, graph: StorageGraph, seconds: NDArray[np.float64]) -> None:
        self._rows, self._before = graph.last_steps
        self._records, self._seconds = graph.records_by_row, seconds
        self._grouped, self._ends, self._graph = graph.groups, graph.rows, graph

    def step(self, node: int) -> tuple[int, Part, int | None, list[int]]:
        """The function ``last_step`` for ``decoded``, which describes it."""
        graph, row = self._graph, int(self._rows[node])
        record, before = int(self._records[row]), int(self._before[node])
        part = float(self._seconds[row]), record if self._grouped[record] else None
        begin, end = np.searchsorted(graph.input_row, (row, row + 1))
        inputs: list[int] = graph.input_node[begin:end].tolist()
        return int(graph.sizes[row]), part, None if before < 0 else before, inputs

    def group_seconds(self, record: Hashable) -> float:
        """CPU seconds to decode the payload of a group."""
        assert isinstance(record, int)
        return of_group(self._seconds[self._ends[record] : self._ends[record + 1]].tolist())


class _Figures:
    """Figures of versions that are not forgotten, oldest first.

    Arrays with one item per version: ``versions`` (number of the manifest), ``deltas`` (largest
    number of deltas for a tensor), ``seconds`` (recovery time), ``full`` (whether it is a reset
    point). ``mentions``: two arrays, with the manifest and the slot of each content of each
    manifest. ``reuses``: for each manifest, whether it has contents of an earlier manifest.
    """

    def __init__(
        self, graph: StorageGraph, rates: Rates, dropped: Mapping[CommitId, Dropped]
    ) -> None:
        self.graph, self.dropped = graph, dropped
        contents, count, states = graph.contents, len(graph.contents.raw), graph.history.states()
        self._places = {id_: place for place, id_ in enumerate(states)}
        versions = np.array([contents.manifests[id_] for id_ in states.values()], np.int64)
        stored = np.bincount(versions, minlength=count) > 0  # by manifest
        manifest = np.repeat(np.arange(count), np.diff(column(contents.ends)))  # by mention
        slot, skeleton = column(contents.slots), column(contents.skeletons).astype(np.bool_)
        objects = graph.numbers(contents.ids)  # by slot
        skeletons = objects[slot[skeleton & stored[manifest]]]
        manifest, slot = _once(manifest, slot, ~skeleton & stored[manifest], len(objects))
        self.versions, self.mentions = versions, (manifest, slot)
        self.pieces = pieces = _Pieces(graph, objects, rates)
        deltas, seconds = np.zeros(count, np.int64), np.zeros(count)
        np.maximum.at(deltas, manifest, pieces.depth[slot])
        in_part = np.bincount(manifest, ~pieces.full[slot], count)
        ends = np.searchsorted(manifest, np.arange(count + 1))
        for number in np.flatnonzero(stored).tolist():
            works = pieces.works(slot[ends[number] : ends[number + 1]].tolist())
            seconds[number] = rates.version(works, contents.files[number], contents.raw[number])
        self.deltas, self.full = deltas[versions], in_part[versions] == 0
        self.seconds = array("d", seconds[versions].tobytes())
        first = np.full(len(objects), -1, np.int32)  # by slot: the manifest that mentions it first
        first[slot[::-1]] = manifest[::-1]
        self.reuses: Flags = np.bincount(manifest, first[slot] != manifest, count) > 0
        self.raw = int(column(contents.raw)[versions].sum())
        self.tensors = _distinct(objects, np.flatnonzero(first >= 0), contents)
        self.bytes = _bytes_in_packs(graph, skeletons[skeletons >= 0])

    def kinds(self) -> list[str]:
        """How each version is stored, as ``VersionStats.kind``."""
        history, delta = self.graph.history, _KINDS.index("delta")
        kinds = []
        for id_, manifest, full in zip(history.states(), self.versions, self.full, strict=True):
            has_delta = bool(self.bytes[history.numbers[id_], delta])
            kind = "delta" if has_delta else "update"
            if full:
                kind = "full" if has_delta or not self.reuses[manifest] else "update"
            kinds.append("recipe" if id_ in self.dropped else kind)
        return kinds

    def seconds_of(self, id_: CommitId) -> float:
        """Seconds to recover a version, including the training of dropped weights."""
        seconds, current = 0.0, id_
        while (dropped := self.dropped.get(current)) is not None:
            seconds += dropped.seconds
            if dropped.base is None:
                return seconds
            current = dropped.base
        place = self._places.get(current)
        return seconds + (0.0 if place is None else self.seconds[place])

    def by_version(self, weight: float | None) -> dict[CommitId, VersionStats]:
        """The figures of every version that is not forgotten."""
        graph, history = self.graph, self.graph.history
        depth, sources = self.pieces.depth, self.pieces.sources(graph)
        manifests, slots = self.mentions
        furthest_ = _furthest(manifests, depth[slots])
        furthest = dict(zip(manifests[furthest_].tolist(), slots[furthest_].tolist(), strict=True))
        ids, results = list(history.numbers), {}
        rows = _predicted_rows(self.graph)
        homes = column(history.homes)[graph.entry[rows]]
        _, first = np.unique(graph.object[rows], return_index=True)
        predicted = np.bincount(homes[first] % (len(ids) + 1), minlength=len(ids) + 1)
        for i, (id_, kind) in enumerate(zip(history.states(), self.kinds(), strict=True)):
            slot, stored = furthest.get(int(self.versions[i])), self.bytes[history.numbers[id_]]
            row = -1 if slot is None else int(sources[slot])
            home = -1 if row < 0 else history.homes[graph.entry[row]]
            seconds = self.seconds_of(id_)
            results[id_] = VersionStats(
                bytes=dict(zip(_KINDS, stored.tolist(), strict=True)),
                reset_point=bool(self.full[i]),
                deltas=0 if slot is None else int(depth[slot]),
                base=None if home < 0 else ids[home],
                kind=kind,
                seconds=seconds,
                price=None if weight is None else int(stored.sum()) * weight / 1e9 + seconds,
                predicted=int(predicted[history.numbers[id_]]),
            )
        return results


def _bytes_in_packs(graph: StorageGraph, skeletons: Integers) -> Integers:
    """Number of stored bytes in packs, as a table with a line per version and a column per kind.

    The last line is for operations without versions. ``skeletons``: objects to count as metadata.
    """
    homes = column(graph.history.homes)
    is_skeleton = np.zeros(len(graph), np.bool_)
    is_skeleton[skeletons] = True
    metadata = graph.manifest | is_skeleton[graph.object]
    kind = np.where(metadata, _KINDS.index("metadata"), graph.delta)
    sums = np.zeros((len(graph.history.numbers) + 1, len(_KINDS)), np.int64)
    np.add.at(sums, (homes[graph.entry], kind), column(graph.payloads).astype(np.int64))
    first_rows = column(graph.rows)[:-1]
    heads = (homes[graph.entry[first_rows]], _KINDS.index("metadata"))
    np.add.at(sums, heads, column(graph.heads).astype(np.int64))
    return sums


def _once(manifest: Integers, slot: Integers, which: Flags, slots: int) -> tuple[Integers, ...]:
    """Manifest and slot of each mention that ``which`` selects, without repetitions."""
    keys = (manifest * slots + slot)[which]
    _, first = np.unique(keys, return_index=True)
    return np.divmod(keys[np.sort(first)], max(1, slots))


def _furthest(groups: Integers, depths: Integers) -> Integers:
    """For each group, in ascending order: the first position with the group's largest depth."""
    order = np.lexsort((-depths, groups))
    _, first = np.unique(groups[order], return_index=True)
    return order[first]


class _Pieces:
    """The pieces of every content. Arrays with one item per slot (number of a content):

    ``depth``: the largest number of deltas to decode for a piece. ``full``: whether every piece is
    stored in full.
    """

    def __init__(self, graph: StorageGraph, objects: Integers, rates: Rates) -> None:
        contents, seconds = graph.contents, _seconds(graph, rates)
        graph.price(seconds)
        grouped = any(graph.groups) or len(graph.input_row)
        self._groups = _SharedPayloads(graph, seconds) if grouped else None
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
        depths = np.where(lost, 0, graph.depths[nodes])
        np.maximum.at(self.depth, slots, depths)
        parts = (nodes < 0) | ~graph.full[nodes]
        self.full = np.bincount(slots, parts, len(objects)) == 0
        self._slots, self._nodes = slots, np.where(lost, -1, nodes)
        self._depths = depths

    def sources(self, graph: StorageGraph) -> Integers:
        """For each slot: the row of the full piece from which decoding begins; -1 if it is lost.

        If a content has several pieces, the piece with the most deltas counts.
        """
        nodes = self._nodes[_furthest(self._slots, self._depths)]
        return np.where(nodes < 0, -1, graph.sources[nodes])

    def works(self, slots: Iterable[int]) -> Iterable[tuple[int, float]]:
        """(number of bytes, seconds to decode) of each piece of ``slots``, all in one version."""
        groups = self._groups
        if groups is None:
            return ((nbytes, self._costs[at]) for nbytes, at in self._parts(slots))
        nodes = {int(self._nodes[at]): nbytes for nbytes, at in self._parts(slots)}
        nodes.pop(-1, None)  # lost
        return together(decoded(nodes, groups.step), groups.group_seconds)

    def _parts(self, slots: Iterable[int]) -> Iterator[tuple[int, int]]:
        """(number of bytes, position in ``_nodes``) of each piece of ``slots``."""
        for slot in slots:
            left = self._sizes[self._specs[slot]]
            for at in range(self._begins[slot], self._begins[slot + 1]):
                yield min(left, PIECE), at
                left -= PIECE


def _distinct(objects: Integers, slots: Integers, contents: Contents) -> int:
    """The number of distinct objects of ``slots``, including lost objects."""
    numbers = objects[slots]
    lost = {contents.id_of(slot) for slot in slots[numbers < 0].tolist()}
    return int(np.count_nonzero(np.bincount(numbers[numbers >= 0]))) + len(lost)


def _index_bytes(snapshot: Snapshot) -> int:
    fs, folder = snapshot.fs, snapshot.folder / INDEX
    folders = [p for p in (folder, current(fs, folder)) if p is not None and fs.stat(p) is not None]
    infos = (fs.stat(folder_ / name) for folder_ in folders for name in fs.list(folder_))
    return sum(info.size for info in infos if info is not None and info.is_file)
