"""Runs of an optimizer's steps, where tensors are predicted from each other, under maintenance."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import mvc
from mvc.errors import DamagedData
from mvc.ids import CommitId
from mvc.io.files import FileSystem
from mvc.store.format import read_features
from mvc.store.graph.search import PathStep
from mvc.store.packs.records import encode_header
from mvc.testing import FixedClock
from tests.adamw import training
from tests.histories import CheckedHistory
from tests.maintenance.damaging import lost, mend, smash_payload
from tests.maintenance.traces import traces

MINUTES = 60 * 10**9
MOMENT, SQUARE = "optimizer.state.0.exp_avg", "optimizer.state.0.exp_avg_sq"


def made(root: Path, count: int, minutes: int = 1) -> CheckedHistory:
    history = CheckedHistory(root, make=training, clock=FixedClock(step_ns=minutes * MINUTES))
    for _ in range(count):
        history.commit()
    return history


@pytest.fixture
def run(tmp_path: Path) -> Iterator[CheckedHistory]:
    """A version in full, and eleven that are predicted."""
    history = made(tmp_path / "r", 12)
    yield history
    history.close()


def predicted(history: CheckedHistory) -> list[int]:
    """How many tensors of each version are predicted."""
    repo = history.repo
    return [sum(map(len, repo.storage.predicted(id_).values())) for id_ in history.there]


def in_packs(history: CheckedHistory) -> int:
    return sum(pack.stat().st_size for pack in (history.root / ".mvc/packs").iterdir())


def coding(history: CheckedHistory, id_: CommitId, key: str) -> PathStep:
    """How a tensor of a version is stored."""
    entry = history.repo.manifest(id_).entries[0]
    content = next(entry.contents[t.content] for t in entry.tensors if t.key == key)
    (step,) = history.repo.handle.store.graph.codings(content.id)
    return step


def test_the_history_is_one_of_runs(run: CheckedHistory) -> None:
    assert predicted(run)[0] == 0 and min(predicted(run)[1:]) >= 4
    needs = coding(run, run.ids[5], "model.w").member.needs
    names = ("model.w", 4), (MOMENT, 5), (SQUARE, 5)
    ids = [coding(run, run.ids[number], key).member.id for key, number in names]
    assert [id_[:8] for id_ in ids] == list(needs)
    run.check()


def test_stats_and_repack_say_the_same_of_a_layout(
    run: CheckedHistory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))  # without rates of this machine
    stats = run.repo.storage.stats()
    now = run.repo.storage.repack(dry_run=True).plan.before
    assert stats.recovery_worst == pytest.approx(now.worst_seconds)
    assert stats.recovery_mean == pytest.approx(now.mean_seconds)


def test_forgotten_by_name_in_the_middle(run: CheckedHistory) -> None:
    """Nothing of it stays, not even as a base or an input; what is behind it is still predicted."""
    gone = run.ids[5]
    run.forget(gone)
    before = in_packs(run)
    found = run.repo.storage.gc(grace="0")
    assert found.phantoms == 0 and found.recoded >= 3
    assert traces(run, run.lost([gone])) == []
    counts = dict(zip(run.there, predicted(run), strict=True))
    assert counts[run.ids[6]] == 0 and min(counts[id_] for id_ in run.ids[7:]) >= 4
    assert in_packs(run) < before + 30_000
    run.check()


def test_forgotten_by_rule_between_others(tmp_path: Path) -> None:
    """Moments that belong to no version stay where that is less than other codings."""
    run = made(tmp_path / "r", 16, minutes=15)
    assert len(run.forget(keep_hourly=1000)) == 7
    found = run.repo.storage.gc(grace="0")
    assert found.phantoms >= 7 * 3
    run.check()
    assert min(predicted(run)[1:]) >= 2
    run.repo.storage.gc(grace="0")
    run.check()
    run.forget(run.there[2])  # and now none of these may stay for it
    run.repo.storage.gc(grace="0")
    assert traces(run, run.lost([run.ids[4]])) == []
    run.check()
    run.commit()
    run.check()
    run.close()


def test_forgotten_to_the_last_ones(run: CheckedHistory) -> None:
    run.forget(keep_last=3)
    run.repo.storage.gc(grace="0")
    run.check()
    assert predicted(run)[0] == 0 and min(predicted(run)[1:]) >= 4


def test_a_run_is_shortened_where_recovery_has_to_be_fast(tmp_path: Path) -> None:
    run = made(tmp_path / "r", 24)
    before = run.repo.storage.repack(dry_run=True, interval=1).plan
    fastest, slowest = before.after.worst_seconds, before.before.worst_seconds
    bound = (fastest + slowest) / 2
    done = run.repo.storage.repack(max_recovery=bound)
    assert done.now is not None and done.now.worst_seconds <= bound
    assert abs(done.now.bytes - done.plan.after.bytes) < 0.01 * done.now.bytes
    assert 0 < sum(map(bool, predicted(run))) < 24
    assert done.now.bytes < before.after.bytes
    run.check()
    run.close()


@pytest.mark.parametrize("aim", [{"interval": 4}, {"max_size": 1 << 40}, {}])
def test_repacked(run: CheckedHistory, aim: dict[str, int]) -> None:
    done = run.repo.storage.repack(**aim)
    run.check()
    if "max_size" in aim:
        assert sum(predicted(run)) == 0
    else:
        assert sum(predicted(run)) > 20
        assert done.now is None or done.plan.deltas_removed < 10
        assert "optim" in read_features(FileSystem(), run.root / ".mvc")


def test_reset_points_come_and_go(run: CheckedHistory) -> None:
    middle = run.ids[6]
    before = in_packs(run)
    assert middle in run.repo.storage.repack(add=[middle]).plan.added
    run.check()
    assert min(predicted(run)[1:]) >= 4
    assert middle in run.repo.storage.repack(remove=[middle]).plan.removed
    run.check()
    assert in_packs(run) < before + 500


def test_the_curve_begins_with_the_fastest(run: CheckedHistory) -> None:
    points = run.repo.storage.curve().points
    assert points[0].worst_seconds < points[-1].worst_seconds
    assert points[0].bytes > 2 * points[-1].bytes


@pytest.mark.parametrize("key", [MOMENT, SQUARE, "model.w"])
def test_a_damaged_input_comes_back_from_a_backup(run: CheckedHistory, key: str) -> None:
    backup = run.root.parent / "backup"
    shutil.copytree(run.root, backup)
    step = coding(run, run.ids[4], key)
    run.close()
    smash_payload(run.root, step)
    damaged = lost(run)
    assert damaged[0] == 4 and set(damaged) <= set(range(4, 12))
    with run.open() as repo:
        problems = repo.storage.fsck(full=True).problems
        assert {run.ids[number] for number in damaged} <= {v for p in problems for v in p.versions}
    done = mend(run.root, other=backup / ".mvc")
    assert done.after.sound
    run.check()


def test_without_a_backup_what_is_lost_is_told_and_the_rest_stays(run: CheckedHistory) -> None:
    run.repo.storage.repack(add=[run.ids[8]])
    step = coding(run, run.ids[4], SQUARE)
    run.close()
    smash_payload(run.root, step)
    damaged = lost(run)
    assert damaged == [4, 5, 6, 7]
    done = mend(run.root)
    assert not done.after.sound
    assert lost(run) == damaged
    assert {run.ids[number] for number in damaged} == set(done.after.lost)


def forge(run: CheckedHistory, step: PathStep, *inputs: bytes) -> None:
    """Gives a coding other inputs; its record's header is right otherwise."""
    path = run.root / f".mvc/packs/{step.pack:08d}.pack"
    data, header = bytearray(path.read_bytes()), step.header
    others = [m if m != step.member else m._replace(inputs=inputs) for m in header.members]
    head = encode_header(others, group=False, body_size=header.body_size)
    assert len(head) == header.body_at
    data[step.offset : step.offset + len(head)] = head
    path.write_bytes(data)


@pytest.mark.parametrize("lie", ["itself", "each other", "the other way round", "nothing"])
def test_false_inputs_are_damage(run: CheckedHistory, lie: str, tmp_path: Path) -> None:
    """Nothing runs for ever or gives other bits, and a backup heals it."""
    backup = tmp_path / "backup"
    shutil.copytree(run.root, backup)
    weights, square = (coding(run, run.ids[4], key) for key in ("model.w", SQUARE))
    own = weights.member.id[:8]
    run.close()
    if lie == "itself":
        forge(run, weights, own, weights.member.inputs[1])
    elif lie == "each other":
        forge(run, square, own, square.member.inputs[1])
    elif lie == "nothing":
        forge(run, weights, bytes(8), weights.member.inputs[1])
    else:
        forge(run, square, *reversed(square.member.inputs))
    assert lost(run)[0] == 4
    with run.open() as repo:
        found = repo.storage.fsck(full=True)
        assert run.ids[4] in found.lost
        with pytest.raises(DamagedData):
            mvc.clone(str(run.root), tmp_path / "clone").close()
        with suppress(DamagedData):
            repo.storage.gc(grace="0")
        with suppress(DamagedData):
            repo.storage.repack(interval=3)
    assert mend(run.root, other=backup / ".mvc").after.sound
    run.check()


@settings(max_examples=3, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_any_order_of_maintenance(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    any_order(tmp_path_factory.mktemp("any"), data)


@pytest.mark.long
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_many_orders_of_maintenance(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    any_order(tmp_path_factory.mktemp("many"), data)


def any_order(folder: Path, data: st.DataObject) -> None:
    history = made(folder / "r", 5, minutes=7)
    named: dict[CommitId, set[bytes]] = {}
    acts = data.draw(st.lists(st.sampled_from("cccfFgri"), min_size=4, max_size=10), "acts")
    for act in [*acts, "g"]:
        repo = history.repo
        if act == "c":
            for _ in range(2):
                history.commit(reset_point=data.draw(st.sampled_from([False] * 5 + [True])))
        elif act == "f":
            id_ = data.draw(st.sampled_from(history.there[:-1] or history.there), "forgotten")
            if id_ != history.there[-1]:
                history.forget(id_)
                named[id_] = history.objects[id_]
        elif act == "F":
            history.forget(**data.draw(st.sampled_from([{"keep_last": 4}, {"keep_hourly": 50}])))
        elif act == "r":
            repo.storage.repack()
        elif act == "i":
            repo.storage.repack(interval=data.draw(st.integers(2, 6), "interval"))
        else:
            repo.storage.gc(grace="0")
            there = {each for id_ in history.there for each in history.objects[id_]}
            assert traces(history, set().union(*named.values()) - there) == []
        history.check()
    history.close()
