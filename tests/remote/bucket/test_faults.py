"""Each operation of the store fails once, before or after its effect: whole before, whole after."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import timedelta
from itertools import count
from pathlib import Path

import pytest

from mvc.errors import MvcError
from mvc.testing import Killed
from tests.remote.bucket.faults import Aged, Failing, Fault
from tests.remote.bucket.kit import Team, messages
from tests.remote.kit.same import assert_clean

DAY = 24 * 3600 * 10**9
LONG = "x" * 7000
"""A message that makes the head too small for the third version."""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A bucket with two versions, and ada, who has a third one."""
    folder = tmp_path_factory.mktemp("built")
    (folder / "bucket").mkdir()
    with pytest.MonkeyPatch.context() as patch:
        team = Team(folder, f"bucket:{folder / 'bucket'}", patch)
        for step in range(2):
            team.commit("ada", step, f"{step} {LONG}")
        team.push("ada")
        team.fetch("bob")
        team.commit("ada", 2, f"2 {LONG}")
        team.close()
    yield folder


@pytest.fixture
def fresh(
    built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[], Team]]:
    """Makes a copy of it."""
    teams: list[Team] = []

    def make() -> Team:
        folder = tmp_path / str(len(teams))
        shutil.copytree(built, folder)
        teams.append(Team(folder, f"bucket:{folder / 'bucket'}", monkeypatch))
        return teams[-1]

    yield make
    for team in teams:
        team.close()


def each_failure(
    fresh: Callable[[], Team],
    act: Callable[[Team], object],
    check: Callable[[Team, bool], None],
    every: int = 1,
    *,
    kills: bool = False,
) -> list[str]:
    """Runs ``act`` with the first operation failing, then with the second one, and so on.

    ``check`` gets the team, and whether the error reached the caller. Which operations failed.
    """
    failed = []
    for after in (False, True):
        for number in count(1 + after * every // 2, every):
            team, fault = fresh(), Fault(number, after=after, kills=kills)
            raised = False
            with team.wrapped(lambda objects, fault=fault: Failing(objects, fault)):
                try:
                    act(team)
                except (MvcError, Killed):
                    raised = True
            if not fault.failed:
                assert not raised
                break
            failed.append(fault.failed)
            check(team, raised)
            team.close()
    return failed


def first_words(team: Team, name: str) -> list[str]:
    return [text[:1] for text in messages(team[name], "origin/main")]


@pytest.mark.parametrize("kills", [False, True])
def test_push(fresh: Callable[[], Team], kills: bool) -> None:
    def check(team: Team, raised: bool) -> None:
        team.fetch("carol")
        before = first_words(team, "carol")
        assert before in (["1", "0"], ["2", "1", "0"])
        assert raised or before == ["2", "1", "0"]
        assert_clean(team["carol"])
        team.push("ada")
        team.fetch("bob")
        assert first_words(team, "bob") == ["2", "1", "0"]
        assert_clean(team["bob"])

    failed = each_failure(fresh, lambda team: team.push("ada"), check, kills=kills)
    assert set(failed) == {"look head", "write packs", "write journal", "swap head"}


def test_fetch(fresh: Callable[[], Team]) -> None:
    def act(team: Team) -> None:
        shutil.rmtree(team.mirror("bob"))
        team.fetch("carol")
        team.fetch("bob")

    def check(team: Team, raised: bool) -> None:
        assert raised
        team.push("ada")
        for name in ("bob", "carol"):
            team.fetch(name)
            assert first_words(team, name) == ["2", "1", "0"]
            assert_clean(team[name])

    assert set(each_failure(fresh, act, check)) == {"look head", "range packs"}


@pytest.mark.parametrize("every", [13, pytest.param(1, marks=pytest.mark.long)])
def test_gc(fresh: Callable[[], Team], every: int) -> None:
    """It forgets a state and collects it; later what it dropped is deleted from the bucket."""

    def aged(team: Team) -> None:
        inner = team.wrap
        with team.wrapped(lambda objects: inner(Aged(objects, 15 * DAY))):
            team.maintain("bob", lambda repo: repo.storage.gc(grace=timedelta(0)))

    def collect(team: Team) -> None:
        team.maintain("bob", lambda repo: repo.storage.forget(keep_last=1))
        team.maintain("bob", lambda repo: repo.storage.gc(grace=timedelta(0)))
        aged(team)

    def check(team: Team, raised: bool) -> None:
        assert team.problems("ada") == ()
        team.push("ada")
        team.fetch("carol")
        assert first_words(team, "carol") == ["2", "1", "0"]
        assert_clean(team["carol"])
        collect(team)
        assert team.problems("bob") == ()

    failed = each_failure(fresh, collect, check, every)
    expected = {"look head", "swap head", "write packs", "write dropped", "list packs"}
    assert every > 1 or expected | {"read dropped", "delete dropped"} <= {*failed}


DIES = """
import os, sys
from mvc.api.repository import Repository
from mvc.remote.transports.bucket.objects import FolderObjects
from mvc.remote.push import push
from mvc.remote.remotes import find_remote

root, name, after = sys.argv[1:]
real = getattr(FolderObjects, name)

def dies(self, *arguments):
    if after == "True":
        real(self, *arguments)
    os._exit(9)

setattr(FolderObjects, name, dies)
with Repository.open(root) as repo:
    push(repo.handle.store, repo.handle.config, find_remote(repo.handle.store))
"""


@pytest.mark.parametrize(
    ("name", "after"),
    [
        pytest.param("write", False, marks=pytest.mark.long),
        pytest.param("write", True, marks=pytest.mark.long),
        pytest.param("swap", False, marks=pytest.mark.long),
        ("swap", True),
    ],
)
def test_the_next_process_goes_on_after_a_killed_one(
    folder_team: Team, name: str, after: bool
) -> None:
    team = folder_team
    team.commit("ada", 0)
    team.push("ada")
    team.commit("ada", 1)
    team.close()
    killed = [sys.executable, "-c", DIES, str(team.folder / "ada"), name, str(after)]
    assert subprocess.run(killed).returncode == 9
    team.fetch("carol")
    there = ["ada 1", "ada 0"] if (name, after) == ("swap", True) else ["ada 0"]
    assert messages(team["carol"], "origin/main") == there
    team.commit("ada", 2)
    team.push("ada")
    team.fetch("bob")
    assert messages(team["bob"], "origin/main") == ["ada 2", "ada 1", "ada 0"]
    assert_clean(team["bob"])
    assert team.problems("ada") == ()
