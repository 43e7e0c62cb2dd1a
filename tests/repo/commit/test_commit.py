"""commit: what it stores, what it refuses, and that it gives back the same bits."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

import mvc
from mvc.errors import (
    InvalidConfig,
    NothingToCommit,
    SourceChanged,
    StorageFull,
    UnknownPath,
    WrongUsage,
)
from mvc.repo.commit.request import CommitOptions
from mvc.store.writing.base_cache import BaseCache
from mvc.store.writing.object_writer import ObjectWriter
from mvc.testing import HookedFS

RANDOM = np.random.default_rng(5)
BASE = RANDOM.standard_normal((256, 512)).astype(np.float32)


def near(seed: int) -> np.ndarray:
    return BASE + np.float32(1e-4) * np.random.default_rng(seed).standard_normal(BASE.shape).astype(
        np.float32
    )


@pytest.fixture
def repo(tmp_path: Path):
    with mvc.Repository.init(tmp_path) as opened:
        yield opened


def same(a: np.ndarray, b: np.ndarray) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


def test_unchanged_and_equal_tensors_are_stored_once(repo):
    repo.commit({"a": BASE, "b": near(1)})
    again = repo.commit({"a": BASE, "b": near(1), "c": BASE})
    assert again.stored_bytes < 2000
    assert same(repo.checkout()["c"], BASE)


def test_the_commit_of_a_packed_branch_of_git_is_noted(repo):
    git = repo.root / ".git"
    git.mkdir()
    (git / "HEAD").write_text("ref: refs/heads/a\u2028b\n")
    (git / "packed-refs").write_text(f"# pack-refs with: peeled\n{'1f' * 20} refs/heads/a\u2028b\n")
    assert repo.commit({"a": BASE}).commit.code == "1f" * 20


def test_a_delta_is_smaller_than_a_full_record(repo):
    full = repo.commit({"a": near(0)}).stored_bytes
    delta = repo.commit({"a": near(1)}).stored_bytes
    assert delta < 0.8 * full


@pytest.mark.parametrize("prefix", ["module.", "_orig_mod.", "module._orig_mod."])
def test_a_renamed_prefix_is_recognised(repo, prefix):
    repo.commit({"layer.weight": near(0)})
    assert repo.commit({prefix + "layer.weight": near(0)}).stored_bytes < 2000
    changed = repo.commit({"layer.weight": near(2)})
    assert changed.stored_bytes < 0.8 * BASE.nbytes


@pytest.mark.parametrize("rows", [200, 300])
def test_the_common_part_of_a_resized_embedding_is_a_delta(repo, rows):
    repo.commit({"embedding": BASE})
    grown = np.zeros((rows, 512), np.float32)
    grown[: min(rows, 256)] = BASE[:rows]
    kept = repo.commit({"embedding": grown})
    assert kept.stored_bytes < 4000
    assert same(repo.checkout()["embedding"], grown)


def test_a_copy_in_lower_precision_costs_next_to_nothing(repo):
    master = torch.from_numpy(BASE.copy())
    alone = repo.commit({"master": master}).stored_bytes
    for seed in (1, 2):
        master = torch.from_numpy(near(seed))
        both = repo.commit({"copy": master.bfloat16(), "half": master.half(), "master": master})
        assert both.stored_bytes < alone
        state = repo.checkout()
        assert torch.equal(state["copy"], master.bfloat16())
        assert torch.equal(state["half"], master.half())


def test_reset_points_come_by_interval_and_both_sides_are_used(tmp_path):
    mvc.Repository.init(tmp_path).close()
    (tmp_path / ".mvc/config.yaml").write_text("store:\n  reset_interval: 6\n")
    with mvc.Repository.open(tmp_path) as repo:
        for i in range(13):
            repo.commit({"a": near(i)})
        stats = repo.storage.stats()
        assert (stats.reset_points, stats.deltas_worst) == (3, 3)
        for i in range(13):
            assert same(repo.checkout(f"HEAD~{12 - i}")["a"], near(i))


@pytest.mark.parametrize(("interval", "deltas"), [(1, 0), (2, 2), (3, 4)])
def test_a_delta_stands_beside_a_reset_point_only_where_it_shortens_a_way(
    tmp_path, interval, deltas
):
    """Once every reset point had one, and could take more than a plain copy."""
    mvc.Repository.init(tmp_path).close()
    (tmp_path / ".mvc/config.yaml").write_text(f"store:\n  reset_interval: {interval}\n")
    with mvc.Repository.open(tmp_path) as repo:
        sizes = [repo.commit({"a": near(i)}).stored_bytes for i in range(2)]
        for i in range(2, 5):
            repo.commit({"a": near(i)})
        stats = repo.storage.stats()
        for i in range(5):
            assert same(repo.checkout(f"HEAD~{4 - i}")["a"], near(i))
    assert stats.reset_points == {1: 5, 2: 3, 3: 2}[interval]
    assert round(stats.bytes["delta"] / sizes[1]) == (deltas if interval > 1 else 0)


def test_recovery_is_bounded_by_seconds(tmp_path):
    found = []
    with mvc.Repository.init(tmp_path / "alone") as repo:
        repo.commit({"a": near(0)})
        full = repo.storage.stats().recovery_worst
    for bound in (1.2 * full, 60):
        folder = tmp_path / str(bound)
        mvc.Repository.init(folder).close()
        (folder / ".mvc/config.yaml").write_text(f"store:\n  max_recovery: {bound}\n")
        with mvc.Repository.open(folder) as repo:
            for i in range(30):
                repo.commit({"a": near(i)})
            found.append(repo.storage.stats())
    tight, loose = found
    assert tight.reset_points > loose.reset_points
    assert tight.deltas_worst < loose.deltas_worst
    (folder / ".mvc/config.yaml").write_text("store:\n  max_recovery: 0.0000001\n")
    with mvc.Repository.open(folder) as repo, pytest.raises(InvalidConfig, match="max_recovery"):
        repo.commit({"a": near(99)})


def test_requirements_choose_the_pipeline_and_bound_this_commit(repo):
    chain, times = [], []
    for i in range(12):
        done = repo.commit({"a": near(i)}, pipeline=mvc.Requirements(max_recovery=60))
        times.append(repo.storage.stats().recovery_worst)
        assert done.commit.pipeline == "lossless"
        chain.append(repo.storage.stats().reset_points)
    assert chain == [1] * 12
    bound = 1.2 * times[0]  # a full version keeps to it, no delta does
    for i in range(12, 24):
        repo.commit({"a": near(i)}, pipeline=mvc.Requirements(max_recovery=bound))
    assert repo.storage.stats().reset_points > 1
    state = {"a": near(30)}
    made = repo.commit(state, pipeline=mvc.Requirements(lossy=True)).commit
    assert made.pipeline == "frontier-0"
    with pytest.raises(InvalidConfig, match="max_recovery is 1e-07 s"):
        repo.commit({"a": near(31)}, pipeline=mvc.Requirements(max_recovery=1e-7))
    with pytest.raises(WrongUsage, match="a commit always saves"):
        repo.commit({"a": near(31)}, pipeline=mvc.Requirements(lossy=True, speed="slow"))
    with pytest.raises(WrongUsage, match=r"pipeline is of type dict: it must be text or mvc\.Req"):
        repo.commit({"a": near(31)}, pipeline={"lossy": True})
    for wrong in (0, float("nan"), float("inf")):
        with pytest.raises(WrongUsage, match="max_recovery must be a number of seconds above 0"):
            repo.commit({"a": near(31)}, options=CommitOptions(max_recovery=wrong))


def test_a_tensor_that_changes_during_the_commit_is_refused(repo, monkeypatch):
    state = {"a": near(0)}
    repo.commit(state)
    original = BaseCache.settle

    def meddle(self):
        for kept in self._next.values():
            kept.buffer[0] ^= 1
        original(self)

    monkeypatch.setattr(BaseCache, "settle", meddle)
    with pytest.raises(SourceChanged, match="'a'"):
        repo.commit({"a": near(1)})
    monkeypatch.undo()
    repo.commit({"a": near(2)})
    assert same(repo.checkout()["a"], near(2))
    assert len(list(repo.log())) == 2


def test_a_change_is_noticed_without_a_copy_in_memory_too(tmp_path, monkeypatch):
    mvc.Repository.init(tmp_path).close()
    (tmp_path / ".mvc/config.yaml").write_text("python:\n  keep_base: none\n")
    array = near(0).copy()
    with mvc.Repository.open(tmp_path) as repo:
        original = ObjectWriter.put

        def meddle(self, *arguments, **options):
            array[0, 0] += 1
            original(self, *arguments, **options)

        monkeypatch.setattr(ObjectWriter, "put", meddle)
        with pytest.raises(SourceChanged, match="'a'"):
            repo.commit({"a": array})
        monkeypatch.undo()
        repo.commit({"a": array})
        assert same(repo.checkout()["a"], array)


def test_commits_from_an_older_version_branch(repo):
    first = repo.commit({"a": near(0)}).id
    main = repo.commit({"a": near(1)}).id
    repo.checkout(str(first), force=True, to=repo.root)
    side = repo.commit({"a": near(2)})
    assert side.commit.parents == (first,)
    assert repo.find("main") == main
    assert same(repo.checkout(side.id)["a"], near(2))


@pytest.mark.parametrize("pipeline", ["lossless", "vsol", "none", "xor | planes | zstd:3"])
def test_every_pipeline_gives_the_same_bits(repo, pipeline):
    states = [
        {"a": near(i), "b": np.array([i], np.int64), "c": np.float16(i) * np.ones(7, np.float16)}
        for i in range(5)
    ]
    for state in states:
        assert repo.commit(state, pipeline=pipeline).commit.pipeline == pipeline
    for i, state in enumerate(states):
        found = repo.checkout(f"HEAD~{4 - i}")
        assert all(same(found[key], state[key]) for key in state)


def test_special_values_come_back_bit_for_bit(repo):
    bits = np.array([0, 0x80000000, 0x3F800000, 0x7FC00001, 1, 0xFFFFFFFF, 0x7F800000], np.uint32)
    for shift in range(3):
        repo.commit({"a": np.roll(bits, shift).view(np.float32)})
    for shift in range(3):
        found = repo.checkout(f"HEAD~{2 - shift}")["a"].view(np.uint32)
        assert (found == np.roll(bits, shift)).all()


def test_files_are_committed_together_and_the_others_stay(repo, tmp_path):
    save_file({"a": BASE}, tmp_path / "a.safetensors")
    save_file({"b": near(1)}, tmp_path / "b.safetensors")
    repo.commit([tmp_path / "a.safetensors", tmp_path / "b.safetensors"])
    save_file({"a": near(2)}, tmp_path / "a.safetensors")
    kept = repo.commit(tmp_path / "a.safetensors")
    assert {e.path for e in repo.manifest().entries} == {"a.safetensors", "b.safetensors"}
    assert [(c.path, c.kind) for c in kept.paths] == [("a.safetensors", "changed")]
    with pytest.raises(NothingToCommit):
        repo.commit(tmp_path / "a.safetensors")
    with pytest.raises(WrongUsage):
        repo.commit()


def test_all_takes_changes_but_no_copy_for_a_rename_and_no_absence_for_a_removal(repo, tmp_path):
    for name, seed in (("a", 1), ("b", 2), ("c", 3)):
        save_file({"w": near(seed)}, tmp_path / f"{name}.safetensors")
    repo.commit([tmp_path])
    save_file({"w": near(4)}, tmp_path / "a.safetensors")
    (tmp_path / "b.safetensors").rename(tmp_path / "moved.safetensors")
    changed = repo.commit(files=mvc.FileOptions(all=True)).paths
    assert [(c.path, c.kind) for c in changed] == [("a.safetensors", "changed")]
    with pytest.raises(NothingToCommit, match=r"nothing to commit but moved\.safetensors"):
        repo.commit(files=mvc.FileOptions(all=True))
    named = tmp_path / "moved.safetensors"
    changed = repo.commit(named, files=mvc.FileOptions(all=True)).paths
    assert [(c.path, c.kind) for c in changed] == [("moved.safetensors", "renamed")]
    assert repo.manifest().by_path.keys() == {
        "a.safetensors", "moved.safetensors", "c.safetensors",
    }  # fmt: skip
    (tmp_path / "c.safetensors").unlink()
    (tmp_path / "a.safetensors").unlink()
    changed = repo.commit(tmp_path / "c.safetensors").paths
    assert [(c.path, c.kind) for c in changed] == [("c.safetensors", "removed")]
    repo.commit(files=mvc.FileOptions(all=True))
    assert repo.manifest().by_path.keys() == {"moved.safetensors"}


def test_a_path_without_a_file_leaves_the_version_only_if_it_was_tracked(repo, tmp_path):
    repo.commit(states={"d/w": {"w": BASE}, "d/v": {"w": BASE}, "m": {"w": BASE}})
    with pytest.raises(UnknownPath, match="there is no file n"):
        repo.commit(tmp_path / "n")
    repo.commit(tmp_path / "m")  # a state of Python that is named
    assert repo.manifest().by_path.keys() == {"d/w", "d/v"}
    with pytest.raises(NothingToCommit):
        repo.commit(tmp_path / "d")  # those in a folder stay
    repo.commit(states={"d/w": None})
    assert repo.manifest().by_path.keys() == {"d/v"}


def test_a_copy_of_a_state_without_a_file_is_no_new_name_of_it(repo, tmp_path):
    repo.commit({"w": BASE})
    repo.checkout(to=tmp_path / "copy.safetensors")
    status = repo.status()
    assert (status.untracked, [c.kind for c in status.changes]) == (
        ("copy.safetensors",), ["missing"],
    )  # fmt: skip
    with pytest.raises(NothingToCommit):
        repo.commit(files=mvc.FileOptions(all=True))


def test_a_state_and_its_file_have_one_root(repo, tmp_path):
    state = {"x.weight": torch.from_numpy(BASE), "x.bias": torch.arange(5)}
    torch.save(state, tmp_path / "m.pt")
    kept = repo.commit(state).root
    repo.checkout(to=tmp_path / "out.safetensors")
    with mvc.Repository.init(tmp_path / "other") as other:
        (tmp_path / "other/m.pt").write_bytes((tmp_path / "m.pt").read_bytes())
        (tmp_path / "other/m.safetensors").write_bytes((tmp_path / "out.safetensors").read_bytes())
        assert other.commit(tmp_path / "other/m.pt").root == kept
        other.commit(states={"m.pt": None})
        assert other.commit(tmp_path / "other/m.safetensors").root == kept


def full_versions(repo) -> str:
    """Of all versions, oldest first: F where all is stored in full."""
    log = list(repo.log("HEAD", mvc.LogOptions(reset_points=True)))[::-1]
    return "".join("F" if entry.reset_point else "." for entry in log)


def test_a_path_that_rests_does_not_make_each_version_of_another_full(tmp_path):
    """Its chain stays as long as it is: once, every commit was a reset point from then on."""
    mvc.Repository.init(tmp_path).close()
    (tmp_path / ".mvc" / "config.yaml").write_text("store:\n  reset_interval: 4\n")
    for step in range(4):
        with mvc.Repository.open(tmp_path) as repo:
            repo.commit({"a": near(step)}, path="rests.safetensors")
    stored = []
    for step in range(9):
        with mvc.Repository.open(tmp_path) as repo:  # nothing in memory says how deep chains are
            made = repo.commit({"b": near(step)[:, :100]}, path="moves.safetensors")
            stored.append(made.stored_bytes)
    assert [size > 0.95 * stored[0] for size in stored] == [step % 4 == 0 for step in range(9)]


def test_a_version_without_a_change_behind_a_reset_point_is_one_too_and_costs_nothing(repo):
    """All it holds is stored in full, which is what makes a reset point; nothing is, twice.

    So it goes with lossy pipelines that hold weights: production weights stay as they are while
    a counter moves on, of which no delta is smaller.
    """
    for step in range(3):
        repo.commit({"w": near(step), "n": np.array(step)})
    repo.commit({"w": near(3), "n": np.array(3)}, options=CommitOptions(reset_point=True))
    after = repo.commit({"w": near(3), "n": np.array(4)})
    repo.commit({"w": near(4), "n": np.array(5)})
    assert full_versions(repo) == "F..FF."
    assert after.stored_bytes < 1000


def test_behind_a_reset_point_production_weights_are_deltas_or_the_same(repo):
    weights = np.random.default_rng(1).standard_normal((64, 64)).astype(np.float32)
    made = []
    for step in range(12):
        weights = weights + np.float32(1e-3)
        made.append(
            repo.commit(
                {"w": weights},
                pipeline="frontier-0",
                options=CommitOptions(reset_point=step % 6 == 0),
            )
        )
    full = [entry.stored_bytes for entry in made[::6]]
    for i, entry in enumerate(made):
        assert i % 6 == 0 or entry.stored_bytes < 0.8 * min(full)


def test_without_a_delta_stage_no_base_is_read(tmp_path):
    """With ``none`` hashes say what changed (MMlib's U'_P): the tensors of the base stay unread."""
    state = {f"layer.{i}": np.random.default_rng(i).random(9000, np.float32) for i in range(30)}
    names = [list(state)[:1], list(state)]
    reads: list[int] = []
    with mvc.Repository.init(tmp_path) as repo:
        repo.commit(state, pipeline="none")
    for changed in names:
        state = state | {name: state[name] + np.float32(1) for name in changed}
        seen: list[str] = []
        fs = HookedFS(lambda _, op, path, seen=seen: seen.append(f"{op} {path.suffix}"))
        with mvc.Repository.open(tmp_path, fs=fs) as repo:
            seen.clear()
            repo.commit(state, pipeline="none")
        reads.append(sum(each.startswith("read") and each.endswith(".pack") for each in seen))
    one, every = reads
    assert every <= one + 5


@pytest.mark.parametrize(("first", "room"), [(False, 500_000), (True, 500_000)])
def test_a_commit_that_finds_no_space_gives_back_what_it_took(tmp_path, monkeypatch, first, room):
    """Else the disk stays full, and not even a rollback could be recorded."""
    random = np.random.default_rng(0)
    write = os.pwritev

    def full(descriptor: int, views: list, offset: int) -> int:
        nonlocal room
        if room <= 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        count = write(descriptor, [memoryview(view)[:room] for view in views][:1], offset)
        room -= count
        return count

    with mvc.Repository.init(tmp_path) as repo:
        made = None if first else repo.commit({"w": random.standard_normal(100)}).id
        packs = tmp_path / ".mvc" / "packs"
        before = {file.name: file.read_bytes() for file in packs.iterdir()}
        monkeypatch.setattr(os, "pwritev", full)
        with pytest.raises(StorageFull):
            repo.commit({"w": random.standard_normal(200_000)})
        monkeypatch.undo()
        assert {file.name: file.read_bytes() for file in packs.iterdir()} == before
        last = repo.commit({"w": random.standard_normal(100)}).id
        assert [entry.id for entry in repo.log()] == ([last] if first else [last, made])
        assert repo.storage.fsck(full=True).sound
