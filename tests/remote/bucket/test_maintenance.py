"""gc, forget and fsck of a bucket: what they free, and when."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from mvc.api.repository import Repository
from mvc.maintenance.gc import Collection
from mvc.testing import FixedClock
from tests.remote.bucket.faults import Aged, Passing
from tests.remote.bucket.kit import Team, messages, state
from tests.remote.kit.same import assert_clean

DAY = 24 * 3600 * 10**9


def collect(repo: Repository) -> Collection:
    return repo.storage.gc(grace=timedelta(0))


def packs(team: Team) -> set[str]:
    return {path.name for path in (team.folder / "bucket/packs").iterdir()}


def aged(team: Team, days: int) -> None:
    """Collects when what is there now is so much older."""
    with team.wrapped(lambda objects: Aged(objects, days * DAY)):
        team.maintain("ada", collect)


@pytest.fixture
def collected(folder_team: Team) -> Team:
    """Of five versions, pushed one by one, three were forgotten and collected."""
    for step in range(5):
        folder_team.commit("ada", step)
        folder_team.push("ada")
    folder_team.fetch("bob")
    folder_team.maintain("ada", lambda repo: repo.storage.forget(keep_last=2))
    folder_team.maintain("ada", collect)
    return folder_team


def test_what_is_dropped_is_deleted_after_fourteen_days(collected: Team) -> None:
    team, before = collected, packs(collected)
    assert len(before) > 2
    aged(team, 13)
    assert packs(team) == before
    aged(team, 15)
    assert len(packs(team)) < len(before)
    assert not list((team.folder / "bucket/dropped").iterdir())
    team.fetch("carol")
    assert len(messages(team["carol"], "origin/main")) == 5
    assert_clean(team["carol"])
    assert team.problems("ada") == ()


def test_a_state_is_gone_when_its_objects_are(collected: Team) -> None:
    """Only then the receipt says so."""

    def gone(repo: Repository) -> list[bool]:
        return [
            state.gone_ns is not None
            for receipt in repo.storage.receipts()
            for state in receipt.states
        ]

    assert not any(collected.maintain("bob", gone))
    aged(collected, 15)
    aged(collected, 15)
    assert all(collected.maintain("bob", gone))


def test_clients_follow_a_collection(collected: Team) -> None:
    collected.commit("ada", 9)
    collected.push("ada")
    collected.fetch("bob")
    assert messages(collected["bob"], "origin/main")[0] == "ada 9"
    assert_clean(collected["bob"])


def test_an_upload_that_broke_off_is_deleted_later(folder_team: Team) -> None:
    team = folder_team
    team.commit("ada", 0)
    team.push("ada")
    stray = team.folder / "bucket/packs" / ("ab" * 32)
    stray.write_bytes(b"not finished")
    aged(team, 13)
    assert stray.exists()
    aged(team, 15)
    assert not stray.exists()
    team.fetch("bob")


def test_a_push_that_was_slow_finds_out_about_a_sweep(folder_team: Team) -> None:
    """Its packs are written and not named yet; in 15 days another client has deleted them."""
    team = folder_team
    team.commit("ada", 0)
    team.push("ada")
    clock = FixedClock()
    Repository.init(team.folder / "bob", clock=clock).close()
    team.add("bob", Repository.open(team.folder / "bob", clock=clock))
    team["bob"].commit(state(1), message="bob's")
    team["bob"].branch("bobs")
    swept: list[str] = []

    class Slow(Passing):
        def swap(self, name: str, data: bytes, known: str) -> str | None:
            if not swept:
                swept.append(name)
                clock.advance(15 * DAY)
                team.wrap = lambda objects: objects
                aged(team, 15)
            return super().swap(name, data, known)

    with team.wrapped(Slow):
        team.push("bob", "bobs")
    team.fetch("carol")
    assert messages(team["carol"], "origin/bobs") == ["bob's"]
    assert_clean(team["carol"])


def test_a_dry_run_and_fsck_change_nothing(collected: Team) -> None:
    def tree() -> dict[Path, bytes]:
        files = (path for path in (collected.folder / "bucket").rglob("*") if path.is_file())
        return {path: path.read_bytes() for path in files}

    before = tree()
    with collected.wrapped(lambda objects: Aged(objects, 15 * DAY)):
        repo = collected["ada"]
        repo.remotes.maintain("origin", lambda there: there.storage.gc(dry_run=True), changes=False)
        repo.remotes.maintain("origin", lambda there: there.storage.fsck(), changes=False)
    assert tree() == before


@pytest.mark.long
def test_many_small_packs_are_joined(folder_team: Team) -> None:
    team = folder_team
    for step in range(70):
        team.commit("ada", step)
        team.push("ada")
    assert len(packs(team)) == 70
    team.maintain("ada", collect)
    aged(team, 15)
    assert len(packs(team)) == 1
    team.fetch("bob")
    assert len(messages(team["bob"], "origin/main")) == 70
    assert_clean(team["bob"])
