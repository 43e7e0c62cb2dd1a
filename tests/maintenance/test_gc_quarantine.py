"""After a state was forgotten by name, the quarantine holds nothing of it either."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest

from mvc.errors import IoFailed
from mvc.ids import CommitId
from mvc.maintenance import gc
from mvc.maintenance.inventory import StoredRecord, inventory
from mvc.store.packs.reader import PACK_HEADER, pack_path
from tests.repo.giving_up import Kept

NOW = timedelta(0)


class Put(Kept):
    """A repository whose records are put aside as a repair does it."""

    def versions(self, count: int) -> list[CommitId]:
        """Of one tensor each, as deltas but for the first."""
        w = np.random.default_rng(0).standard_normal((40, 50)).astype(np.float32)
        ids = []
        for n in range(count):
            w = w + np.float32(1e-3)
            ids.append(self.state({"w": w}, message=f"{n}"))
        return ids

    @property
    def place(self) -> Path:
        return self.context.store.folder / "quarantine"

    def records(self, id_: CommitId) -> list[StoredRecord]:
        """Those that make a version's objects."""
        found = inventory(self.context.store.snapshot)
        return [
            record
            for record in found.all_records()
            if any(member.id in self.objects[id_] for member in record.header.members)
        ]

    def aside(self, name: str, *ids: CommitId, spoil: int | None = None) -> Path:
        """A file with the records of versions; ``spoil``: a byte of it to turn over."""
        data = bytearray(PACK_HEADER)
        for id_ in ids:
            for record in self.records(id_):
                pack = pack_path(self.context.store.folder / "packs", record.pack).read_bytes()
                data += pack[record.offset : record.offset + record.header.size]
        if spoil is not None:
            data[spoil] ^= 0x5A
        self.place.mkdir(exist_ok=True)
        path = self.place / f"{name}.pack"
        path.write_bytes(data)
        return path


def test_only_what_is_needed_stays(tmp_path: Path) -> None:
    kept = Put(tmp_path / "r")
    ids = kept.versions(4)
    first = kept.aside("1-full-and-needed", ids[0])
    of_forgotten = kept.aside("2-forgotten", ids[2])
    among_others = kept.aside("3-among-others", ids[0], ids[2])
    from_forgotten = kept.aside("4-a-delta-from-it", ids[3])
    spoiled = kept.aside("5-header", ids[0], spoil=len(PACK_HEADER) + 20)
    cut_off = kept.place / ".mvc-tmp-0"
    cut_off.write_bytes(of_forgotten.read_bytes()[:100])
    assert any(m.base for record in kept.records(ids[3]) for m in record.header.members)
    going = [of_forgotten, among_others, from_forgotten, spoiled]
    kept.forget(ids[2])
    size = sum(path.stat().st_size for path in (*going, cut_off))
    planned = gc.plan_collection(kept.context)
    assert (planned.quarantined, planned.unquarantined) == (first.stat().st_size, size)
    assert all(path.exists() for path in going)
    done = gc.collect(kept.context)
    assert (done.quarantined, done.unquarantined) == (first.stat().st_size, size)
    assert list(kept.place.iterdir()) == [first]
    for path in (tmp_path / "r" / ".mvc").rglob("*.pack"):
        data = path.read_bytes()
        assert not any(id_ in data for id_ in kept.lost())
    kept.check(tmp_path / "s")


def test_what_is_put_aside_later_stays(tmp_path: Path) -> None:
    kept = Put(tmp_path / "r")
    ids = kept.versions(4)
    kept.forget(ids[1])
    gc.collect(kept.context)
    path = kept.aside("later", ids[0], spoil=len(PACK_HEADER) + 20)
    done = gc.collect(kept.context, grace=NOW)
    assert (done.quarantined, done.unquarantined) == (path.stat().st_size, 0)
    assert path.exists()


def test_by_rule_everything_stays(tmp_path: Path) -> None:
    kept = Put(tmp_path / "r")
    ids = kept.versions(4)
    path = kept.aside("x", ids[0], ids[1])
    kept.forget(keep_last=1)
    done = gc.collect(kept.context, grace=NOW)
    assert (done.quarantined, done.unquarantined) == (path.stat().st_size, 0)
    assert path.exists()


def test_where_nothing_else_goes(tmp_path: Path) -> None:
    """All that the version held is lost already, or in others too."""
    kept = Put(tmp_path / "r")
    ids = kept.versions(2)
    kept.state(kept.states[ids[0]])
    kept.state(kept.states[ids[1]])
    path = kept.aside("x", ids[0], spoil=len(PACK_HEADER) + 20)
    kept.forget(ids[0])
    assert gc.collect(kept.context).unquarantined > 0
    assert not path.exists()
    kept.check(tmp_path / "s")


def test_an_interruption_between_leaves_it_to_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = Put(tmp_path / "r")
    ids = kept.versions(3)
    path = kept.aside("x", ids[1])
    kept.forget(ids[1])

    def refused(*_: object) -> None:
        raise IoFailed("the file cannot be deleted")

    with monkeypatch.context() as patched:
        patched.setattr(gc, "delete", refused)
        with pytest.raises(IoFailed):
            gc.collect(kept.context)
    assert path.exists()
    kept.check(tmp_path / "before")
    assert gc.collect(kept.context).unquarantined > 0
    assert not path.exists()
    kept.check(tmp_path / "after")
