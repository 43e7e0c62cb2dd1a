"""A remote in a bucket: push, fetch, round trips, and what a client keeps of it."""

from __future__ import annotations

import os
import shutil
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from mvc.errors import (
    HistoryMissing,
    MvcError,
    RefConflict,
    RemoteRefused,
    RemoteUnreachable,
)
from mvc.remote.transports.bucket.layout import MAX_HEAD
from mvc.remote.transports.bucket.transport import open_bucket
from tests.remote.bucket.faults import Passing, Unconditional
from tests.remote.bucket.kit import Team, messages, state
from tests.remote.kit.same import assert_clean, assert_same


def counted(team: Team) -> list[Passing]:
    """The stores that are opened from now on."""
    opened: list[Passing] = []

    def wrap(objects):
        opened.append(Passing(objects))
        return opened[-1]

    team.wrap = wrap
    return opened


def calls(opened: list[Passing]) -> list[str]:
    found = [call for each in opened for call in each.calls]
    opened.clear()
    return found


def test_what_one_pushes_the_other_fetches(team: Team) -> None:
    for step in range(4):
        team.commit("ada", step)
    team["ada"].tag("first", "HEAD")
    team.push("ada")
    team.fetch("bob")
    bob = team["bob"]
    assert messages(bob, "origin/main") == messages(team["ada"])
    assert_same(team["ada"], bob)


def test_round_trips(team: Team) -> None:
    opened = counted(team)
    team.commit("ada", 0)
    team.push("ada")
    assert calls(opened) == ["look head", "write packs", "swap head"]
    team.commit("ada", 1)
    team.push("ada")
    assert calls(opened) == ["look head", "write packs", "swap head"]
    team.fetch("bob")
    assert sorted(set(calls(opened))) == ["look head", "range packs"]
    team.commit("ada", 2)
    team.push("ada")
    calls(opened)
    team.fetch("bob")
    assert calls(opened) == ["look head", "range packs"]
    team.fetch("bob")
    assert calls(opened) == ["look head"]
    team.push("ada")
    assert calls(opened) == ["look head"]


def test_round_trips_are_the_same_after_many_pushes(folder_team: Team) -> None:
    opened = counted(folder_team)
    most = 0
    for step in range(30):
        folder_team.commit("ada", step, f"{step} {1000 * 'x'}")
        folder_team.push("ada")
        made = calls(opened)
        assert made[0] == "look head"
        assert made[-1] == "swap head"
        assert set(made[1:-1]) <= {"write packs", "write journal"}  # at the same time
        most = max(most, len(made))
    assert most == 4
    heads = folder_team.folder / "bucket/head"
    assert max(path.stat().st_size for path in heads.iterdir()) <= MAX_HEAD
    folder_team.fetch("bob")
    assert len(messages(folder_team["bob"], "origin/main")) == 30


def test_a_push_reads_no_weights_from_the_bucket(folder_team: Team) -> None:
    """Bases of what is pushed are read in the client's own repository."""
    for step in range(3):
        folder_team.commit("ada", step)
    folder_team.push("ada")
    folder_team.fetch("bob")
    folder_team["bob"].checkout("origin/main")
    opened = counted(folder_team)
    folder_team.commit("ada", 4)
    folder_team.push("ada")
    assert "range packs" not in calls(opened)


def test_a_mirror_holds_headers_only(folder_team: Team) -> None:
    random = np.random.default_rng(1)
    folder_team["ada"].commit({"w": random.standard_normal(1 << 19)}, message="large")
    folder_team.push("ada")
    packs = list(folder_team.mirror("ada").rglob("*.pack"))
    assert sum(path.stat().st_size for path in packs) > 3 << 20
    assert sum(512 * path.stat().st_blocks for path in packs) < 64 << 10


def test_others_pushed_first(team: Team) -> None:
    team.commit("ada", 0)
    team.push("ada")
    team.fetch("bob")
    team["bob"].checkout("origin/main")
    team.commit("ada", 1)
    team.push("ada")
    team["bob"].commit(state(7), message="bob's own")
    with pytest.raises(RefConflict):
        team.push("bob", "main")
    team.fetch("bob")
    assert messages(team["bob"], "origin/main")[0] == "ada 1"


def overtaken_by_ada(team: Team) -> tuple[type[Passing], list[Passing]]:
    """Objects before whose first swap ada pushes, and the ones at which that happened."""
    opened: list[Passing] = []

    class Overtaken(Passing):
        def swap(self, name: str, data: bytes, known: str) -> str | None:
            if not opened:
                opened.append(self)
                team.wrap = lambda objects: objects
                team.push("ada")
            return super().swap(name, data, known)

    return Overtaken, opened


def test_a_lost_race_begins_again_on_what_is_there(team: Team) -> None:
    """Between bob's look and his swap ada pushes another branch."""
    team.commit("ada", 0)
    team.push("ada")
    team["bob"].commit(state(9), message="bob's")
    team["bob"].branch("bobs")
    team.commit("ada", 1)
    overtaken, opened = overtaken_by_ada(team)
    with team.wrapped(overtaken):
        team.push("bob", "bobs")
    made = opened[0].calls
    assert [call for call in made if call.endswith("head")] == [
        "look head", "swap head", "look head", "swap head",
    ]  # fmt: skip
    assert made.count("write packs") <= 2
    team.fetch("carol")
    assert messages(team["carol"], "origin/bobs") == ["bob's"]
    assert messages(team["carol"], "origin/main") == ["ada 1", "ada 0"]
    assert_clean(team["carol"])


def test_an_answer_that_was_lost_is_settled_by_the_head(team: Team) -> None:
    team.commit("ada", 0)

    class Lost(Passing):
        def swap(self, name: str, data: bytes, known: str) -> str | None:
            super().swap(name, data, known)
            raise RemoteUnreachable("the answer was lost")

    with team.wrapped(Lost):
        assert team.push("ada").versions == 1
    team.commit("ada", 1)
    team.push("ada")
    team.fetch("bob")
    assert messages(team["bob"], "origin/main") == ["ada 1", "ada 0"]


def test_a_mirror_that_is_deleted_is_made_again(team: Team) -> None:
    team.commit("ada", 0)
    team.push("ada")
    shutil.rmtree(team.mirror("ada"))
    team.commit("ada", 1)
    team.push("ada")
    team.fetch("bob")
    assert messages(team["bob"], "origin/main") == ["ada 1", "ada 0"]


FILES = ("seen", ".mvc/journal", ".mvc/format", ".mvc/packs", ".mvc/index.lmdb")
WAYS = ("gone", "torn", "garbled")
SHORT = {("seen", "torn"), (".mvc/journal", "torn"), (".mvc/packs", "garbled")}


@pytest.mark.parametrize(
    ("name", "how"),
    [
        pytest.param(name, how, marks=[] if (name, how) in SHORT else pytest.mark.long)
        for name in FILES
        for how in WAYS
    ],
)
def test_a_mirror_that_is_damaged_is_made_again(folder_team: Team, name: str, how: str) -> None:
    team = folder_team
    for step in range(3):
        team.commit("ada", step)
        team.push("ada")
    damage(team.mirror("ada") / name, how)
    team.commit("ada", 3)
    team.push("ada")
    shutil.rmtree(team.mirror("bob"), ignore_errors=True)
    team.fetch("bob")
    assert messages(team["bob"], "origin/main") == ["ada 3", "ada 2", "ada 1", "ada 0"]
    assert team.problems("ada") == ()


def damage(path: Path, how: str) -> None:
    files = [path] if path.is_file() else [p for p in path.rglob("*") if p.is_file()]
    for file in files:
        data = file.read_bytes()
        if how == "gone":
            file.unlink()
        elif how == "torn":
            os.truncate(file, len(data) // 2)
        else:
            file.write_bytes(bytes(byte ^ 0x55 for byte in data[:5000]) + data[5000:])


def test_a_bucket_that_was_emptied(team: Team, url: str) -> None:
    team.commit("ada", 0)
    team.push("ada")
    from tests.remote.bucket.conftest import opened

    opened(url).delete(["head"])
    with pytest.raises(HistoryMissing, match="is empty, but contained a repository before"):
        team.fetch("ada")


def test_a_bucket_that_was_put_back(folder_team: Team) -> None:
    """Somebody restores an old copy of the folder."""
    team = folder_team
    team.commit("ada", 0)
    team.push("ada")
    shutil.copytree(team.folder / "bucket", team.folder / "copy")
    team.commit("ada", 1)
    team.push("ada")
    team.fetch("ada")
    shutil.rmtree(team.folder / "bucket")
    (team.folder / "copy").rename(team.folder / "bucket")
    with pytest.raises(HistoryMissing, match="rolled back"):
        team.fetch("ada")


def test_an_empty_bucket(team: Team) -> None:
    assert team.fetch("bob").updates == ()
    team.commit("ada", 0)
    team.push("ada")
    team.fetch("bob")
    assert messages(team["bob"], "origin/main") == ["ada 0"]


def test_two_make_a_bucket_at_once(folder_team: Team) -> None:
    """Of two first pushes one makes the bucket; the other one goes on in it."""
    team = folder_team
    team.commit("ada", 0)
    team["bob"].commit(state(1), message="bob's")
    team["bob"].branch("bobs")
    with team.wrapped(overtaken_by_ada(team)[0]):
        team.push("bob", "bobs")
    team.fetch("carol")
    assert messages(team["carol"], "origin/main") == ["ada 0"]
    assert messages(team["carol"], "origin/bobs") == ["bob's"]
    team.fetch("bob")


def test_a_folder_that_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    team = Team(tmp_path, f"bucket:{tmp_path / 'absent'}", monkeypatch)
    team.commit("ada", 0)
    with pytest.raises(RemoteUnreachable, match="there is no folder"):
        team.push("ada")
    (tmp_path / "absent").mkdir()
    team.push("ada")
    team.close()


def test_errors_name_no_key(team: Team, s3: str) -> None:
    team.url = s3.replace("bucket-", "absent-")
    team.commit("ada", 0)
    with pytest.raises(MvcError) as raised:
        team.push("ada")
    assert "a-secret" not in f"{raised.value} {raised.value.hint}"


def test_two_transports_of_one_repository(folder_team: Team) -> None:
    """The second one has a mirror of its own, and both see what was pushed."""
    team = folder_team
    team.commit("ada", 0)
    team.push("ada")
    with closing(open_bucket(team.remote, *team.opened("ada"))) as first:
        before = first.head().place
        team.commit("ada", 1)
        team.push("ada")
        assert first.head().place.sequence == before.sequence + 1
    team.fetch("bob")
    assert messages(team["bob"], "origin/main") == ["ada 1", "ada 0"]


@pytest.mark.parametrize("ignored", ["create", "version"])
def test_a_bucket_without_conditions_cannot_be_added(folder_team: Team, ignored: str) -> None:
    remotes = folder_team["ada"].remotes
    with (
        folder_team.wrapped(lambda objects: Unconditional(objects, ignored)),
        pytest.raises(RemoteRefused, match="cannot be a remote"),
    ):
        remotes.add("other", folder_team.url)
    assert [each.name for each in remotes.list()] == ["origin"]
    assert remotes.add("other", folder_team.url).url == folder_team.url


def test_what_a_push_writes(folder_team: Team) -> None:
    """Records once, their headers twice, and a head."""
    team = folder_team
    random = np.random.default_rng(1)
    team.commit("ada", 0)
    team.push("ada")
    team["ada"].commit({"w": random.standard_normal(1 << 19)}, message="large")
    before = set((team.folder / "bucket/packs").iterdir())
    records = team.push("ada").bytes
    (pack,) = set((team.folder / "bucket/packs").iterdir()) - before
    assert pack.stat().st_size + MAX_HEAD < 1.02 * records + (32 << 10)
