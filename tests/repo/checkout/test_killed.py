"""Killed checkouts: HEAD and the files are of one version, wherever the files lie."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

from mvc.api.repository import Repository
from mvc.errors import IoFailed
from mvc.system import FileSystem
from mvc.testing import fresh_process, killed
from tests.cli.program import spawn
from tests.counters import count
from tests.faults.crashfs import CrashFS
from tests.repo.checkout.test_together import (
    SHARDS,
    World,
    calls_of,
    held,
    nth,
    on,
    restore_in,
    world,
)
from tests.seeds import draw

__all__ = ["world"]


@pytest.mark.parametrize("points", [25, pytest.param(1000, marks=pytest.mark.long)])
def test_head_follows_a_killed_checkout(world: World, tmp_path: Path, points: int) -> None:
    """Kills the way from the first version to the second, which has a file of its own."""
    with Repository.open(world.copy(tmp_path / "first")) as repo:
        repo.checkout(world.ids[0], to=repo.root)
    first = tmp_path / "first"
    total = calls_of(restore_in(shutil.copytree(first, tmp_path / "counted"), world.ids[1]))
    rng = draw("killed checkouts and HEAD")
    completed = kept = 0
    for at in sorted(rng.sample(range(1, total + 1), min(points, total))):
        root = shutil.copytree(first, tmp_path / "models")
        assert killed(restore_in(root, world.ids[1]), nth(at))
        fresh_process()
        with Repository.open(root) as repo:
            now = world.version(root)
            assert str(repo.find()) == world.ids[now], f"HEAD is not what lies there, call {at}"
            assert repo.status().clean
            repo.checkout(world.ids[0], force=True, to=repo.root)
        assert world.version(root) == 0, f"files of the other version stay, call {at}"
        completed, kept = completed + (now == 1), kept + (now == 0)
        shutil.rmtree(root)
    count("killed checkouts, HEAD", calls=total, old_version=kept, new_version=completed)
    assert kept and completed


def test_only_head_was_left_to_move(world: World, tmp_path: Path) -> None:
    """Every file is in place; the process dies before it writes into the journal."""
    root = world.copy(tmp_path / "models")

    assert killed(restore_in(root, world.ids[0]), on("write", "journal"))
    assert world.version(root) == 0
    first = spawn("status", cwd=root)
    assert first.stderr.splitlines()[0].endswith("an interrupted checkout: HEAD moved")
    assert spawn("status", cwd=root).stderr == ""
    with Repository.open(root) as repo:
        assert str(repo.find()) == world.ids[0] and repo.status().clean


def test_what_was_replaced_is_said_and_that_head_moved(world: World, tmp_path: Path) -> None:
    root = world.copy(tmp_path / "models")
    assert killed(restore_in(root, world.ids[0]), on("replace", SHARDS[2]))
    assert spawn("status", cwd=root).stderr.splitlines()[0].endswith(
        f"{SHARDS[2]} replaced; HEAD moved"
    )  # fmt: skip


def test_a_killed_switch_to_a_new_branch_makes_it(world: World, tmp_path: Path) -> None:
    root = world.copy(tmp_path / "models")

    def act(fs: object) -> None:
        fresh_process()
        with Repository.open(root, fs=fs) as repo:  # type: ignore[arg-type]
            repo.switch("side", create=True, start=world.ids[0])

    kept = shutil.copytree(root, tmp_path / "kept")
    total = calls_of(act)
    shutil.rmtree(root)
    seen = set()
    for at in range(total // 2, total + 1, 7):
        shutil.copytree(kept, root)
        assert killed(act, nth(at))
        with Repository.open(root) as repo:
            now = world.version(root)
            names = [branch.name for branch in repo.refs()]
            assert str(repo.find()) == world.ids[now] and ("side" in names) == (now == 0)
            seen.add(now)
        shutil.rmtree(root)
    assert seen == {0, 1}


@pytest.mark.parametrize("points", [25, pytest.param(1000, marks=pytest.mark.long)])
def test_a_killed_checkout_elsewhere_leaves_one_version(
    world: World, tmp_path: Path, points: int
) -> None:
    """Kills a checkout into a folder outside: the next command ends it, with ``delete``, too."""
    root = world.copy(tmp_path / "models")
    output = tmp_path / "served"
    act = restore_in(root, world.ids[0], to=output, force=True, delete=True)
    shutil.copytree(root, output, ignore=shutil.ignore_patterns(".mvc"))
    total = calls_of(act)
    rng = draw("killed checkouts elsewhere")
    seen = set()
    drawn = rng.sample(range(1, total + 1), min(points, total))
    behind = rng.randrange(total - total // 10, total - 3)  # after the new version is decided
    for at in sorted({*drawn, behind}):
        shutil.rmtree(output)
        shutil.copytree(world.root, output, ignore=shutil.ignore_patterns(".mvc"))
        if not killed(act, nth(at)):
            continue  # one call fewer than counted
        fresh_process()
        with Repository.open(root) as repo:
            assert str(repo.find()) == world.ids[1]
        now = world.version(output)
        assert now >= 0, f"a mixture, or temporary files, after a kill at call {at}"
        assert not list((root / ".mvc").glob("checkouts/*"))
        seen.add(now)
    count("killed checkouts elsewhere", calls=total, mixtures=0)
    assert seen == {0, 1}


def test_undo_after_a_killed_checkout_takes_back_that_or_nothing(
    world: World, tmp_path: Path
) -> None:
    """While a file of it is waiting, it is the checkout that undo is about, never a commit."""
    total = calls_of(restore_in(world.copy(tmp_path / "counted"), world.ids[0]))
    seen = dict.fromkeys(["begun", "ready", "done"], 0)
    for at in (total * share // 100 for share in (50, 70, 80, 82, 96)):
        root = world.copy(tmp_path / "models")
        assert killed(restore_in(root, world.ids[0]), nth(at))
        waiting = any(root.rglob(".mvc-tmp-*"))
        done = spawn("undo", cwd=root)
        fresh_process()
        with Repository.open(root) as repo:
            newest = next(repo.operations()).entry.operation
            if done.returncode:
                seen["begun"] += 1
                assert waiting and newest == "commit" and world.version(root) == 1
                assert done.stderr.splitlines()[-2:] == [
                    "mvc: the interrupted checkout was cancelled; nothing else was undone",
                    "hint: repeat 'mvc undo' to undo the newest operation of 'mvc undo --list', "
                    "too",
                ]
                assert repo.status().clean
                assert spawn("undo", cwd=root).stdout.startswith("Undid operation 2 (commit)")
            elif waiting or world.version(root) == 0:
                seen["ready" if waiting else "done"] += 1
                assert done.stdout.startswith("Undid operation 3 (checkout)")
                assert str(repo.find()) == world.ids[1] and world.version(root) == 0
            for version, id_ in zip(world.versions, world.ids, strict=True):
                repo.checkout(id_, to=tmp_path / "out")
                assert held(tmp_path / "out") == version
                shutil.rmtree(tmp_path / "out")
        shutil.rmtree(root)
    assert all(seen.values()), seen


def _forgets(op: str, path: Path) -> bool:
    """Whether a plan is about to be deleted; locks, which lie there as well, are empty."""
    return op == "unlink" and path.parent.name == "checkouts" and path.stat().st_size > 0


def _check_taken_back(world: World, root: Path) -> None:
    with Repository.open(root) as repo:
        assert str(repo.find()) == world.ids[1] and not repo.interrupted.moved_head
    assert not list(root.rglob(".mvc-tmp-*")) and not list((root / ".mvc").glob("checkouts/*"))


def test_head_stays_when_a_checkout_was_taken_back_by_half(world: World, tmp_path: Path) -> None:
    """Whoever takes it back is killed as well, before the plan is gone."""
    root = world.copy(tmp_path / "models")
    assert killed(restore_in(root, world.ids[0]), on("replace", SHARDS[0]))
    (root / SHARDS[0]).write_bytes(b"mine")

    def take_back(fs: FileSystem) -> None:
        Repository.open(root, fs=fs).close()

    assert killed(take_back, lambda _, op, path: _forgets(op, path))
    assert not list(root.rglob(".mvc-tmp-*"))
    _check_taken_back(world, root)


def test_head_stays_when_a_checkout_failed_as_it_got_ready(world: World, tmp_path: Path) -> None:
    root = world.copy(tmp_path / "models")

    def when(_: int, op: str, path: Path) -> bool:
        if op == "sync_dir" and path.name == "checkouts":
            raise IoFailed("the disk fails")
        return _forgets(op, path)

    assert killed(restore_in(root, world.ids[0]), when)
    assert not list(root.rglob(".mvc-tmp-*"))
    _check_taken_back(world, root)


def test_a_power_loss_repeats_no_checkout_that_was_undone(world: World, tmp_path: Path) -> None:
    root = world.copy(tmp_path / "models")
    fs = CrashFS(root)
    with Repository.open(root, fs=fs) as repo:
        repo.checkout(world.ids[0], to=root)
        repo.undo()
    for seed in range(12):
        image = tmp_path / "image"
        fs.image(fs.crash_points(), random.Random(seed), image)
        fresh_process()
        with Repository.open(image) as repo:
            assert str(repo.find()) == world.ids[1]
        shutil.rmtree(image)
