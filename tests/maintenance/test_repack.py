"""repack on repositories: what comes back is the same, and the price is as the plan said."""

from __future__ import annotations

import shutil
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file

import mvc
from mvc.errors import DamagedData, ReadOnly, Unattainable, WrongUsage
from mvc.io.files import FileSystem
from mvc.maintenance.repack.goal import goal_of
from mvc.maintenance.repack.repack import Repacked, draw_curve, make_plan, present_metrics
from mvc.repo.config import set_value
from tests.oracle.holding import held_against


class Series:
    """Versions of a small network and what each must give back."""

    def __init__(self, root: Path, count: int = 12, layout: str = "chain", **options) -> None:
        root.mkdir(parents=True, exist_ok=True)
        self.root = root
        mvc.Repository.init(root).close()
        set_value(FileSystem(), root / ".mvc/config.yaml", "store.layout", layout)
        self.repo = mvc.Repository.open(root)
        self.random = np.random.default_rng(0)
        self.state = {
            "a": self.array(90, 70),
            "b": self.array(40, 40),
            "bias": self.array(40),
            "frozen": self.array(50, 50),
        }
        self.ids: list = []
        self.want: list = []
        for _ in range(count):
            self.step(**options)

    def array(self, *shape: int) -> np.ndarray:
        return (self.random.standard_normal(shape) * 0.05).astype(np.float32)

    def step(self, **options) -> None:
        moved = {k: v + self.array(*v.shape) * 0.02 for k, v in self.state.items()}
        self.state = {**self.state, **{k: v for k, v in moved.items() if k != "frozen"}}
        self.keep(self.repo.commit(dict(self.state), **options).id, self.state)

    def keep(self, id_, state) -> None:
        self.ids.append(id_)
        self.want.append({k: v.tobytes() for k, v in state.items()})

    def check(self) -> None:
        """Every version, from a repository opened anew, byte for byte."""
        with mvc.Repository.open(self.root) as repo:
            for id_, want in zip(self.ids, self.want, strict=True):
                got = repo.checkout(id_)
                assert {k: v.tobytes() for k, v in got.items()} == want
            report = repo.storage.fsck(full=True)
            assert not report.problems

    def repack(self, **goal) -> Repacked:
        done = self.repo.storage.repack(**goal)
        if done.now is not None:
            plan = done.plan.after
            assert done.now.bytes == pytest.approx(plan.bytes, rel=0.05)
            assert done.now.worst_seconds == pytest.approx(plan.worst_seconds, rel=0.05)
            assert done.now.mean_seconds == pytest.approx(plan.mean_seconds, rel=0.05)
            assert done.now.reset_points == plan.reset_points
        self.check()
        return done

    def from_both_sides(self) -> None:
        """A layout whose reset points lie in the middle of what they serve."""
        self.repack(interval=4)
        worst = present_metrics(self.repo.handle.store, self.repo.handle.config).worst_seconds
        done = self.repack(max_recovery=worst * 1.01)
        assert done.plan.deltas_added  # deltas that lead back in time
        assert 0 not in self.reset_points()

    def reset_points(self) -> list[int]:
        return [
            self.ids.index(i)
            for i in present_metrics(self.repo.handle.store, self.repo.handle.config).reset_points
        ]


@pytest.fixture
def series(tmp_path: Path) -> Series:
    return Series(tmp_path / "r")


def test_there_and_back(series: Series) -> None:
    first = present_metrics(series.repo.handle.store, series.repo.handle.config)
    assert series.reset_points() == [0]
    series.repack(interval=5)
    assert series.reset_points() == [0, 5, 10]
    middle = present_metrics(series.repo.handle.store, series.repo.handle.config)
    done = series.repack(max_recovery=(middle.worst_seconds + first.worst_seconds) / 2)
    assert done.plan.after.worst_seconds <= done.plan.goal.max_recovery
    assert done.plan.after.bytes < middle.bytes
    others = series.reset_points()[1:]
    if others:
        series.repack(remove=[series.ids[i] for i in others])
        assert len(series.reset_points()) == 1
    series.repack(add=[series.ids[i] for i in (5, 10)])
    series.repack(interval=28)
    assert series.reset_points() == [0]
    last = present_metrics(series.repo.handle.store, series.repo.handle.config)
    assert last.bytes == pytest.approx(first.bytes, rel=0.01)


def test_ids_and_history_stay(series: Series) -> None:
    series.repo.deploy(series.ids[3], "prod")
    series.repo.tag("v1", series.ids[2].hex())
    before = [entry.id for entry in series.repo.log()]
    series.repack(interval=3)
    assert [entry.id for entry in series.repo.log()] == before == series.ids[::-1]
    assert series.repo.live("prod").commit == series.ids[3]
    newest = next(iter(series.repo.handle.store.snapshot.entries()))
    assert newest.sequence == 0
    operations = [r.entry.operation for r in series.repo.handle.store.snapshot.entries()]
    assert operations[-1] == "repack"


def test_a_dry_run_changes_nothing(series: Series) -> None:
    packs = series.root / ".mvc" / "packs"
    before = {p.name: p.read_bytes() for p in packs.iterdir()}
    journal = (series.root / ".mvc" / "journal").read_bytes()
    done = series.repo.storage.repack(interval=2, dry_run=True)
    assert done.now is None
    assert len(done.plan.added) == 5
    assert {p.name: p.read_bytes() for p in packs.iterdir()} == before
    assert (series.root / ".mvc" / "journal").read_bytes() == journal


def test_nothing_to_do(series: Series) -> None:
    series.repack(interval=4)
    done = series.repack(interval=4)
    assert not done.plan
    assert done.now is None


def test_without_a_wish_the_settings_count(series: Series) -> None:
    context = series.repo.handle
    assert goal_of(context.store, context.config).interval == 28
    set_value(context.store.fs, series.root / ".mvc" / "config.yaml", "store.max_recovery", "5")
    with mvc.Repository.open(series.root) as repo:
        assert goal_of(repo.handle.store, repo.handle.config).max_recovery == 5.0


def test_the_layout_of_the_settings_is_laid_out(tmp_path: Path) -> None:
    """What a chain becomes is what commits with skip deltas would have made of it."""
    chain, skip = Series(tmp_path / "c", 20), Series(tmp_path / "s", 20, layout="skip:4")
    wanted = present_metrics(skip.repo.handle.store, skip.repo.handle.config)
    assert not skip.repack().plan, "it is laid out so already"
    assert present_metrics(chain.repo.handle.store, chain.repo.handle.config).worst_deltas == 19
    set_value(FileSystem(), chain.root / ".mvc/config.yaml", "store.layout", "skip:4")
    with mvc.Repository.open(chain.root) as chain.repo:
        done = chain.repack()
        assert str(done.plan.goal) == "layout skip:4"
        assert done.now is not None
        assert wanted.worst_deltas == 6
        assert done.now.worst_deltas <= 8
        assert done.now.mean_deltas == pytest.approx(wanted.mean_deltas, rel=0.2)
        assert done.now.bytes == pytest.approx(wanted.bytes, rel=0.01)
        chain.step()
        chain.check()
        assert not chain.repack().plan


@pytest.mark.parametrize("layout", ["skip:2", "skip:4"])
def test_skips_are_never_made_worse(tmp_path: Path, layout: str) -> None:
    series = Series(tmp_path / "r", 18, layout=layout)
    before = present_metrics(series.repo.handle.store, series.repo.handle.config)
    for goal in ({"max_recovery": before.worst_seconds * 1.01}, {"max_size": before.bytes}, {}):
        after = series.repack(**goal).plan.after
        assert after.bytes <= before.bytes * 1.01
        assert after.worst_seconds <= before.worst_seconds * 1.011


def test_commits_go_on_after_every_layout(series: Series) -> None:
    for goal in ({}, {"interval": 4}, {"max_size": 10**9}):
        if goal:
            series.repack(**goal)
        else:
            series.from_both_sides()
        series.step()
        series.step()
        series.check()


def test_size_and_time_are_kept(series: Series) -> None:
    everything = series.repo.storage.repack(interval=1, dry_run=True).plan.after
    least = draw_curve(series.repo.handle.store, series.repo.handle.config).points[-1]
    size = (everything.bytes + least.bytes) // 2
    done = series.repack(max_size=size)
    assert done.plan.after.bytes <= size
    with pytest.raises(Unattainable, match="no layout fits") as refused:
        series.repo.storage.repack(max_size=1000)
    assert "the smallest needs about" in refused.value.hint
    with pytest.raises(Unattainable, match="no layout allows"):
        series.repo.storage.repack(max_recovery=1e-9)
    series.check()


def test_removing_what_was_added_leaves_the_bytes_of_before(tmp_path: Path) -> None:
    made = Series(tmp_path / "r", 0, "skip:4")
    model = torch.nn.Sequential(torch.nn.Linear(30, 20), torch.nn.BatchNorm1d(20))
    adam = torch.optim.Adam(model.parameters())
    data = torch.from_numpy(made.random.standard_normal((18, 8, 30)).astype(np.float32))
    with mvc.Recorder(made.repo, model, adam) as recorder:
        for batch in data:
            adam.zero_grad()
            model(batch).square().mean().backward()
            adam.step()
            recorder.step()
    first = present_metrics(made.repo.handle.store, made.repo.handle.config)
    added = [
        id_ for id_ in ("HEAD~3", "HEAD~7") if made.repo.storage.repack(add=[id_]).plan.full_added
    ]
    assert len(added) == 2
    one = made.repo.storage.repack(remove=added[:1], dry_run=True).plan
    assert one.after.bytes < one.before.bytes
    done = made.repo.storage.repack(remove=added)
    assert done.plan.full_removed and not done.plan.deltas_added
    assert done.now is not None and done.now.reset_points == first.reset_points
    assert done.now.bytes == pytest.approx(first.bytes, rel=0.01)
    assert not made.repo.storage.fsck(full=True).problems


def test_what_cannot_be_removed(series: Series) -> None:
    with pytest.raises(Unattainable, match="is not a reset point"):
        series.repo.storage.repack(remove=[series.ids[4]])
    with pytest.raises(Unattainable, match="no delta leads to it"):
        series.repo.storage.repack(remove=[series.ids[0]])
    series.repack(interval=6)
    goal = goal_of(series.repo.handle.store, series.repo.handle.config, remove=(series.ids[6],))
    worst = make_plan(series.repo.handle.store, series.repo.handle.config, goal).after.worst_seconds
    strict = type(goal)(remove=goal.remove, bound=worst / 2)
    with pytest.raises(Unattainable, match=r"store\.max_recovery allows"):
        make_plan(series.repo.handle.store, series.repo.handle.config, strict)
    loose = type(goal)(remove=goal.remove, bound=worst * 4)
    assert make_plan(series.repo.handle.store, series.repo.handle.config, loose).removed == (
        series.ids[6],
    )


def test_wishes_that_make_no_sense(series: Series) -> None:
    for goal in (
        {"interval": 0},
        {"max_recovery": 0.0},
        {"max_recovery": float("nan")},
        {"interval": 3, "max_size": 3},
    ):
        with pytest.raises(WrongUsage):
            series.repo.storage.repack(**goal)


def test_an_empty_repository(tmp_path: Path) -> None:
    with mvc.Repository.init(tmp_path / "e") as repo:
        assert not repo.storage.repack(interval=3).plan
        assert not repo.storage.repack(max_size=0).plan
        assert not repo.storage.repack(max_recovery=1.0).plan
        assert draw_curve(repo.handle.store, repo.handle.config).points == ()


def test_branches(series: Series) -> None:
    repo = series.repo
    for name, at in (("side", 3), ("other", 7)):
        repo.switch(name, create=True, start=series.ids[at].hex(), force=True)
        series.state = {k: np.frombuffer(v, np.float32).reshape(series.state[k].shape).copy()
                        for k, v in series.want[at].items()}  # fmt: skip
        for _ in range(5):
            series.step()
    series.repack(interval=4)
    now = present_metrics(repo.handle.store, repo.handle.config)
    series.repack(max_recovery=now.worst_seconds * 1.5)
    series.repack(max_size=round(now.bytes * 0.95))
    series.repack(interval=28)


@pytest.mark.parametrize("pipeline", ["vsol", "none", "xor | planes | zstd:1"])
def test_other_pipelines(tmp_path: Path, pipeline: str) -> None:
    series = Series(tmp_path / "r", 8, pipeline=pipeline)
    series.repack(interval=3)
    series.repack(max_recovery=10.0)
    series.repack(interval=3)


def test_tensors_that_come_and_go_and_change_their_shape(tmp_path: Path) -> None:
    series = Series(tmp_path / "r", 3)
    for i in range(8):
        if i == 2:
            series.state["late"] = series.array(30, 30)
        if i == 4:
            del series.state["b"]
        if i == 5:
            series.state["a"] = np.vstack([series.state["a"], series.array(10, 70)])
        series.step()
    series.repack(interval=4)
    series.repack(max_recovery=10.0)
    series.repack(
        max_size=present_metrics(series.repo.handle.store, series.repo.handle.config).bytes * 2
    )
    series.repack(interval=28)


def test_a_version_that_comes_back(series: Series) -> None:
    state = {k: np.frombuffer(v, np.float32).reshape(series.state[k].shape)
             for k, v in series.want[2].items()}  # fmt: skip
    series.keep(series.repo.commit(state).id, state)
    series.step()
    series.repack(interval=5)
    series.repack(max_recovery=10.0)
    series.repack(interval=5)


def test_files_copies_and_opaque_bytes(tmp_path: Path) -> None:
    root = tmp_path / "r"
    repo = mvc.Repository.init(root)
    random = np.random.default_rng(1)
    want = []
    weight = random.standard_normal((80, 80)).astype(np.float32)
    for i in range(7):
        weight = weight + 1e-3 * random.standard_normal(weight.shape).astype(np.float32)
        half = torch.from_numpy(weight).to(torch.bfloat16)
        torch.save({"w": torch.from_numpy(weight), "half": half}, root / "m.pt")
        save_file({"w": weight, "n": np.array(i)}, root / "m.safetensors")
        (root / "notes.bin").write_bytes(b"notes " * 50 + bytes([i]) * 20)
        files = ["m.pt", "m.safetensors", "notes.bin"]
        id_ = repo.commit([root / f for f in files]).id
        want.append((id_, {f: (root / f).read_bytes() for f in files}))
    for goal in ({"interval": 2}, {"max_recovery": 10.0}, {"interval": 28}):
        repo.storage.repack(**goal)
        for id_, files in want:
            repo.checkout(id_.hex(), to=tmp_path / "out", force=True)
            for name, data in files.items():
                assert (tmp_path / "out" / name).read_bytes() == data
        assert not repo.storage.fsck(full=True).problems


def test_collecting_after_a_repack(series: Series) -> None:
    series.from_both_sides()
    gone = [series.ids[i] for i in (0, 4, 5)]
    series.repo.storage.forget(gone)
    for id_ in gone:
        at = series.ids.index(id_)
        del series.ids[at], series.want[at]
    series.check()
    series.repo.storage.gc(grace=timedelta(0))
    series.check()
    series.repack(interval=3)
    series.repo.storage.gc(grace=timedelta(0))
    series.repack(max_size=10**9)


@pytest.mark.parametrize("pipeline", ["lossless", "vsol"])
def test_the_oracle_reads_deltas_that_lead_back(tmp_path: Path, pipeline: str) -> None:
    series = Series(tmp_path / "r", 10, pipeline=pipeline)
    if pipeline == "lossless":
        series.from_both_sides()
    series.repack(interval=3)
    held_against(series.root, edges=False)


def test_an_index_made_anew_finds_all(series: Series) -> None:
    series.from_both_sides()
    series.repo.close()
    shutil.rmtree(series.root / ".mvc" / "index.lmdb")
    series.check()
    series.repo = mvc.Repository.open(series.root)
    series.step()
    series.check()


def test_a_damaged_repository_is_left_alone(series: Series) -> None:
    series.repo.close()
    pack = next((series.root / ".mvc" / "packs").iterdir())
    data = bytearray(pack.read_bytes())
    data[len(data) // 2] ^= 1
    pack.write_bytes(data)
    with mvc.Repository.open(series.root) as repo, pytest.raises(DamagedData):
        repo.storage.repack(interval=1)
    assert pack.read_bytes() == data


def test_a_folder_that_cannot_be_written(series: Series) -> None:
    series.repo.handle.store.writable = False
    with pytest.raises(ReadOnly, match="nothing can be repacked") as caught:
        series.repo.storage.repack(interval=1)
    assert "permissions" in str(caught.value.hint)
    series.repo.storage.repack(interval=1, dry_run=True)


def test_another_commit_in_between(series: Series, monkeypatch: pytest.MonkeyPatch) -> None:
    """A commit that comes between plan and switch stays, and comes back."""
    from mvc.maintenance.repack import repack as verb

    real = verb.rewrite

    def slow(*args, **options):
        with mvc.Repository.open(series.root) as other:
            state = {k: v + 1 for k, v in series.state.items()}
            series.keep(other.commit(state).id, state)
        return real(*args, **options)

    series.from_both_sides()
    monkeypatch.setattr(verb, "rewrite", slow)
    series.repo.storage.repack(interval=5)
    series.check()
    assert len(series.ids) == 13


@settings(deadline=None, max_examples=8)
@given(st.lists(st.sampled_from(range(6)), min_size=2, max_size=5), st.integers(0, 1000))
def test_any_order_of_repacks(tmp_path_factory, order: list[int], seed: int) -> None:
    random = np.random.default_rng(seed)
    series = Series(tmp_path_factory.mktemp("any") / "r", 7)
    for kind in order:
        now = present_metrics(series.repo.handle.store, series.repo.handle.config)
        goal = [
            {"interval": int(random.integers(1, 6))},
            {"max_recovery": now.worst_seconds * float(random.uniform(0.5, 2))},
            {"max_size": round(now.bytes * float(random.uniform(0.9, 1.5)))},
            {"add": [series.ids[int(random.integers(len(series.ids)))]]},
            {"remove": [now.reset_points[int(random.integers(len(now.reset_points)))]]
             if now.reset_points else []},
            {},
        ][kind]  # fmt: skip
        try:
            series.repack(**goal)
        except Unattainable:
            series.check()
        if random.random() < 0.3:
            series.step()
