"""gc: what nothing leads to goes, everything else stays bit for bit, and the space comes back."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest

import mvc
from mvc.errors import DamagedData, ReadOnly, UnknownRevision, WrongUsage
from mvc.ids import CommitId
from mvc.maintenance.gc import grace_of
from mvc.maintenance.graph import read_records
from mvc.repo import refs
from mvc.repo.oplog import oplog
from mvc.repo.oplog.undo import undo
from mvc.store.packs.records import encode_header
from mvc.testing import FixedClock
from tests.histories import CheckedHistory
from tests.maintenance.traces import drift, traces

NOW = timedelta(0)
DAY = 86_400 * 10**9


@pytest.fixture
def history(tmp_path: Path, clock: FixedClock) -> CheckedHistory:
    return CheckedHistory(tmp_path / "r", clock=clock)


def line(history: CheckedHistory, count: int, seed: int = 0) -> list[CommitId]:
    w, made = drift(np.zeros((60, 50)), seed, 1), []
    for n in range(count):
        w = drift(w, 100 * seed + n)
        made.append(history.commit({"w": w, "b": w[0].copy()}))
    return made


def leave(history: CheckedHistory, to: CommitId) -> None:
    """The versions after ``to`` come to be on no branch."""
    history.repo.switch("side", create=True, start=str(to), force=True)
    refs.delete_branch(history.repo.handle.store, "main", force=True)


def size(history: CheckedHistory) -> int:
    folder = history.repo.handle.store.folder
    packs = sum(p.stat().st_size for p in (folder / "packs").iterdir())
    return packs + (folder / "journal").stat().st_size


def collected(history: CheckedHistory, ids: list[CommitId], *, files: bool = True) -> None:
    """Notes what is to be gone, commits included."""
    for id_ in ids:
        with pytest.raises(UnknownRevision):
            history.repo.checkout(id_)
    lost = {o for id_ in ids for o in history.objects[id_]}
    for id_ in ids:
        del history.objects[id_]
    lost -= {o for id_ in history.there for o in history.objects[id_]}
    assert traces(history, lost, files=files) == []


def test_space_comes_back(history: CheckedHistory, clock: FixedClock) -> None:
    ids = line(history, 10)
    leave(history, ids[3])
    before = size(history)
    done = history.repo.storage.gc()
    assert (done.commits, done.freed, size(history)) == ((), 0, before)  # within the grace
    clock.advance(15 * DAY)
    plan = history.repo.storage.gc(dry_run=True)
    assert size(history) == before
    done = history.repo.storage.gc()
    assert set(done.commits) == set(plan.commits) == set(ids[4:])
    assert done.freed == before - size(history) > 0.5 * before
    assert abs(plan.freed - done.freed) < 0.05 * before
    assert len(list((history.repo.handle.store.folder / "packs").iterdir())) == 1
    collected(history, ids[4:])
    history.check()
    again = history.repo.storage.gc(grace="0")
    assert (again.commits, again.objects, again.freed) == ((), 0, 0)
    line(history, 3, 7)
    history.check()


def test_a_pack_that_a_repair_emptied_goes(history: CheckedHistory) -> None:
    line(history, 1)
    pack = history.repo.handle.store.folder / "packs" / "00000001.pack"
    data = bytearray(pack.read_bytes())
    data[len(data) // 2] ^= 1
    pack.write_bytes(data)
    history.repo.storage.repair()
    assert pack.exists()
    done = history.repo.storage.gc()
    assert (done.packs, done.freed > 0.9 * len(data), pack.exists()) == (1, True, False)
    assert history.repo.storage.gc().packs == 0


def test_what_a_training_commits_meanwhile_is_not_counted(history: CheckedHistory) -> None:
    line(history, 2)
    waiting = [7]

    def meanwhile(*_: object) -> None:
        if waiting:
            line(history, 1, waiting.pop())

    before = size(history)
    done = history.repo.storage.gc(progress=meanwhile)
    assert size(history) > before
    assert (done.packs, done.freed, waiting) == (0, 0, [])


def test_deployments_hold_versions(history: CheckedHistory) -> None:
    ids = line(history, 6)
    history.repo.deploy(ids[3], "prod")
    history.repo.deploy(ids[4], "prod")
    history.repo.retract(ids[4], "prod")  # retracted or not, it is evidence
    leave(history, ids[1])
    assert set(history.repo.storage.gc(grace="0").commits) == {ids[5]}
    collected(history, ids[5:])
    history.check()
    assert [d.commit for d in history.repo.deployments()] == ids[3:5]


def test_within_the_grace_undo_works(history: CheckedHistory, clock: FixedClock) -> None:
    ids = line(history, 4)
    undo(history.repo.handle.store, history.repo.handle.config)
    clock.advance(13 * DAY)
    history.repo.storage.gc()
    history.check()
    undo(
        history.repo.handle.store,
        history.repo.handle.config,
        next(o for o in oplog.oplog(history.repo.handle.store)).number,
    )
    assert refs.head(history.repo.handle.store.fresh()).commit == ids[3]
    undo(history.repo.handle.store, history.repo.handle.config)
    clock.advance(15 * DAY)
    assert history.repo.storage.gc().commits == (ids[3],)
    collected(history, ids[3:])


def test_a_log_that_was_begun_before_goes_on(history: CheckedHistory, clock: FixedClock) -> None:
    """Its versions are elsewhere in the journal by then."""
    first = line(history, 1)[0]
    line(history, 30)
    leave(history, first)
    clock.advance(10**9)
    since, kept = clock.time_ns, line(history, 6, seed=50)
    found = history.repo.log(options=mvc.LogOptions(since=since))
    assert found[0].id == kept[-1]
    before = size(history)
    history.repo.storage.gc(grace="0")
    assert size(history) < before
    assert [each.id for each in found] == kept[::-1]


def test_a_plan_changes_nothing(history: CheckedHistory) -> None:
    ids = line(history, 5)
    leave(history, ids[0])
    files = {p: p.read_bytes() for p in history.repo.handle.store.folder.rglob("*") if p.is_file()}
    plan = history.repo.storage.gc(grace="0", dry_run=True)
    assert set(plan.commits) == set(ids[1:])
    assert files == {p: p.read_bytes() for p in files}
    told: list[tuple[int, int, str]] = []
    history.repo.storage.gc(grace="0", progress=lambda *a: told.append(a))
    assert {what for _, _, what in told} == {"versions", "operations"}
    assert all(0 <= done <= total for done, total, _ in told)


def test_damage_is_refused(history: CheckedHistory) -> None:
    ids = line(history, 3)
    leave(history, ids[0])
    (record,) = read_records(history.repo.handle.store.snapshot).records_of(1)
    (pack,) = (history.repo.handle.store.folder / "packs").iterdir()
    history.repo.close()
    data = bytearray(pack.read_bytes())
    data[record.offset + 20] ^= 1
    pack.write_bytes(bytes(data))
    with mvc.Repository.open(history.repo.root) as repo:
        with pytest.raises(DamagedData) as caught:
            repo.storage.gc(grace="0")
        assert caught.value.hint == "run 'mvc fsck --repair' first"
    assert pack.read_bytes() == bytes(data)


def test_a_folder_that_cannot_be_written(history: CheckedHistory) -> None:
    line(history, 1)
    history.repo.handle.store.writable = False
    with pytest.raises(ReadOnly):
        history.repo.storage.gc(grace="0")
    assert history.repo.storage.gc(grace="0", dry_run=True).freed == 0


def test_leftovers_are_swept(history: CheckedHistory) -> None:
    """A pack and a journal that an interrupted run left behind."""
    line(history, 1)
    folder = history.repo.handle.store.folder
    names = {p.name for p in (folder / "packs").iterdir()}
    (folder / "packs" / "00000099.pack").write_bytes(bytes(500))
    (folder / ".mvc-tmp-journal-1").write_bytes(bytes(10))
    assert history.repo.storage.gc(grace="0").freed == 500
    assert {p.name for p in (folder / "packs").iterdir()} == names
    assert not (folder / ".mvc-tmp-journal-1").exists()


def test_another_process_goes_on(history: CheckedHistory) -> None:
    """One that was open before looks again where it does not find what it knew."""
    ids = line(history, 6)
    reader = mvc.Repository.open(history.repo.root)
    w = reader.checkout(ids[2])["w"]
    leave(history, ids[2])
    history.repo.storage.gc(grace="0")
    assert reader.checkout(ids[2])["w"].tobytes() == w.tobytes()
    made = reader.commit({"w": w + 1})
    assert history.repo.checkout(made.id)["w"].tobytes() == (w + 1).tobytes()
    collected(history, ids[3:])
    history.check()


def test_commits_beside_it_are_all_kept(history: CheckedHistory) -> None:
    """They build on versions that are being collected, and hold tensors that only those have."""
    ids = line(history, 8)
    leave(history, ids[0])
    old = [history.states[id_] for id_ in ids[1:]]
    made: dict[CommitId, dict[str, np.ndarray]] = {}
    failures: list[BaseException] = []

    def work() -> None:
        try:
            with mvc.Repository.open(history.repo.root) as repo:
                for n in range(12):
                    state = {"w": old[n % 7]["w"], "n": np.full(4, n, np.float32)}
                    made[repo.commit(state).id] = state
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    rounds = 0
    while thread.is_alive():
        history.repo.storage.gc(grace="0")
        rounds += 1
    thread.join()
    assert failures == [] and rounds
    history.repo.storage.gc(grace="0")
    with mvc.Repository.open(history.repo.root) as repo:
        for id_, state in made.items():
            assert repo.checkout(id_)["w"].tobytes() == state["w"].tobytes()
        assert repo.storage.fsck(full=True).problems == ()
        assert len(made) == 12


def test_a_commit_while_it_runs_keeps_its_bytes(history: CheckedHistory) -> None:
    """It ends a pack that stays: the next one must not begin where the plan saw the end."""
    ids = line(history, 3)
    big = np.random.default_rng(3).standard_normal(100_000).astype(np.float32)
    leave(history, history.commit({"big": big}))
    end = history.commit({"big": big, "n": np.arange(9)})
    history.repo.switch("other", create=True, start=str(ids[2]), force=True)
    refs.delete_branch(history.repo.handle.store, "side", force=True)
    history.repo.tag("big", str(end) + "~")
    other = mvc.Repository.open(history.repo.root)
    made: list[tuple[CommitId, np.ndarray]] = []

    def commit(done: int, total: int, what: str) -> None:
        if what == "operations" and done == total and not made:
            new = np.full(40, 7, np.float32)
            made.append((other.commit({"new": new}).id, new))

    assert history.repo.storage.gc(grace="0", progress=commit).commits == (end,)
    collected(history, [end], files=False)  # for so little no pack is written anew
    later = history.commit({"later": np.full(50, 8, np.float32)})
    assert later in history.there
    history.check()
    ((id_, new),) = made
    assert history.repo.checkout(id_)["new"].tobytes() == new.tobytes()


@pytest.mark.parametrize("filled", [False, True])
def test_a_pack_that_another_process_took_over_is_left_alone(
    history: CheckedHistory, monkeypatch: pytest.MonkeyPatch, filled: bool
) -> None:
    """Between making a new pack and locking it; ``filled``: published and let go of as well."""
    line(history, 1)
    store = history.repo.handle.store
    lock = store.fs.lock
    other = mvc.Repository.open(history.root)
    taken: list[str] = []

    def late(path: Path, **options):
        if path.suffix != ".pack" or taken:
            return lock(path, **options)
        taken.append(path.name)
        if not filled:
            return None
        with lock(store.folder / "packs" / "00000001.pack"):
            other.commit({"w": np.ones(30)})  # so it goes to the new one
        return lock(path, **options)

    monkeypatch.setattr(store.fs, "lock", late)
    with store.pack_writer(fresh=True) as packs:
        packs.append(encode_header([], group=False, body_size=4), [b"body"])
        assert taken == ["00000002.pack"]
        assert packs.created == [3]


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("0", 0), ("0s", 0), ("14d", 14 * 86_400), ("1h30m", 5400), (None, 864_000)],
)
def test_grace(history: CheckedHistory, text: str | None, seconds: float) -> None:
    history.repo.handle.config.values["gc.grace_days"] = (10.0, "flag")
    assert grace_of(history.repo.handle.config, text).total_seconds() == seconds


@pytest.mark.parametrize("text", ["", "x", "-1d", "99999999 weeks", "5"])
def test_bad_grace(history: CheckedHistory, text: str) -> None:
    with pytest.raises(WrongUsage):
        grace_of(history.repo.handle.config, text)
    with pytest.raises(WrongUsage):
        grace_of(history.repo.handle.config, timedelta(days=-1))


def test_behind_an_entry_whose_second_copy_was_cut_off(tmp_path: Path) -> None:
    """Maintenance begins before the entry is completed."""
    with mvc.Repository.init(tmp_path) as repo:
        for i in range(3):
            repo.commit({"w": np.full(100, i, np.float32)})
        repo.undo()
    journal = tmp_path / ".mvc" / "journal"
    journal.write_bytes(journal.read_bytes()[:-40])
    with mvc.Repository.open(tmp_path) as repo:
        assert repo.storage.gc(grace="0").commits
        assert repo.storage.fsck(full=True).sound
        assert repo.checkout("HEAD")["w"][0] == 1


def test_only_folders_of_replays_are_left_over(history: CheckedHistory, tmp_path: Path) -> None:
    """A link to elsewhere, and other names, are not touched: a repository may come from others."""
    line(history, 1)
    folder = history.repo.handle.store.folder / "retraining"
    victim = tmp_path / "victim"
    (victim / ("0" * 16)).mkdir(parents=True)
    (victim / "photos").mkdir()
    folder.symlink_to(victim)
    history.repo.storage.gc(grace="0")
    with pytest.raises(DamagedData, match="is not a folder"), history.repo.storage.work_folder():
        pass
    assert sorted(p.name for p in victim.iterdir()) == ["0" * 16, "photos"]
    folder.unlink()
    for name in ("live", "0" * 16, "1" * 16):
        (folder / name).mkdir(parents=True)
    (folder / ".lock").write_text("")
    with history.repo.handle.store.fs.lock(folder / ("1" * 16 + ".lock")):
        history.repo.storage.gc(grace="0")
        assert {"live", "1" * 16} <= {p.name for p in folder.iterdir()}
        assert not (folder / ("0" * 16)).exists()


# -- a record of its own, where others look for it ----------------------------------------


def nearly(step: int) -> dict[str, np.ndarray]:
    """Differs from the others in a few elements: a delta is small whatever it starts from."""
    array = np.random.default_rng(1).standard_normal((40, 30)).astype(np.float32)
    array[step] += 1
    return {"w": array}


def chain_before_a_reset_point(history: CheckedHistory) -> None:
    """The first version has the only full record but for that of the last one."""
    for step in range(3):
        history.commit(nearly(step))
    history.commit(nearly(3), reset_point=True)


def same_tensor_again_at_a_reset_point(history: CheckedHistory) -> None:
    """What the third version builds on is stored in full, but later."""
    for step in range(3):
        history.commit(nearly(step))
    history.commit(nearly(1), reset_point=True)


def siblings(history: CheckedHistory) -> None:
    """Two versions build on the first one; the later one is in full as well."""
    first = history.commit(nearly(0))
    history.commit(nearly(1))
    history.repo.switch("side", create=True, start=str(first), force=True)
    history.commit(nearly(2), reset_point=True)


@pytest.mark.parametrize(
    "make", [chain_before_a_reset_point, same_tensor_again_at_a_reset_point, siblings]
)
def test_what_builds_on_a_forgotten_state_is_found(
    make: Callable[[CheckedHistory], None], history: CheckedHistory
) -> None:
    """A delta leads to its base only if an operation before it, or the same one, holds a record
    of the base itself: to be led to from later versions alone is not enough.
    """
    make(history)
    history.forget(history.ids[0])
    for _ in range(2):
        history.repo.storage.gc(grace="0")
        history.check()
    history.repo.storage.rebuild_index()
    history.check()
