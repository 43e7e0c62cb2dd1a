"""gc: what nothing leads to goes, everything else stays bit for bit, and the space comes back."""

from __future__ import annotations

import threading
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import mvc
from mvc.errors import DamagedData, InvalidTime, ReadOnly, UnknownRevision
from mvc.ids import CommitId
from mvc.maintenance import gc
from mvc.maintenance.gc import grace_of
from mvc.maintenance.inventory import inventory
from mvc.maintenance.leftovers import work_folder
from mvc.repo import refs
from mvc.repo.oplog import oplog
from mvc.repo.oplog.undo import undo
from mvc.testing import FixedClock
from tests.repo.giving_up import Kept, traces

NOW = timedelta(0)
DAY = 86_400 * 10**9


def drift(weights: np.ndarray, seed: int, step: float = 1e-3) -> np.ndarray:
    noise = np.random.default_rng(seed).standard_normal(weights.shape)
    return (weights + noise * step).astype(np.float32)


@pytest.fixture
def clock() -> FixedClock:
    return FixedClock(step_ns=1000)


@pytest.fixture
def kept(tmp_path: Path, clock: FixedClock) -> Kept:
    return Kept(tmp_path / "r", clock=clock)


def line(kept: Kept, count: int, seed: int = 0) -> list[CommitId]:
    w, made = drift(np.zeros((60, 50)), seed, 1), []
    for n in range(count):
        w = drift(w, 100 * seed + n)
        made.append(kept.state({"w": w, "b": w[0].copy()}))
    return made


def leave(kept: Kept, to: CommitId) -> None:
    """The versions after ``to`` come to be on no branch."""
    kept.repo.switch("side", create=True, start=str(to), force=True)
    refs.delete_branch(kept.context, "main", force=True)


def size(kept: Kept) -> int:
    folder = kept.context.store.folder
    packs = sum(p.stat().st_size for p in (folder / "packs").iterdir())
    return packs + (folder / "journal").stat().st_size


def collected(kept: Kept, ids: list[CommitId], *, files: bool = True) -> None:
    """Notes what is to be gone, commits included."""
    for id_ in ids:
        with pytest.raises(UnknownRevision):
            kept.repo.checkout(id_)
    lost = {o for id_ in ids for o in kept.objects[id_]}
    for id_ in ids:
        del kept.objects[id_]
    lost -= {o for id_ in kept.there for o in kept.objects[id_]}
    assert traces(kept.context, lost, files=files) == []


def test_space_comes_back(kept: Kept, clock: FixedClock, tmp_path: Path) -> None:
    ids = line(kept, 10)
    leave(kept, ids[3])
    before = size(kept)
    done = gc.collect(kept.context)
    assert (done.commits, done.freed, size(kept)) == ((), 0, before)  # within the grace
    clock.advance(15 * DAY)
    plan = gc.plan_collection(kept.context)
    assert size(kept) == before
    done = gc.collect(kept.context)
    assert set(done.commits) == set(plan.commits) == set(ids[4:])
    assert done.freed == before - size(kept) > 0.5 * before
    assert abs(plan.freed - done.freed) < 0.05 * before
    assert len(list((kept.context.store.folder / "packs").iterdir())) == 1
    collected(kept, ids[4:])
    kept.check(tmp_path / "s")
    again = kept.repo.storage.gc(grace="0")
    assert (again.commits, again.objects, again.freed) == ((), 0, 0)
    line(kept, 3, 7)
    kept.check(tmp_path / "t")


def test_deployments_hold_versions(kept: Kept, tmp_path: Path) -> None:
    ids = line(kept, 6)
    kept.repo.deploy(ids[3], "prod")
    kept.repo.deploy(ids[4], "prod")
    kept.repo.retract(ids[4], "prod")  # retracted or not, it is evidence
    leave(kept, ids[1])
    assert set(kept.repo.storage.gc(grace="0").commits) == {ids[5]}
    collected(kept, ids[5:])
    kept.check(tmp_path / "s")
    assert [d.commit for d in kept.repo.deployments()] == ids[3:5]


def test_within_the_grace_undo_works(kept: Kept, clock: FixedClock, tmp_path: Path) -> None:
    ids = line(kept, 4)
    undo(kept.context)
    clock.advance(13 * DAY)
    gc.collect(kept.context)
    kept.check(tmp_path / "s")
    undo(kept.context, next(o for o in oplog.oplog(kept.context)).number)
    assert refs.head(kept.context).commit == ids[3]
    undo(kept.context)
    clock.advance(15 * DAY)
    assert gc.collect(kept.context).commits == (ids[3],)
    collected(kept, ids[3:])


def test_a_plan_changes_nothing(kept: Kept, tmp_path: Path) -> None:
    ids = line(kept, 5)
    leave(kept, ids[0])
    files = {p: p.read_bytes() for p in kept.context.store.folder.rglob("*") if p.is_file()}
    plan = gc.plan_collection(kept.context, grace=NOW)
    assert set(plan.commits) == set(ids[1:])
    assert files == {p: p.read_bytes() for p in files}
    told: list[tuple[int, int, str]] = []
    gc.collect(kept.context, grace=NOW, progress=lambda *a: told.append(a))
    assert {what for _, _, what in told} == {"versions", "operations"}
    assert all(0 <= done <= total for done, total, _ in told)


def test_damage_is_refused(kept: Kept) -> None:
    ids = line(kept, 3)
    leave(kept, ids[0])
    (record,) = inventory(kept.context.store.snapshot).records[1]
    (pack,) = (kept.context.store.folder / "packs").iterdir()
    kept.repo.close()
    data = bytearray(pack.read_bytes())
    data[record.offset + 20] ^= 1
    pack.write_bytes(bytes(data))
    with mvc.Repository.open(kept.repo.root) as repo:
        with pytest.raises(DamagedData) as caught:
            repo.storage.gc(grace="0")
        assert caught.value.hint == "run 'mvc fsck --repair' first"
    assert pack.read_bytes() == bytes(data)


def test_a_folder_that_cannot_be_written(kept: Kept) -> None:
    line(kept, 1)
    kept.context.store.writable = False
    with pytest.raises(ReadOnly):
        kept.repo.storage.gc(grace="0")
    assert gc.plan_collection(kept.context, grace=NOW).freed == 0


def test_leftovers_are_swept(kept: Kept) -> None:
    """A pack and a journal that an interrupted run left behind."""
    line(kept, 1)
    folder = kept.context.store.folder
    names = {p.name for p in (folder / "packs").iterdir()}
    (folder / "packs" / "00000099.pack").write_bytes(bytes(500))
    (folder / ".mvc-tmp-journal-1").write_bytes(bytes(10))
    assert kept.repo.storage.gc(grace="0").freed == 500
    assert {p.name for p in (folder / "packs").iterdir()} == names
    assert not (folder / ".mvc-tmp-journal-1").exists()


def test_another_process_goes_on(kept: Kept, tmp_path: Path) -> None:
    """One that was open before looks again where it does not find what it knew."""
    ids = line(kept, 6)
    reader = mvc.Repository.open(kept.repo.root)
    w = reader.checkout(ids[2])["w"]
    leave(kept, ids[2])
    kept.repo.storage.gc(grace="0")
    assert reader.checkout(ids[2])["w"].tobytes() == w.tobytes()
    made = reader.commit({"w": w + 1})
    assert kept.repo.checkout(made.id)["w"].tobytes() == (w + 1).tobytes()
    collected(kept, ids[3:])
    kept.check(tmp_path / "s")


def test_commits_beside_it_are_all_kept(kept: Kept, tmp_path: Path) -> None:
    """They build on versions that are being collected, and hold tensors that only those have."""
    ids = line(kept, 8)
    leave(kept, ids[0])
    old = [kept.states[id_] for id_ in ids[1:]]
    made: dict[CommitId, dict[str, np.ndarray]] = {}
    failures: list[BaseException] = []

    def work() -> None:
        try:
            with mvc.Repository.open(kept.repo.root) as repo:
                for n in range(12):
                    state = {"w": old[n % 7]["w"], "n": np.full(4, n, np.float32)}
                    made[repo.commit(state).id] = state
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    rounds = 0
    while thread.is_alive():
        kept.repo.storage.gc(grace="0")
        rounds += 1
    thread.join()
    assert failures == [] and rounds
    kept.repo.storage.gc(grace="0")
    with mvc.Repository.open(kept.repo.root) as repo:
        for id_, state in made.items():
            assert repo.checkout(id_)["w"].tobytes() == state["w"].tobytes()
        assert repo.storage.fsck(full=True).problems == ()
        assert len(made) == 12


def test_a_commit_while_it_runs_keeps_its_bytes(kept: Kept, tmp_path: Path) -> None:
    """It ends a pack that stays: the next one must not begin where the plan saw the end."""
    ids = line(kept, 3)
    big = np.random.default_rng(3).standard_normal(100_000).astype(np.float32)
    leave(kept, kept.state({"big": big}))
    end = kept.state({"big": big, "n": np.arange(9)})
    kept.repo.switch("other", create=True, start=str(ids[2]), force=True)
    refs.delete_branch(kept.context, "side", force=True)
    kept.repo.tag("big", str(end) + "~")
    other = mvc.Repository.open(kept.repo.root)
    made: list[tuple[CommitId, np.ndarray]] = []

    def commit(done: int, total: int, what: str) -> None:
        if what == "operations" and done == total and not made:
            new = np.full(40, 7, np.float32)
            made.append((other.commit({"new": new}).id, new))

    assert gc.collect(kept.context, grace=NOW, progress=commit).commits == (end,)
    collected(kept, [end], files=False)  # for so little no pack is written anew
    later = kept.state({"later": np.full(50, 8, np.float32)})
    assert later in kept.there
    kept.check(tmp_path / "s")
    ((id_, new),) = made
    assert kept.repo.checkout(id_)["new"].tobytes() == new.tobytes()


def test_a_pack_that_another_process_took_over_is_left_alone(
    kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between making a new pack and locking it."""
    line(kept, 1)
    fs, lock = kept.context.store.fs, kept.context.store.fs.lock
    refused: list[Path] = []

    def late(path: Path, **options):
        if path.suffix == ".pack" and not refused:
            refused.append(path)
            return None
        return lock(path, **options)

    monkeypatch.setattr(fs, "lock", late)
    with kept.context.store.pack_writer(fresh=True) as packs:
        packs.append(b"head", [b"body"])
        assert [p.name for p in refused] == ["00000002.pack"]
        assert packs.made == [3]


def test_a_pack_that_another_process_has_filled_is_left_alone(
    kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Taken over, published and let go of, all between making a new pack and locking it."""
    line(kept, 1)
    store = kept.context.store
    fs, lock = store.fs, store.fs.lock
    other = mvc.Repository.open(kept.repo.root)
    filled: list[Path] = []

    def late(path: Path, **options):
        if path.suffix == ".pack" and not filled:
            filled.append(path)
            with lock(store.folder / "packs" / "00000001.pack"):
                other.commit({"w": np.ones(30)})  # so it goes to the new one
        return lock(path, **options)

    monkeypatch.setattr(fs, "lock", late)
    with store.pack_writer(fresh=True) as packs:
        packs.append(b"head", [b"body"])
        assert [p.name for p in filled] == ["00000002.pack"]
        assert packs.made == [3]


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("0", 0), ("0s", 0), ("14d", 14 * 86_400), ("1h30m", 5400), (None, 864_000)],
)
def test_grace(kept: Kept, text: str | None, seconds: float) -> None:
    kept.context.config.values["gc.grace_days"] = (10.0, "flag")
    assert grace_of(kept.context, text).total_seconds() == seconds


@pytest.mark.parametrize("text", ["", "x", "-1d", "99999999 weeks", "5"])
def test_bad_grace(kept: Kept, text: str) -> None:
    with pytest.raises(InvalidTime):
        grace_of(kept.context, text)
    with pytest.raises(InvalidTime):
        grace_of(kept.context, timedelta(days=-1))


@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_any_history(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    """Branches come and go; whatever is left is whole, and nothing else takes space."""
    tmp = tmp_path_factory.mktemp("any")
    kept = Kept(tmp / "r", clock=FixedClock(step_ns=10**9))
    pool = [drift(np.zeros((20, 30)), n, 1) for n in range(2)]
    deployed: set[CommitId] = set()
    for step in range(data.draw(st.integers(4, 14), "steps")):
        act = data.draw(st.sampled_from("cccccrbbxg"), "act")
        if act in "cr" or not kept.there:
            new = drift(
                data.draw(st.sampled_from(pool)), step, data.draw(st.sampled_from([1e-4, 1]))
            )
            pool.append(new)
            live = data.draw(st.sampled_from([None, None, "prod"]), "deployed")
            id_ = kept.state(
                {"w": new, "x": data.draw(st.sampled_from(pool))},
                reset_point=act == "r",
                pipeline=data.draw(st.sampled_from(["lossless", "vsol"])),
                deploy=live,
            )
            deployed |= {id_} if live else set()
        elif act == "b":
            start = data.draw(st.sampled_from(kept.there), "start")
            kept.repo.switch(f"b{step}", create=True, start=str(start), force=True)
        elif act == "x":
            others = [
                b.name for b in kept.repo.branches() if b.name != refs.head(kept.context).branch
            ]
            if others:
                refs.delete_branch(kept.context, data.draw(st.sampled_from(others)), force=True)
        else:
            _collect(kept, deployed)
    _collect(kept, deployed)
    kept.check(tmp / "s")
    kept.repo.close()


def _collect(kept: Kept, deployed: set[CommitId]) -> None:
    """Collects, and compares what is gone with what should be, found by walking the history."""
    stay: set[CommitId] = set()
    roots = deployed | {b.commit for b in kept.repo.branches()}
    for root in roots:
        stay |= {entry.id for entry in kept.repo.log(root)}
    gone = set(kept.objects) - stay
    assert set(kept.repo.storage.gc(grace="0").commits) == gone
    for id_ in gone:
        del kept.objects[id_]
        kept.states.pop(id_)


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


def test_only_folders_of_replays_are_left_over(kept: Kept, tmp_path: Path) -> None:
    """A link to elsewhere, and other names, are not touched: a repository may come from others."""
    line(kept, 1)
    folder = kept.context.store.folder / "retraining"
    victim = tmp_path / "victim"
    (victim / ("0" * 16)).mkdir(parents=True)
    (victim / "photos").mkdir()
    folder.symlink_to(victim)
    kept.repo.storage.gc(grace="0")
    with pytest.raises(DamagedData, match="is no folder"), work_folder(kept.context):
        pass
    assert sorted(p.name for p in victim.iterdir()) == ["0" * 16, "photos"]
    folder.unlink()
    for name in ("live", "0" * 16, "1" * 16):
        (folder / name).mkdir(parents=True)
    (folder / ".lock").write_text("")
    with kept.context.store.fs.lock(folder / ("1" * 16 + ".lock")):
        kept.repo.storage.gc(grace="0")
        assert {"live", "1" * 16} <= {p.name for p in folder.iterdir()}
        assert not (folder / ("0" * 16)).exists()
