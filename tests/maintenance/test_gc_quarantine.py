"""After a state was forgotten by name, the quarantine holds nothing of it either."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from mvc.errors import IoFailed
from mvc.ids import CommitId
from mvc.maintenance import gc
from mvc.maintenance.graph import StoredRecord, read_records
from mvc.store.packs.reader import PACK_HEADER, pack_path
from tests.histories import CheckedHistory

NOW = timedelta(0)


class Quarantined(CheckedHistory):
    """A repository whose records are put aside as a repair does it."""

    @property
    def place(self) -> Path:
        return self.root / ".mvc" / "quarantine"

    def records(self, id_: CommitId) -> list[StoredRecord]:
        """Those that make a version's objects."""
        return [
            record
            for record in read_records(self.repo.handle.store.snapshot).all_records()
            if any(member.id in self.objects[id_] for member in record.header.members)
        ]

    def aside(self, name: str, *ids: CommitId, spoil: int | None = None) -> Path:
        """A file with the records of versions; ``spoil``: a byte of it to turn over."""
        data = bytearray(PACK_HEADER)
        for id_ in ids:
            for record in self.records(id_):
                pack = pack_path(self.root / ".mvc" / "packs", record.pack).read_bytes()
                data += pack[record.offset : record.offset + record.header.size]
        if spoil is not None:
            data[spoil] ^= 0x5A
        self.place.mkdir(exist_ok=True)
        path = self.place / f"{name}.pack"
        path.write_bytes(data)
        return path


def test_only_what_is_needed_stays(tmp_path: Path) -> None:
    history = Quarantined(tmp_path / "r", 4)
    ids = list(history.ids)
    first = history.aside("1-full-and-needed", ids[0])
    of_forgotten = history.aside("2-forgotten", ids[2])
    among_others = history.aside("3-among-others", ids[0], ids[2])
    from_forgotten = history.aside("4-a-delta-from-it", ids[3])
    spoiled = history.aside("5-header", ids[0], spoil=len(PACK_HEADER) + 20)
    cut_off = history.place / ".mvc-tmp-0"
    cut_off.write_bytes(of_forgotten.read_bytes()[:100])
    assert any(m.base for record in history.records(ids[3]) for m in record.header.members)
    going = [of_forgotten, among_others, from_forgotten, spoiled]
    history.forget(ids[2])
    size = sum(path.stat().st_size for path in (*going, cut_off))
    planned = history.repo.storage.gc(dry_run=True)
    assert (planned.quarantined, planned.unquarantined) == (first.stat().st_size, size)
    assert all(path.exists() for path in going)
    done = history.repo.storage.gc()
    assert (done.quarantined, done.unquarantined) == (first.stat().st_size, size)
    assert list(history.place.iterdir()) == [first]
    for path in (tmp_path / "r" / ".mvc").rglob("*.pack"):
        data = path.read_bytes()
        assert not any(id_ in data for id_ in history.lost())
    history.check()


def test_what_is_put_aside_later_stays(tmp_path: Path) -> None:
    history = Quarantined(tmp_path / "r", 4)
    ids = list(history.ids)
    history.forget(ids[1])
    history.repo.storage.gc()
    path = history.aside("later", ids[0], spoil=len(PACK_HEADER) + 20)
    done = history.repo.storage.gc(grace="0")
    assert (done.quarantined, done.unquarantined) == (path.stat().st_size, 0)
    assert path.exists()


def test_by_rule_everything_stays(tmp_path: Path) -> None:
    history = Quarantined(tmp_path / "r", 4)
    ids = list(history.ids)
    path = history.aside("x", ids[0], ids[1])
    history.forget(keep_last=1)
    done = history.repo.storage.gc(grace="0")
    assert (done.quarantined, done.unquarantined) == (path.stat().st_size, 0)
    assert path.exists()


def test_where_nothing_else_goes(tmp_path: Path) -> None:
    """All that the version held is lost already, or in others too."""
    history = Quarantined(tmp_path / "r", 2)
    ids = list(history.ids)
    history.commit(history.states[ids[0]])
    history.commit(history.states[ids[1]])
    path = history.aside("x", ids[0], spoil=len(PACK_HEADER) + 20)
    history.forget(ids[0])
    assert history.repo.storage.gc().unquarantined > 0
    assert not path.exists()
    history.check()


def test_an_interruption_between_leaves_it_to_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    history = Quarantined(tmp_path / "r", 3)
    ids = list(history.ids)
    path = history.aside("x", ids[1])
    history.forget(ids[1])

    def refused(*_: object) -> None:
        raise IoFailed("the file cannot be deleted")

    with monkeypatch.context() as patched:
        patched.setattr(gc, "delete_files", refused)
        with pytest.raises(IoFailed):
            history.repo.storage.gc()
    assert path.exists()
    history.check()
    assert history.repo.storage.gc().unquarantined > 0
    assert not path.exists()
    history.check()
