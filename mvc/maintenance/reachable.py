"""Reachability: the versions that stay, and their objects.

Roots are refs, HEAD, every deployment (retracted ones too: they are evidence), and every
commit that an operation within the grace made or moved a ref from or to. A root stays with
all its ancestors, and with the versions that these need. The state of a version that stays is kept
unless it was forgotten; of one that gave up its weights all but these.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress

import numpy as np
from msgspec import Struct, field

from mvc.errors import DamagedData
from mvc.ids import CommitId, ManifestId
from mvc.maintenance.inventory import Contents, Inventory
from mvc.maintenance.storage_graph import Flags, StorageGraph, column
from mvc.model.tensor import TensorSpec
from mvc.repo.lookup import manifests


class Specs(Mapping[bytes, TensorSpec]):
    """The spec of every blob that a state which stays has; by object, as the graph numbers them.

    Of blobs that are not stored (``lost``) by id.
    """

    def __init__(
        self,
        graph: StorageGraph,
        contents: Contents,
        states: set[ManifestId],
        given_up: Mapping[ManifestId, Iterable[int]],
    ) -> None:
        """``states``: manifests that ``contents`` has. ``given_up``: by manifest the positions
        among its objects that do not count.
        """
        self._graph = graph
        self._specs = contents.known_specs
        self._by_object = np.full(len(graph), -1, np.int32)
        self.lost: dict[bytes, TensorSpec] = {}
        stays = np.zeros(len(contents.raw), np.bool_)
        stays[[contents.manifests[id_] for id_ in states]] = True
        counts = np.diff(column(contents.ends))
        used = np.zeros(len(contents.specs), np.bool_)
        mentions = np.repeat(stays, counts)
        for id_, positions in given_up.items():
            begin = contents.ends[contents.manifests[id_]]
            mentions[[begin + position for position in positions]] = False
        used[column(contents.slots)[mentions]] = True
        slots = np.flatnonzero(used)
        objects, specs = graph.numbers(contents.ids)[slots], column(contents.specs)[slots]
        stored = objects >= 0
        self._by_object[objects[stored]] = specs[stored]
        for slot in slots[~stored].tolist():
            self.lost[contents.id_of(slot)] = self._specs[contents.specs[slot]]

    @property
    def objects(self) -> Flags:
        """By object: whether it is one of these."""
        return self._by_object >= 0

    def __getitem__(self, id_: bytes) -> TensorSpec:
        number = self._graph.number(id_)
        spec = -1 if number < 0 else int(self._by_object[number])
        return self.lost[id_] if spec < 0 else self._specs[spec]

    def __iter__(self) -> Iterator[bytes]:
        yield from map(self._graph.id_of, np.flatnonzero(self.objects).tolist())
        yield from self.lost

    def __len__(self) -> int:
        return int(self.objects.sum()) + len(self.lost)


class Reachable(Struct, kw_only=True):
    """``commits`` stay; ``states`` are those of them whose state stays as well. ``forgotten``:
    whose state does not, by name (True) or by rule.

    ``blobs`` and ``manifests`` are the objects of these states. ``only_forgotten`` are objects
    that only forgotten states have, ``banned`` those of states forgotten by name: no copy of them
    may stay, not even as a base. ``dropped`` are weights that were given up, for which no state
    that stays has a use. ``purge``: a state was forgotten by name since the last
    collection, so bytes that no entry names must be deleted as well. Operations from
    ``cutoff_ns`` on count.
    """

    cutoff_ns: int
    commits: set[CommitId]
    states: set[CommitId]
    forgotten: Mapping[CommitId, bool]
    purge: bool
    manifests: set[ManifestId]
    blobs: Specs
    only_forgotten: set[bytes] = field(default_factory=set)
    banned: set[bytes] = field(default_factory=set)
    dropped: set[bytes] = field(default_factory=set)

    def needs(self, id_: bytes) -> bool:
        """Whether a state that stays has this object."""
        return id_ in self.blobs or id_ in self.manifests


def reachable(
    found: Inventory,
    contents: Contents,
    cutoff_ns: int,
    *,
    forget: Mapping[CommitId, bool] | None = None,
) -> Reachable:
    """What is reachable if operations before ``cutoff_ns`` no longer count as roots.

    ``forget``: further states to treat as forgotten (by name: True).
    """
    history = found.history
    forgotten, fresh = dict(history.forgotten), set(history.fresh)
    for commit_id, named in (forget or {}).items():
        forgotten[commit_id] = forgotten.get(commit_id, False) or named
        fresh.update({commit_id} if named else ())
    numbers = history.reachable(cutoff_ns)
    commits = {id_ for id_, number in history.numbers.items() if number in numbers}
    states = commits - forgotten.keys()
    needed = {each for id_ in states if (each := history.manifest(id_)) is not None}
    # Most were read with their entries; the others oldest first, each near its base.
    late = sorted(needed - contents.manifests.keys(), key=found.graph.number)
    for id_ in late:
        contents.require(id_, [coding.step for coding in found.codings.get(id_, ())])
    positions, dropped = dict[ManifestId, list[int]](), set[bytes]()
    for id_, paths in history.given_up(states).items():
        manifest = contents.load(id_)
        positions[id_] = manifests.positions(manifest, paths)
        dropped.update(c.id for e in manifest.all_entries if e.path in paths for c in e.contents)
    blobs = Specs(found.graph, contents, needed, positions)
    reach = Reachable(
        cutoff_ns=cutoff_ns,
        commits=commits,
        states=states,
        forgotten=forgotten,
        purge=bool(fresh),
        manifests=needed,
        blobs=blobs,
    )
    reach.dropped = {id_ for id_ in dropped if not reach.needs(id_)}
    for commit_id, named in forgotten.items():
        objects = _objects_of(found, contents, commit_id)
        if named and not objects and commit_id in fresh:
            # Its manifest is gone (it was forgotten by rule first, and collected) or damaged:
            # its objects may be among those that no version needs.
            objects = set(found.codings)
        alone = {each for each in objects if not reach.needs(each)}
        reach.only_forgotten |= alone
        reach.banned |= alone if named else set()
    return reach


def _objects_of(found: Inventory, contents: Contents, commit: CommitId) -> set[bytes]:
    """A version's blobs and its manifest; none if the manifest is not stored or damaged."""
    id_ = found.history.manifest(commit)
    if id_ is not None and id_ in found.codings:
        with suppress(DamagedData):
            return {*manifests.objects(contents.load(id_)), id_}
    return set()
