"""fsck --repair: every kind of damage, with and without something that heals it."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from mvc.api import Repository, heal
from mvc.errors import DamagedData, HistoryMissing, ReadOnly, UnsupportedFormat
from mvc.io.files import FileSystem
from mvc.store.format import format_line, read_features
from mvc.store.journal.entries import Entry, StateMark
from mvc.store.packs.records import MANIFEST
from mvc.testing import fresh_process
from tests.histories import CheckedHistory
from tests.maintenance.damaging import (
    LAST,
    backup_of,
    commit,
    lost,
    make,
    mend,
    pack_of,
    smash,
    smash_payload,
    step_of,
    weights,
)
from tests.repo.working import write_model


def quarantine(root: Path) -> list[Path]:
    return sorted((root / ".mvc" / "quarantine").glob("*"))


# -- payloads and headers --------------------------------------------------------------


def test_nothing_to_repair(tmp_path: Path) -> None:
    history = make(tmp_path)
    before = {p: p.read_bytes() for p in (tmp_path / ".mvc").rglob("*.pack")}
    done = mend(tmp_path)
    assert (done.healed, done.quarantined, done.after.sound) == ((), (), True)
    assert {p: p.read_bytes() for p in before} == before
    history.check()


@pytest.mark.parametrize(
    ("layout", "rev"),
    [("chain", "HEAD~5"), ("chain", "HEAD~3"), ("skip:4", "HEAD~5"), ("skip:4", "HEAD~1")],
)
def test_a_damaged_payload_that_another_path_goes_around(
    tmp_path: Path, layout: str, rev: str
) -> None:
    """The first full record, and a delta in the middle, from the reset point behind them."""
    history = make(tmp_path, layout=layout)
    step = step_of(tmp_path, rev)
    smash_payload(tmp_path, step)
    done = mend(tmp_path)
    (healed,) = done.healed
    assert (healed.kind, healed.source) == ("object", "another path")
    assert healed.name == step.member.id.hex()
    assert [q.file for q in done.quarantined] == [p.name for p in quarantine(tmp_path)]
    history.check()


def test_a_damaged_payload_with_another_record(tmp_path: Path) -> None:
    """A reset point is stored beside its delta."""
    history = make(tmp_path)
    smash_payload(tmp_path, step_of(tmp_path, "HEAD", full=True))
    done = mend(tmp_path)
    assert [h.source for h in done.healed] == ["another record of the object"]
    history.check()


@pytest.mark.parametrize(("layout", "places"), [("chain", [2, 3, 4, 5]), ("skip:4", [2, 3])])
def test_what_nothing_leads_to_is_given_up_and_said(
    tmp_path: Path, layout: str, places: list[int]
) -> None:
    """With skip deltas 4 is coded against 0, so 4 and 5 are not lost with 2."""
    history = make(tmp_path, resets=(0,), layout=layout)
    damaged = step_of(tmp_path, "HEAD~3")
    smash_payload(tmp_path, damaged)
    done = mend(tmp_path)
    assert {p.kind for p in done.after.problems} == {"lost"}
    named = {v for p in done.after.problems for v in p.versions}
    assert named == {history.ids[i] for i in places}
    assert {t for p in done.after.problems for t in p.tensors} == {"model.safetensors: w"}
    files = quarantine(tmp_path)
    assert any(damaged.member.check in p.read_bytes() for p in files)
    assert lost(history) == places
    made = history.commit({"w": weights(9), "b": np.ones(3)})
    assert history.repo.checkout(made)["w"].tobytes() == weights(9).tobytes()
    # What is lost is not taken for stored: committed again, it is back for all.
    for step in places:
        commit(history, step)
    history.check()
    assert quarantine(tmp_path) == files


@pytest.mark.parametrize("where", ["header", "list of files"])
def test_what_no_copy_has_stays_lost_until_a_backup_gives_it_back(
    tmp_path: Path, where: str
) -> None:
    """A lost list of files takes the later ones with it, which are patches on it."""
    root = tmp_path / "a"
    history = make(root, resets=(0,))
    other = backup_of(root)
    step = step_of(root, "HEAD~3")
    (place,) = [m for m in step.header.members if m.kind == MANIFEST]
    at = step.header.body_at + place.at + 4 if where == "list of files" else 40
    smash(pack_of(root, step.pack), step.offset + at)
    done = mend(root)
    assert {p.kind for p in done.after.problems} == {"manifest"}
    assert set(done.after.lost) == set(history.ids[2:])
    assert lost(history) == [2, 3, 4, 5]
    done = mend(root, other)
    assert {h.source for h in done.healed} <= {"the other repository", "another path"}
    history.check()


def test_maintenance_says_the_same_before_a_repair_and_after_it(tmp_path: Path) -> None:
    """A damaged payload stops what has to move it; one that is lost only plans of recovery."""
    with Repository.init(tmp_path) as repo:
        for seed in range(4):
            repo.commit({"w": np.random.default_rng(seed).standard_normal(30_000)})
        lost = list(repo.log())[2].id
    smash_payload(tmp_path, step_of(tmp_path, "HEAD~2"))
    with Repository.open(tmp_path) as repo:
        repo.undo()
        repo.storage.gc(grace="0", dry_run=True)  # payloads are read when they are copied
        with pytest.raises(DamagedData) as caught:
            repo.storage.gc(grace="0")
        assert caught.value.hint == "run 'mvc fsck --repair' first"
        with pytest.raises(DamagedData) as caught:
            repo.storage.repack(interval=2)
        assert caught.value.hint == "run 'mvc fsck --repair' first"
        fresh_process()
        repo.storage.repair()
        repo.storage.gc(grace="0")
        with pytest.raises(DamagedData, match=f"version {lost.short} is damaged") as caught:
            repo.storage.repack(interval=2)
        assert caught.value.hint is not None
        assert "--from" in caught.value.hint and f"mvc forget {lost.short}" in caught.value.hint
        repo.storage.forget(lost.short)
        repo.storage.repack(interval=2)


def test_a_missing_pack(tmp_path: Path) -> None:
    history = make(tmp_path)
    pack_of(tmp_path, 1).unlink()
    done = mend(tmp_path)
    assert {p.kind for p in done.after.problems} == {"manifest"}
    assert lost(history) == list(range(LAST + 1))
    assert len(list(history.repo.log())) == LAST + 1


def test_the_first_bytes_of_a_pack(tmp_path: Path) -> None:
    history = make(tmp_path)
    smash(pack_of(tmp_path, 1), 0, 8)
    done = mend(tmp_path)
    assert [h.kind for h in done.healed] == ["pack"] and done.quarantined == ()
    history.check()


def test_groups(history: CheckedHistory) -> None:
    """One payload for a whole model: what another path gives is stored anew."""
    for step in range(4):
        state = {"w": weights(step), "v": weights(step + 7)[:5000]}
        history.commit(state, pipeline="vsol", reset_point=step in {0, 3})
    history.close()
    step = step_of(history.root, "HEAD~3")
    assert step.header.group
    smash_payload(history.root, step)
    done = mend(history.root)
    assert {h.source for h in done.healed} == {"another path"} and len(done.healed) == 2
    history.check()


def test_what_still_decodes_right_from_a_damaged_group_is_stored_again(
    history: CheckedHistory,
) -> None:
    """A reader gets the small tensor; a repair once put its only record into quarantine."""
    small, large = np.arange(7, dtype=np.float32), weights(1)
    history.commit({"a": small, "b": large}, pipeline="planes:all | zstd:1")
    history.commit({"a": small})
    history.close()
    step = step_of(history.root, "HEAD~1", key="b")
    assert step.header.group
    body = step.offset + step.header.body_at
    for at in range(body + step.header.body_size - 1, body, -997):
        smash(pack_of(history.root, step.pack), at, 1)
        damaged = lost(history)
        if damaged == [0]:
            break
        smash(pack_of(history.root, step.pack), at, 1)
    assert damaged == [0]
    done = mend(history.root)
    assert [each.source for each in done.healed] == ["its damaged record"]
    assert lost(history) == [0]


# -- other copies ----------------------------------------------------------------------


@pytest.mark.parametrize("what", ["payload", "header", "missing"])
def test_another_repository_heals(tmp_path: Path, what: str) -> None:
    root = tmp_path / "a"
    history = make(root, resets=(0,))
    other = backup_of(root)
    before = {p: p.read_bytes() for p in other.rglob("*") if p.is_file()}
    step = step_of(root, "HEAD~5")
    if what == "payload":
        smash_payload(root, step)
    elif what == "header":
        smash(pack_of(root, step.pack), step.offset + 40)
    else:
        pack_of(root, 1).unlink()
    done = mend(root, other)
    assert {h.source for h in done.healed} == {"the other repository"}
    assert {h.kind for h in done.healed} == ({"object"} if what == "payload" else
                                             {"object", "manifest"})  # fmt: skip
    history.check()
    assert {p: p.read_bytes() for p in other.rglob("*") if p.is_file()} == before


def test_an_older_backup_and_what_lies_in_quarantine_heal_together(tmp_path: Path) -> None:
    root = tmp_path / "a"
    history = make(root, resets=(0,), count=3)
    other = backup_of(root)
    for step in (3, 4, 5):
        commit(history, step)
    history.close()
    smash_payload(root, step_of(root, "HEAD~5"))
    problems = mend(root).after.problems
    assert len({v for p in problems for v in p.versions}) == 6
    done = mend(root, other)
    assert done.after.sound
    assert {h.source for h in done.healed} == {"the other repository", "another path"}
    history.check()


@pytest.mark.parametrize("changed", [False, True])
def test_a_file_of_the_working_folder_heals_unless_it_has_changed(
    history: CheckedHistory, changed: bool
) -> None:
    root = history.root
    write_model(root / "m.safetensors", layers=1, w=weights(0))
    (root / "notes.bin").write_bytes(bytes(range(256)) * 200)
    history.commit_files()
    history.close()
    for key in ("w", "layer0.weight"):
        smash_payload(root, step_of(root, "HEAD", key=key))
    if changed:
        write_model(root / "m.safetensors", seed=1, layers=1, w=weights(1))
    done = mend(root)
    assert {h.source for h in done.healed} == (set() if changed else {"the file m.safetensors"})
    assert len(done.after.problems) == (2 if changed else 0)
    if not changed:
        history.check()


# -- journal, format, index ------------------------------------------------------------


def entry_spans(root: Path) -> list[tuple[int, int]]:
    """(offset, bytes of one copy) of every entry."""
    with Repository.open(root) as repo:
        return [(r.offset, r.half) for r in repo.handle.store.snapshot.entries()]


def test_a_copy_of_any_entry(tmp_path: Path) -> None:
    history = make(tmp_path)
    journal = tmp_path / ".mvc" / "journal"
    sound = journal.read_bytes()
    data = bytearray(sound)  # the first copy of every second entry, the second of the others
    for i, (offset, half) in enumerate(entry_spans(tmp_path)):
        data[offset + half * (i % 2) + 20] ^= 255
    journal.write_bytes(data)
    done = mend(tmp_path)
    assert [h.kind for h in done.healed] == ["journal"] * (LAST + 2)
    assert {h.source for h in done.healed} == {"its other copy"}
    assert journal.read_bytes() == sound
    history.check()


@pytest.mark.parametrize("which", [0, 3, -1])
def test_an_entry_that_only_another_repository_has(tmp_path: Path, which: int) -> None:
    root = tmp_path / "a"
    history = make(root)
    other = backup_of(root)
    journal = root / ".mvc" / "journal"
    sound = journal.read_bytes()
    offset, half = entry_spans(root)[which]
    smash(journal, offset, half * 2)
    with pytest.raises((DamagedData, HistoryMissing)) as caught:
        mend(root)
    assert "mvc fsck --repair --from BACKUP" in str(caught.value.hint)
    assert journal.read_bytes() != sound
    done = mend(root, other)
    assert [h.source for h in done.healed] == ["the other repository"]
    assert journal.read_bytes() == sound
    history.check()


def test_a_journal_of_another_history_is_not_believed(tmp_path: Path) -> None:
    root, twin = tmp_path / "a", tmp_path / "b"
    make(root, count=3)
    shutil.copytree(root, twin)
    for folder, step in ((root, 3), (twin, 4)):
        with Repository.open(folder) as repo:
            repo.commit({"w": weights(step)})
            repo.commit({"w": weights(step + 1)})
    offset, half = entry_spans(root)[4]
    smash(root / ".mvc" / "journal", offset, half * 2)
    with pytest.raises(DamagedData, match="both copies") as caught:
        mend(root, twin)
    assert "a copy of this repository" in str(caught.value.hint)


@pytest.mark.parametrize("how", ["bit", "gone", "empty", "garbage"])
@pytest.mark.parametrize("plain", [True, False])
def test_the_format_file(tmp_path: Path, how: str, plain: bool) -> None:
    history = make(tmp_path)
    path = tmp_path / ".mvc" / "format"
    if not plain:
        with Repository.open(tmp_path) as repo:
            store = repo.handle.store
            gone = (StateMark(history.ids[0], "forgotten"),)
            store.publish(lambda: Entry("forget", store.clock.now_ns(), states=gone))
        smash_payload(tmp_path, step_of(tmp_path, "HEAD~3"))
        mend(tmp_path)
    sound = path.read_bytes()
    features = read_features(FileSystem(), tmp_path / ".mvc")
    assert features == frozenset()
    if how == "gone":
        path.unlink()
    else:
        path.write_bytes(
            {"bit": bytes([sound[0] ^ 4]) + sound[1:], "empty": b""}.get(how, b"x" * 9)
        )
    with pytest.raises(DamagedData):
        Repository.open(tmp_path)
    done = mend(tmp_path)
    assert [h.kind for h in done.healed] == ["format"]
    assert path.read_bytes() == sound


def test_a_newer_format_is_left_alone(tmp_path: Path) -> None:
    make(tmp_path, count=1)
    path = tmp_path / ".mvc" / "format"
    path.write_bytes(format_line(frozenset({"from-the-future"})))
    before = path.read_bytes()
    with pytest.raises(UnsupportedFormat):
        heal(tmp_path)
    assert path.read_bytes() == before


def test_forgotten_states_are_no_damage(tmp_path: Path) -> None:
    history = make(tmp_path, resets=(0,))
    smash_payload(tmp_path, step_of(tmp_path, "HEAD~3"))
    assert not mend(tmp_path).after.sound
    with Repository.open(tmp_path) as repo:
        store = repo.handle.store
        gone = tuple(StateMark(id_, "forgotten") for id_ in history.ids[2:])
        store.publish(lambda: Entry("forget", store.clock.now_ns(), states=gone))
        assert repo.storage.fsck(full=True).sound


def test_an_index_that_lies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from mvc.store.index import keys

    make(tmp_path)
    original = keys.entry_keys
    with Repository.open(tmp_path) as repo, monkeypatch.context() as patch:
        patch.setattr(keys, "entry_keys", lambda r: (k for k in original(r) if k[:1] != keys.MARK))
        repo.handle.store.snapshot.rebuild_index()
    done = mend(tmp_path)
    assert [h.kind for h in done.healed] == ["index"] and done.after.sound


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    make(tmp_path, count=1)
    with Repository.open(tmp_path) as repo:
        repo.handle.store.writable = False
        with pytest.raises(ReadOnly):
            repo.storage.repair()
