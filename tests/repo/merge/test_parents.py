"""What knows several parents: log, revisions, remotes, gc, repack, forget, undo, backup, report."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest

import mvc
from mvc.api import Repository, restore
from mvc.errors import RefConflict, StateForgotten
from tests.cli.program import spawn
from tests.remote.kit.team import Team
from tests.repo.merge.test_merge import FIRST, diverged, equal, full

MERGED = {**FIRST, "a": full(2), "b": full(5, "b")}


@pytest.fixture
def merged(repo: Repository) -> Repository:
    """Base, one version on each branch, and their merge on main."""
    diverged(repo, {"a": full(1)}, {"a": full(3), "b": full(5, "b")})
    repo.merge("side", strategy="mean")
    return repo


@pytest.fixture
def team(tmp_path: Path) -> Iterator[Team]:
    made = Team(tmp_path, {"first": FIRST})
    yield made
    made.close()


def sound(repo: Repository) -> bool:
    return repo.storage.fsck(full=True).sound


def test_the_log_draws_both_lines(merged: Repository) -> None:
    lines = spawn("log", "--graph", "--oneline", cwd=merged.root).stdout.splitlines()
    drawn = [line[: len(line) - len(line.lstrip("*|/\\ "))].rstrip() for line in lines]
    assert drawn == ["*", "|\\", "* |", "| *", "|/", "*"]
    assert [e.commit.message for e in merged.log()] == ["merge side", "main", "side", "base"]
    assert {e.id for e in merged.log("HEAD^2")} < {e.id for e in merged.log("main")}
    shown = spawn("show", cwd=merged.root).stdout
    assert f"{merged.find('HEAD^1').short} {merged.find('HEAD^2').short}" in shown


def test_parents_by_number(merged: Repository) -> None:
    main, side = merged.version("HEAD").parents
    assert (merged.find("HEAD^1"), merged.find("HEAD^2"), merged.find("HEAD^")) == (
        main,
        side,
        main,
    )
    assert merged.find("HEAD^2~1") == merged.find("HEAD~2")
    assert [e.id for e in merged.log("side..main")] == [merged.find(), main]


def test_pull_of_branches_that_went_apart_names_the_merge(team: Team) -> None:
    theirs = team.ada.commit({**FIRST, "a": full(1)}).id
    team.ada.push()
    ours = team.bob.commit({**FIRST, "b": full(5, "b")}).id
    with pytest.raises(RefConflict, match="have diverged") as caught:
        team.bob.pull()
    assert "'mvc merge origin/main'" in (caught.value.hint or "")
    made = team.bob.merge("origin/main")
    assert team.bob.version("HEAD").parents == (ours, theirs)
    assert team.bob.push().versions == 2 and team.server.find("main") == made.new
    assert team.ada.pull().new == made.new
    assert equal(team.ada.checkout(), {**FIRST, "a": full(1), "b": full(5, "b")})
    assert all(map(sound, (team.server, team.bob, team.ada)))


def test_push_and_clone_bring_both_lines(team: Team) -> None:
    """A merge of a branch that the remote has never had."""
    diverged(team.ada, {"a": full(1)}, {"b": full(5, "b")})
    side = team.ada.find("side")
    team.ada.merge("side")
    team.ada.push()
    with mvc.clone(team.url, team.root / "new") as new:
        assert new.find("HEAD^2") == side and [r.name for r in new.refs()] == ["main"]
        assert equal(new.checkout("HEAD^2"), {**FIRST, "b": full(5, "b")})
        assert equal(new.checkout(), {**FIRST, "a": full(1), "b": full(5, "b")})
        assert sound(new)
    with team.clone("last", states="last:1") as few:
        assert equal(few.checkout(), {**FIRST, "a": full(1), "b": full(5, "b")}) and sound(few)


def test_a_lazy_clone_fetches_what_it_merges(team: Team) -> None:
    diverged(team.ada, {"a": full(1)}, {"b": full(5, "b")})
    team.ada.push(every=True)
    lazy = team.clone("lazy", "none", lazy="true")
    done = lazy.merge("origin/side")
    assert lazy.find() == done.new and sound(lazy)
    assert equal(lazy.checkout(), {**FIRST, "a": full(1), "b": full(5, "b")})


def test_gc_keeps_what_only_the_second_parent_leads_to(merged: Repository) -> None:
    side = merged.find("side")
    merged.delete_ref("branch", "side")  # which is not refused: main leads to it
    merged.storage.gc(grace=timedelta())
    assert equal(merged.checkout(side), {**FIRST, "a": full(3), "b": full(5, "b")})
    assert equal(merged.checkout(), MERGED) and sound(merged)


def test_gc_collects_an_undone_merge(merged: Repository) -> None:
    made = merged.find()
    done = merged.undo()
    assert done.operation.entry.operation == "merge"
    assert merged.find() == done.after.commit != made and merged.find("side")
    merged.storage.gc(grace=timedelta())
    assert len(list(merged.log())) == 2 and sound(merged)
    merged.checkout("HEAD", to=merged.root, force=True)
    again = merged.merge("side", strategy="mean")
    assert again.new == merged.find() and equal(merged.checkout(), MERGED)


def test_repack_keeps_both_lines(merged: Repository) -> None:
    versions = [entry.id for entry in merged.log()]
    before = [merged.checkout(each) for each in versions]
    for options in ({"interval": 2}, {"max_recovery": 1.0}, {"interval": 1}):
        merged.storage.repack(**options)
        states = [merged.checkout(each) for each in versions]
        assert all(map(equal, states, before)) and sound(merged)


@pytest.mark.parametrize("which", ["HEAD^1", "HEAD^2"])
def test_a_parent_is_forgotten(merged: Repository, which: str) -> None:
    parent = merged.find(which)
    merged.branch("main2", "HEAD")
    merged.storage.forget([parent], reason="test")
    merged.storage.gc(grace=timedelta())
    with pytest.raises(StateForgotten):
        merged.checkout(parent)
    assert equal(merged.checkout(), MERGED) and sound(merged)
    assert parent in {entry.id for entry in merged.log()}


def test_a_merge_with_a_forgotten_base_is_refused(repo: Repository) -> None:
    diverged(repo, {"a": full(1)}, {"b": full(5, "b")})
    repo.storage.forget([repo.find("HEAD~1")], reason="test")
    before = repo.find()
    with pytest.raises(StateForgotten):
        repo.merge("side")
    assert repo.find() == before


def test_a_backup_has_both_lines(merged: Repository, tmp_path: Path) -> None:
    merged.storage.backup(tmp_path / "backup")
    restore(tmp_path / "backup", tmp_path / "again")
    with Repository.open(tmp_path / "again") as again:
        assert again.version("HEAD").parents == merged.version("HEAD").parents
        assert equal(again.checkout("HEAD^2"), merged.checkout("side")) and sound(again)


def test_the_report_and_the_history_have_merges(merged: Repository, tmp_path: Path) -> None:
    merged.commit({**MERGED, "a": full(7)}, message="after")
    page = tmp_path / "page.html"
    done = spawn("report", "-o", str(page), cwd=merged.root)
    assert done.returncode == 0 and "merge side" in page.read_text(encoding="utf-8")
    states = [state["a"][0] for _, state in merged.iter_versions()]
    assert np.float32(2) in states and np.float32(7) in states
    assert spawn("stats", "--versions", cwd=merged.root).returncode == 0
    diffed = merged.diff("HEAD~1^2", "HEAD~1")
    assert [row.key for file in diffed.files for row in file.tensors if not row.same] == ["a"]
