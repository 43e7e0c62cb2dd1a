"""Many processes at one bucket: all succeed or are refused by name, and no commit is lost."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.remote.bucket.kit import Team, messages
from tests.remote.kit.same import assert_clean

PUSHER = """
import sys
from mvc.api.repository import Repository
from mvc.remote.push import push
from mvc.remote.remotes import find_remote
from tests.remote.bucket.kit import state
root, pushes = sys.argv[1], int(sys.argv[2])
with Repository.open(root) as repo:
    for step in range(1, pushes + 1):
        repo.commit(state(step, 500), message=f"{repo.root.name} {step}")
        store, config = repo.handle.store, repo.handle.config
        push(store, config, find_remote(store), [repo.root.name])
"""

COLLECTOR = """
import sys
from datetime import timedelta
from mvc.api.repository import Repository
with Repository.open(sys.argv[1]) as repo:
    for _ in range(int(sys.argv[2])):
        repo.remotes.maintain("origin", lambda there: there.storage.gc(grace=timedelta(0)))
"""


def python(code: str, *arguments: object) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", code, *map(str, arguments)])


def run(team: Team, pushers: int, pushes: int, collections: int) -> None:
    names = [f"p{i}" for i in range(pushers)]
    for name in names:
        team.commit(name, 0)
        team[name].branch(name)
        team[name].switch(name)
    team.commit("keeper", 0)
    team.push("keeper")
    team.close()
    running = [python(PUSHER, team.folder / name, pushes) for name in names]
    running.append(python(COLLECTOR, team.folder / "keeper", collections))
    assert [process.wait(timeout=300) for process in running] == [0] * len(running)
    for reader in ("reader", "keeper"):
        team.fetch(reader)
        for name in names:
            expected = [f"{name} {step}" for step in reversed(range(pushes + 1))]
            assert messages(team[reader], f"origin/{name}") == expected
        assert_clean(team[reader])
    assert team.problems("keeper") == ()


def test_two_pushers_beside_a_gc(folder_team: Team) -> None:
    run(folder_team, 2, 3, 2)


@pytest.mark.long
def test_sixteen_pushers_beside_a_gc(folder_team: Team) -> None:
    run(folder_team, 16, 3, 4)


@pytest.mark.long
def test_pushers_beside_a_gc_in_s3(
    tmp_path: Path, s3: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    team = Team(tmp_path, s3, monkeypatch)
    run(team, 4, 3, 3)
    team.close()
