"""Versions with all their bytes, to see what is still there and what is gone for good."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np

import mvc
from mvc.errors import DamagedData, StateForgotten
from mvc.ids import CommitId
from mvc.maintenance.fsck.fsck import fsck
from mvc.maintenance.inventory import inventory
from mvc.repo.commit.request import CommitOptions
from mvc.repo.lookup import manifests
from mvc.repo.lookup.commits import get
from mvc.store.index import keys
from mvc.store.packs.records import BASE_BYTES

Array = np.ndarray


class Kept:
    """A repository and, by version, what was committed. ``objects``: ids of what it is made of."""

    def __init__(self, root: Path, **options) -> None:
        self.repo = mvc.Repository.init(root, **options)
        self.states: dict[CommitId, dict[str, Array]] = {}
        self.files: dict[CommitId, dict[str, bytes]] = {}
        self.objects: dict[CommitId, set[bytes]] = {}
        self.gone: set[CommitId] = set()

    @property
    def context(self):
        return self.repo.context

    def state(self, state: dict[str, Array], **options) -> CommitId:
        id_ = self.repo.commit(state, **options).id
        self.states[id_] = {name: array.copy() for name, array in state.items()}
        return self._noted(id_)

    def file(self, **options) -> CommitId:
        """Commits the files of the tree."""
        root = self.repo.root
        paths = [p for p in sorted(root.iterdir()) if p.is_file()]
        id_ = self.repo.commit(paths, options=CommitOptions(cwd=root), **options).id
        self.files[id_] = {p.name: p.read_bytes() for p in paths}
        return self._noted(id_)

    def _noted(self, id_: CommitId) -> CommitId:
        manifest = manifests.of_commit(self.context, id_)
        self.objects[id_] = {*manifests.objects(manifest), manifest.id}
        return id_

    def forget(self, *ids: CommitId, **rules) -> set[CommitId]:
        chosen = {c.id for c in self.repo.storage.forget(ids, **rules).commits}
        self.gone |= chosen
        return chosen

    @property
    def there(self) -> list[CommitId]:
        return [id_ for id_ in self.objects if id_ not in self.gone]

    def lost(self, named: Iterable[CommitId] | None = None) -> set[bytes]:
        """Objects of what was forgotten (of ``named``) that no other version has."""
        of = self.gone if named is None else set(named)
        ids = {o for id_ in of for o in self.objects[id_]}
        return ids - {o for id_ in self.there for o in self.objects[id_]}

    def check(self, scratch: Path) -> None:
        """Every version that is there comes back bit for bit, no other comes back at all."""
        report = fsck(self.context, full=True)
        assert report.problems == ()
        assert report.forgotten == sum(self._is_known(id_) for id_ in self.gone)
        with mvc.Repository.open(self.repo.root) as repo:
            for number, id_ in enumerate(self.there):
                self._check_one(repo, id_, scratch / f"{number}")
            for id_ in self.gone:
                if self._is_known(id_):
                    try:
                        repo.manifest(id_)
                    except StateForgotten:
                        continue
                    raise AssertionError(f"{id_.short} came back")

    def _is_known(self, id_: CommitId) -> bool:
        return self.context.store.has_commit(id_)

    def _check_one(self, repo: mvc.Repository, id_: CommitId, scratch: Path) -> None:
        get(repo.context, id_)
        if id_ in self.states:
            back = repo.checkout(id_)
            assert back.keys() == self.states[id_].keys()
            for name, array in self.states[id_].items():
                found = np.asarray(back[name])
                assert (found.dtype, found.shape) == (array.dtype, array.shape)
                assert found.tobytes() == array.tobytes(), name
        if id_ in self.files:
            scratch.mkdir(parents=True)
            repo.checkout(id_, to=scratch)
            back = {p.name: p.read_bytes() for p in scratch.iterdir()}
            assert back == self.files[id_]


def traces(context, ids: set[bytes], *, files: bool = True) -> list[str]:
    """What is left of objects: records, edges, keys, ways to them; ids in ``files`` of packs."""
    found = inventory(context.store.snapshot)
    left = [f"stored {i.hex()[:10]}" for i in ids & found.codings.keys()]
    heads = {i[:BASE_BYTES] for i in ids}
    for record, _, member in found.all_members():
        if member.id in ids:
            left.append(f"named in pack {record.pack} at {record.offset}")
        if member.base in heads:
            left.append(f"a base in pack {record.pack} at {record.offset}")
    for id_ in ids:
        if context.store.snapshot.under(keys.BLOB + id_[: keys.ID_BYTES]):
            left.append(f"in the index {id_.hex()[:10]}")
        try:
            context.store.graph.path(id_)
        except DamagedData:
            continue
        left.append(f"a way leads to {id_.hex()[:10]}")
    for pack in (context.store.folder / "packs").iterdir() if files else ():
        data = pack.read_bytes()
        left += [f"{pack.name} has {i.hex()[:10]}" for i in ids if i in data]
    return left
