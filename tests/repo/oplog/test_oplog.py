from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

import mvc.store.journal.reader as journal_reader
from mvc.errors import DamagedData, UnknownOperation, WrongUsage
from mvc.model.statement import Deployment
from mvc.repo import refs
from mvc.repo.handle import Handle
from mvc.repo.oplog import oplog
from mvc.repo.oplog.oplog import label
from mvc.repo.oplog.undo import undo
from mvc.store.journal.entries import Entry
from mvc.store.journal.frames import GENESIS, encode_entry
from mvc.testing import FixedClock
from tests.repo.publishing import START, UnsyncedFS, advance, commit, repository
from tests.repo.working import open_handle


def numbers(context: Handle, limit: int | None = None) -> list[int]:
    return [each.number for each in oplog.oplog(context.store, limit)]


def test_newest_first_with_what_was_done(context: Handle) -> None:
    first = commit(context, deploy="prod")
    advance(context, 60)
    refs.create_tag(context.store, "v1")
    found = list(oplog.oplog(context.store))
    assert [(o.number, o.entry.operation) for o in found] == [
        (2, "tag"), (1, "commit"), (0, "init"),
    ]  # fmt: skip
    assert found[0].entry.time_ns - found[1].entry.time_ns == 60 * 10**9
    assert [c.new for c in found[0].entry.refs] == [first]
    assert found[1].entry.of(Deployment)[0].target == "prod"
    assert numbers(context, 2) == [2, 1]
    assert numbers(context, 0) == []
    with pytest.raises(WrongUsage):
        oplog.oplog(context.store, -1)


def test_an_undo_that_was_undone_does_not_hold(context: Handle) -> None:
    commit(context)
    undo(context.store, context.config)
    undo(context.store, context.config, 2)
    undo(context.store, context.config, 3)
    assert [(o.number, o.undone_by) for o in oplog.oplog(context.store)] == [
        (4, None), (3, 4), (2, None), (1, 2), (0, None),
    ]  # fmt: skip


def test_one_by_its_number(context: Handle) -> None:
    commit(context)
    undo(context.store, context.config)
    assert oplog.find(context.store.snapshot, 1).sequence == 1
    assert oplog.undone_by(context.store.snapshot, 1) == 2
    for number in (3, 1 << 40, 1 << 70, -1):
        with pytest.raises(UnknownOperation, match=str(number)):
            oplog.find(context.store.snapshot, number)


def test_numbers_may_be_left_out(tmp_path: Path) -> None:
    """As in a journal that was compacted."""
    context = repository(tmp_path / "r")
    for _ in range(9):
        commit(context)
    kept = [r for r in context.store.snapshot.entries() if r.sequence in {0, 3, 4, 9}]
    context.store.close()
    data, at = b"", GENESIS
    for recorded in kept:
        frame, at = encode_entry(recorded.entry, replace(at, sequence=recorded.sequence))
        data += frame
    folder = tmp_path / "r" / ".mvc"
    (folder / "journal").write_bytes(data)
    for path in (folder / "index.lmdb").glob("*/*.mdb"):
        path.unlink()
    short = open_handle(tmp_path / "r", FixedClock(START), UnsyncedFS())
    assert numbers(short) == [9, 4, 3, 0]
    assert numbers(short, 2) == [9, 4]
    with pytest.raises(UnknownOperation):
        oplog.find(short.store.snapshot, 5)
    short.store.close()


def test_an_undo_of_what_is_yet_to_come_is_damage(context: Handle) -> None:
    for undone in (2, 1):
        context.store.publish(lambda n=undone: Entry("undo", START, undoes=n))
    with pytest.raises(DamagedData):
        list(oplog.oplog(context.store))


def test_the_newest_of_many_cost_a_few_entries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = repository(tmp_path / "r")
    for _ in range(2000):
        commit(context)
    context.store.close()
    again = open_handle(tmp_path / "r", FixedClock(START), UnsyncedFS())
    reads: list[int] = []
    inner = journal_reader.read_entry

    def counted(source: Any, offset: int, size: int | None = None) -> Any:
        reads.append(offset)
        return inner(source, offset, size)

    monkeypatch.setattr(journal_reader, "read_entry", counted)
    assert numbers(again, 20) == list(range(2000, 1980, -1))
    assert len(reads) <= 20
    assert len(numbers(again)) == 2001
    again.store.close()


def test_names_for_people() -> None:
    assert [label(n) for n in ("heads/a/b", "tags/v1", "HEAD")] == ["a/b", "tag v1", "HEAD"]
