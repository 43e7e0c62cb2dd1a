"""fsck --repair: every kind of damage, with and without something that heals it."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from mvc.api.repository import Repository
from mvc.errors import DamagedData, HistoryMissing, MvcError, ReadOnly, UnsupportedFormat
from mvc.ids import CommitId
from mvc.io.files import FileSystem
from mvc.maintenance.repair.journal import before_opening
from mvc.maintenance.repair.repair import folder_of, repair
from mvc.maintenance.report import Repaired
from mvc.repo.config import set_value
from mvc.repo.lookup import manifests
from mvc.store.format import format_line, read_features
from mvc.store.graph.search import PathStep
from mvc.store.journal.entries import Entry, Forgotten
from mvc.store.packs.records import MANIFEST
from mvc.testing import fresh_process
from tests.damage.subject import file_of
from tests.repo.working import write_model

LAST = 5
MODEL = "model.safetensors"
Held = dict[CommitId, dict[str, bytes]]


def weights(step: int) -> np.ndarray:
    start = np.random.default_rng(7).standard_normal(30_000).astype(np.float32)
    return start + np.float32(1e-3) * np.float32(step)


def make(
    root: Path, resets: tuple[int, ...] = (0, LAST), count: int = LAST + 1, layout: str = "chain"
) -> Held:
    """Versions of one tensor of 120 kB, deltas in a layout, full where ``resets`` says."""
    Repository.init(root).close()
    set_value(FileSystem(), root / ".mvc/config.yaml", "store.layout", layout)
    with Repository.open(root) as repo:
        for step in range(count):
            state = {"w": weights(step), "b": np.full(10, step)}
            repo.commit(state, message=f"step {step}", reset_point=step in resets)
        return held(repo)


def held(repo: Repository) -> Held:
    """The files of every version that comes back."""
    found: Held = {}
    for recorded in repo.context.store.snapshot.entries():
        for commit in recorded.entry.commits:
            fresh_process()
            try:
                entries = manifests.of_commit(repo.context, commit.id).entries
                found[commit.id] = {entry.path: file_of(repo, entry) for entry in entries}
            except MvcError:
                continue
    return found


def step_of(root: Path, rev: str, *, full: bool | None = None, key: str = "w") -> PathStep:
    """A stored coding of a tensor; ``full`` or a delta if it matters."""
    with Repository.open(root) as repo:
        fresh_process()
        entry = repo.manifest(rev).entries[0]
        content = next(entry.contents[t.content] for t in entry.tensors if t.key == key)
        steps = repo.context.store.graph.codings(content.id)
        return next(s for s in steps if full is None or full == (not s.member.base))


def pack_of(root: Path, number: int) -> Path:
    return root / ".mvc" / "packs" / f"{number:08d}.pack"


def smash(path: Path, at: int, length: int = 9) -> None:
    """Turns bytes over: more than a checksum could set right."""
    data = bytearray(path.read_bytes())
    for i in range(at, min(at + length, len(data))):
        data[i] ^= 0x5A
    path.write_bytes(data)


def smash_payload(root: Path, step: PathStep) -> None:
    at = step.offset + step.header.body_at + step.member.at
    smash(pack_of(root, step.pack), at + step.member.stored // 2)


def mend(root: Path, other: Path | None = None, *, full: bool = True) -> Repaired:
    """A whole repair, as the command does it; then once more, which must find nothing."""
    fs = FileSystem()
    source = None if other is None else folder_of(fs, other)
    healed = before_opening(fs, root / ".mvc", source)
    fresh_process()
    with Repository.open(root) as repo:
        done = repair(repo.context, full=full, other=source)
    assert before_opening(fs, root / ".mvc", source) == []
    fresh_process()
    with Repository.open(root) as repo:
        again = repair(repo.context, full=full, other=source)
    assert (again.healed, again.quarantined) == ((), ())
    assert again.after.problems == done.after.problems
    return Repaired((*healed, *done.healed), done.quarantined, done.freed, done.after)


def all_back(root: Path, expected: Held) -> None:
    fresh_process()
    with Repository.open(root) as repo:
        assert repo.storage.fsck(full=True).problems == ()
        found = held(repo)
    assert {id_: found.get(id_) for id_ in expected} == expected


def copy_of(root: Path, name: str) -> Path:
    target = root.parent / name
    shutil.copytree(root / ".mvc", target, ignore=shutil.ignore_patterns("index.lmdb"))
    return target


def quarantine(root: Path) -> list[Path]:
    return sorted((root / ".mvc" / "quarantine").glob("*"))


# -- payloads and headers --------------------------------------------------------------


def test_nothing_to_repair(tmp_path: Path) -> None:
    expected = make(tmp_path)
    before = {p: p.read_bytes() for p in (tmp_path / ".mvc").rglob("*.pack")}
    done = mend(tmp_path)
    assert (done.healed, done.quarantined, done.after.sound) == ((), (), True)
    assert {p: p.read_bytes() for p in before} == before
    all_back(tmp_path, expected)


@pytest.mark.parametrize(
    ("layout", "rev"),
    [("chain", "HEAD~5"), ("chain", "HEAD~3"), ("skip:4", "HEAD~5"), ("skip:4", "HEAD~1")],
)
def test_a_damaged_payload_that_another_path_goes_around(
    tmp_path: Path, layout: str, rev: str
) -> None:
    """The first full record, and a delta in the middle, from the reset point behind them."""
    expected = make(tmp_path, layout=layout)
    step = step_of(tmp_path, rev)
    smash_payload(tmp_path, step)
    done = mend(tmp_path)
    (healed,) = done.healed
    assert (healed.kind, healed.source) == ("object", "another path")
    assert healed.name == step.member.id.hex()
    assert [q.file for q in done.quarantined] == [p.name for p in quarantine(tmp_path)]
    all_back(tmp_path, expected)


def test_a_damaged_payload_with_another_record(tmp_path: Path) -> None:
    """A reset point is stored beside its delta."""
    expected = make(tmp_path)
    smash_payload(tmp_path, step_of(tmp_path, "HEAD", full=True))
    done = mend(tmp_path)
    assert [h.source for h in done.healed] == ["another record of it"]
    all_back(tmp_path, expected)


@pytest.mark.parametrize(("layout", "lost"), [("chain", {2, 3, 4, 5}), ("skip:4", {2, 3})])
def test_what_nothing_leads_to_is_given_up_and_said(
    tmp_path: Path, layout: str, lost: set[int]
) -> None:
    """With skip deltas 4 is coded against 0, so 4 and 5 are not lost with 2."""
    expected = make(tmp_path, resets=(0,), layout=layout)
    ids = list(expected)
    damaged = step_of(tmp_path, "HEAD~3")
    smash_payload(tmp_path, damaged)
    done = mend(tmp_path)
    assert {p.kind for p in done.after.problems} == {"lost"}
    assert {v for p in done.after.problems for v in p.versions} == {ids[i] for i in lost}
    assert {t for p in done.after.problems for t in p.tensors} == {f"{MODEL}: w"}
    files = quarantine(tmp_path)
    assert any(damaged.member.check in p.read_bytes() for p in files)
    with Repository.open(tmp_path) as repo:
        assert set(held(repo)) == set(ids) - {ids[i] for i in lost}
        made = repo.commit({"w": weights(9), "b": np.ones(3)})
        assert repo.checkout(made.id)["w"].tobytes() == weights(9).tobytes()
        # What is lost is not taken for stored: committed again, it is back for all.
        for step in lost:
            repo.commit({"w": weights(step), "b": np.full(10, step)})
        assert repo.storage.fsck(full=True).sound
    all_back(tmp_path, expected)
    assert quarantine(tmp_path) == files


@pytest.mark.parametrize("where", ["header", "list of files"])
def test_what_no_copy_has_stays_lost_until_a_backup_gives_it_back(
    tmp_path: Path, where: str
) -> None:
    """A lost list of files takes the later ones with it, which are patches on it."""
    root = tmp_path / "a"
    expected = make(root, resets=(0,))
    other = copy_of(root, "backup")
    step = step_of(root, "HEAD~3")
    (place,) = [m for m in step.header.members if m.kind == MANIFEST]
    at = step.header.body_at + place.at + 4 if where == "list of files" else 40
    smash(pack_of(root, step.pack), step.offset + at)
    done = mend(root)
    ids = list(expected)
    assert {p.kind for p in done.after.problems} == {"manifest"}
    assert set(done.after.lost) == set(ids[2:])
    with Repository.open(root) as repo:
        assert set(held(repo)) == set(ids[:2])
    done = mend(root, other)
    assert {h.source for h in done.healed} <= {"the other repository", "another path"}
    all_back(root, expected)


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
        repair(repo.context)
        repo.storage.gc(grace="0")
        with pytest.raises(DamagedData, match=f"version {lost.short} is damaged") as caught:
            repo.storage.repack(interval=2)
        assert caught.value.hint is not None
        assert "--from" in caught.value.hint and f"mvc forget {lost.short}" in caught.value.hint
        repo.storage.forget(lost.short)
        repo.storage.repack(interval=2)


def test_a_missing_pack(tmp_path: Path) -> None:
    make(tmp_path)
    pack_of(tmp_path, 1).unlink()
    done = mend(tmp_path)
    assert {p.kind for p in done.after.problems} == {"manifest"}
    with Repository.open(tmp_path) as repo:
        assert held(repo) == {} and len(list(repo.log())) == LAST + 1


def test_the_first_bytes_of_a_pack(tmp_path: Path) -> None:
    expected = make(tmp_path)
    smash(pack_of(tmp_path, 1), 0, 8)
    done = mend(tmp_path)
    assert [h.kind for h in done.healed] == ["pack"] and done.quarantined == ()
    all_back(tmp_path, expected)


def test_groups(tmp_path: Path) -> None:
    """One payload for a whole model: what another path gives is stored anew."""
    with Repository.init(tmp_path) as repo:
        for step in range(4):
            state = {"w": weights(step), "v": weights(step + 7)[:5000]}
            repo.commit(state, pipeline="vsol", reset_point=step in {0, 3})
        expected = held(repo)
    step = step_of(tmp_path, "HEAD~3")
    assert step.header.group
    smash_payload(tmp_path, step)
    done = mend(tmp_path)
    assert {h.source for h in done.healed} == {"another path"} and len(done.healed) == 2
    all_back(tmp_path, expected)


# -- other copies ----------------------------------------------------------------------


def test_what_still_decodes_right_from_a_damaged_group_is_stored_again(tmp_path: Path) -> None:
    """A reader gets the small tensor; a repair once put its only record into quarantine."""
    small, large = np.arange(7, dtype=np.float32), weights(1)
    with Repository.init(tmp_path) as repo:
        repo.commit({"a": small, "b": large}, pipeline="planes:all | zstd:1")
        kept = repo.commit({"a": small}).id
        expected = held(repo)[kept]
    step = step_of(tmp_path, "HEAD~1", key="b")
    assert step.header.group
    body = step.offset + step.header.body_at
    for at in range(body + step.header.body_size - 1, body, -997):
        smash(pack_of(tmp_path, step.pack), at, 1)
        fresh_process()
        with Repository.open(tmp_path) as repo:
            found = held(repo)
        if list(found) == [kept]:
            break
        smash(pack_of(tmp_path, step.pack), at, 1)
    assert list(found) == [kept]
    done = mend(tmp_path)
    assert [each.source for each in done.healed] == ["its damaged record"]
    fresh_process()
    with Repository.open(tmp_path) as repo:
        assert held(repo) == {kept: expected}


@pytest.mark.parametrize("what", ["payload", "header", "missing"])
def test_another_repository_heals(tmp_path: Path, what: str) -> None:
    root = tmp_path / "a"
    expected = make(root, resets=(0,))
    other = copy_of(root, "backup")
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
    all_back(root, expected)
    assert {p: p.read_bytes() for p in other.rglob("*") if p.is_file()} == before


def test_an_older_backup_and_what_lies_in_quarantine_heal_together(tmp_path: Path) -> None:
    root = tmp_path / "a"
    make(root, resets=(0,), count=3)
    other = copy_of(root, "backup")
    with Repository.open(root) as repo:
        for step in (3, 4, 5):
            repo.commit({"w": weights(step), "b": np.full(10, step)})
        expected = held(repo)
    smash_payload(root, step_of(root, "HEAD~5"))
    lost = mend(root).after.problems
    assert len({v for p in lost for v in p.versions}) == 6
    done = mend(root, other)
    assert done.after.sound
    assert {h.source for h in done.healed} == {"the other repository", "another path"}
    all_back(root, expected)


def test_a_file_of_the_working_folder_heals(tmp_path: Path) -> None:
    with Repository.init(tmp_path) as repo:
        write_model(tmp_path / "m.safetensors", layers=1, w=weights(0))
        (tmp_path / "notes.bin").write_bytes(bytes(range(256)) * 200)
        repo.commit(tmp_path)
        expected = held(repo)
    for key in ("w", "layer0.weight"):
        smash_payload(tmp_path, step_of(tmp_path, "HEAD", key=key))
    done = mend(tmp_path)
    assert {h.source for h in done.healed} == {"the file m.safetensors"}
    all_back(tmp_path, expected)


def test_a_file_that_has_changed_heals_nothing(tmp_path: Path) -> None:
    with Repository.init(tmp_path) as repo:
        write_model(tmp_path / "m.safetensors", layers=1, w=weights(0))
        repo.commit(tmp_path)
    write_model(tmp_path / "m.safetensors", layers=1, w=weights(1))
    smash_payload(tmp_path, step_of(tmp_path, "HEAD"))
    done = mend(tmp_path)
    assert not done.healed and len(done.after.problems) == 1


# -- journal, format, index ------------------------------------------------------------


def entry_spans(root: Path) -> list[tuple[int, int]]:
    """(offset, bytes of one copy) of every entry."""
    with Repository.open(root) as repo:
        return [(r.offset, r.half) for r in repo.context.store.snapshot.entries()]


def test_a_copy_of_any_entry(tmp_path: Path) -> None:
    expected = make(tmp_path)
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
    all_back(tmp_path, expected)


@pytest.mark.parametrize("which", [0, 3, -1])
def test_an_entry_that_only_another_repository_has(tmp_path: Path, which: int) -> None:
    root = tmp_path / "a"
    expected = make(root)
    other = copy_of(root, "backup")
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
    all_back(root, expected)


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
    assert "a copy of this very journal" in str(caught.value.hint)


@pytest.mark.parametrize("how", ["bit", "gone", "empty", "garbage"])
@pytest.mark.parametrize("plain", [True, False])
def test_the_format_file(tmp_path: Path, how: str, plain: bool) -> None:
    expected = make(tmp_path)
    path = tmp_path / ".mvc" / "format"
    if not plain:
        with Repository.open(tmp_path) as repo:
            store, head = repo.context.store, next(iter(expected))
            gone = (Forgotten(head, False),)
            store.publish(lambda: Entry("forget", store.clock.now_ns(), forgotten=gone))
        smash_payload(tmp_path, step_of(tmp_path, "HEAD~3"))
        mend(tmp_path)
    sound = path.read_bytes()
    features = read_features(FileSystem(), tmp_path / ".mvc")
    assert features == (frozenset() if plain else {"entry-2", "compacted"})
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
        before_opening(FileSystem(), tmp_path / ".mvc")
    assert path.read_bytes() == before


def test_forgotten_states_are_no_damage(tmp_path: Path) -> None:
    expected = make(tmp_path, resets=(0,))
    lost = list(expected)[2:]
    smash_payload(tmp_path, step_of(tmp_path, "HEAD~3"))
    assert not mend(tmp_path).after.sound
    with Repository.open(tmp_path) as repo:
        store = repo.context.store
        gone = tuple(Forgotten(id_, True) for id_ in lost)
        store.publish(lambda: Entry("forget", store.clock.now_ns(), forgotten=gone))
        assert repo.storage.fsck(full=True).sound


def test_an_index_that_lies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from mvc.store.index import keys

    make(tmp_path)
    original = keys.entry_keys
    with Repository.open(tmp_path) as repo, monkeypatch.context() as patch:
        patch.setattr(keys, "entry_keys", lambda r: (k for k in original(r) if k[:1] != keys.MARK))
        repo.context.store.snapshot.rebuild_index()
    done = mend(tmp_path)
    assert [h.kind for h in done.healed] == ["index"] and done.after.sound


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    make(tmp_path, count=1)
    with Repository.open(tmp_path) as repo:
        repo.context.store.writable = False
        with pytest.raises(ReadOnly):
            repair(repo.context)
