"""History and damage: the oracle and mvc say the same of refs, deployments and broken bytes."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mvc.api.repository import Repository
from mvc.errors import DamagedData, NoDeployment
from mvc.model.commit import Commit
from mvc.repo.commit.request import CommitOptions
from mvc.testing import FixedClock
from tests.oracle import reader
from tests.oracle.holding import frame_length, series
from tests.oracle.reader import Bad, Cursor

SECOND = 1_000_000_000
START = 1_750_000_000 * SECOND


def test_commits_refs_and_metadata(tmp_path: Path):
    with Repository.init(tmp_path, clock=FixedClock(START)) as repo:
        first = repo.commit(
            {"w": np.ones(3)}, message="one\nü \udcff", metrics={"acc": 0.5, "a": 1}
        )
        repo.branch("side")
        repo.tag("v1")
        second = repo.commit(
            {"w": np.zeros(3)},
            options=CommitOptions(author="somebody", time=-SECOND),
            pipeline="none",
        )
        repo.switch("side", force=True)
        oracle = reader.Repository(tmp_path / ".mvc")
        for made in (first, second):
            read, ours = oracle.commits[made.id], made.commit
            assert (read.root, read.parents, read.author) == (
                made.root,
                [*ours.parents],
                ours.author,
            )
            assert (read.message, read.metrics) == (ours.message, dict(ours.metrics))
            assert (read.time, read.zone) == (ours.time_ns, ours.zone_minutes)
            assert (read.pipeline, read.code) == (ours.pipeline, ours.code)
        assert oracle.refs == {
            "HEAD": "side", "heads/main": second.id, "heads/side": first.id, "tags/v1": first.id,
        }  # fmt: skip


@pytest.mark.parametrize("form", [0, 5, 127])
def test_a_commit_of_an_unknown_form_is_refused(tmp_path: Path, form: int):
    """As a later program may write it: everything else is as it should be."""
    with Repository.init(tmp_path) as repo:
        data = repo.commit({"w": np.zeros(3)}, params={"lr": 1}).commit.encoded
    assert data[0] == 1
    read = Cursor(reader.uint(len(data)) + data).get("commit")
    assert read.params == {"lr": "1"}
    later = bytes([form]) + data[1:]
    with pytest.raises(Bad, match="its version"):
        Cursor(reader.uint(len(later)) + later).get("commit")
    with pytest.raises(DamagedData, match="its version is unknown"):
        Commit.decode(later)


@settings(max_examples=60, deadline=None)
@given(st.randoms(use_true_random=False))
def test_deployments_in_any_order_with_retractions(
    tmp_path_factory: pytest.TempPathFactory, random_: random.Random
):
    root = tmp_path_factory.mktemp("deployed")
    clock = FixedClock(START)
    with Repository.init(root, clock=clock) as repo:
        commits = [repo.commit({"w": np.full(3, i)}).id for i in range(3)]
        for _ in range(12):
            clock.advance(random_.randrange(-5, 9) * SECOND)
            target, at = random_.choice(["prod", "edge/eu"]), START + random_.randrange(9) * SECOND
            try:
                if random_.random() < 0.3:
                    repo.retract(None, target)
                else:
                    repo.deploy(random_.choice(commits), target, at=random_.choice([at, None]))
            except Exception as error:
                assert type(error).__name__ in {"NoDeployment", "UnknownTarget"}
        oracle = reader.Repository(root / ".mvc")
        assert [
            (d.target, d.time_ns, d.sequence, d.commit, d.retracted) for d in repo.deployments()
        ] == [
            (d.target, d.time, d.sequence, d.subject, d.dead)
            for d in sorted(oracle.deployments, key=lambda d: (d.time, d.order))
        ]
        for target in {d.target for d in oracle.deployments}:
            made = [s for s in oracle.statements if s.kind in (0, 1) and s.target == target]
            assert [d.previous for d in made] == [0, *(d.sequence + 1 for d in made[:-1])]
            for at in (None, *(START + s * SECOND for s in range(-2, 60, 3))):
                try:
                    live = repo.live(target, at=at).commit
                except NoDeployment:
                    live = None
                assert oracle.live(target, at, clock.time_ns) == live


def test_live_now_looks_at_the_newest_records_only(tmp_path: Path):
    clock = FixedClock(START)
    with Repository.init(tmp_path, clock=clock) as repo:
        first, second = (repo.commit({"w": np.full(3, i)}).id for i in range(2))
        repo.deploy(first, "prod")
        clock.advance(-5 * SECOND)  # the next is immediate too, and lies before the first
        repo.deploy(second, "prod")
        clock.advance(9 * SECOND)
        for count in range(1, 260):
            if count in (1, 250, 255, 256, 259):
                live = reader.Repository(tmp_path / ".mvc").live("prod", None, clock.now_ns())
                assert live == repo.live("prod").commit
                assert live == (second if count < 257 else first)
            repo.deploy(second, "prod", at=START - 100 * SECOND)


# -- damage --------------------------------------------------------------------------------


def _small(root: Path) -> Path:
    with Repository.init(root) as repo:
        for state in series(2, (8, 8)):
            repo.commit(state)
    return root / ".mvc"


def test_an_interrupted_write_is_passed_over(tmp_path: Path):
    folder = _small(tmp_path)
    whole = (folder / "journal").read_bytes()
    second = 2 * frame_length(whole, 0)
    third = second + 2 * frame_length(whole, second)
    for cut in range(second, len(whole), 7):
        (folder / "journal").write_bytes(whole[:cut])
        half = (third - second) // 2
        expected = 2 if cut >= second + half else 1
        if cut >= third:
            expected = 3 if cut >= third + (len(whole) - third) // 2 else 2
        assert len(reader.Repository(folder).entries) == expected
        (folder / "witness").unlink(missing_ok=True)  # of what was acknowledged
        with Repository.open(tmp_path) as repo:
            assert sum(1 for _ in repo.handle.store.snapshot.entries()) == expected


def test_a_frame_inside_a_message_does_not_pass_for_the_second_copy(tmp_path: Path):
    folder = _small(tmp_path)
    before = (folder / "journal").read_bytes()
    frame, end = before[: frame_length(before, 0)], len(before)
    with Repository.open(tmp_path) as repo:
        made = repo.commit({"w": np.zeros(3)}, message=frame.decode("utf-8", "surrogateescape"))
    whole = bytearray((folder / "journal").read_bytes())
    whole[end + 20] ^= 1
    (folder / "journal").write_bytes(whole)
    assert made.id in reader.Repository(folder).commits
    with Repository.open(tmp_path) as repo:
        assert repo.find("HEAD") == made.id


def test_lost_and_misplaced_entries_are_found(tmp_path: Path):
    folder = _small(tmp_path)
    whole = (folder / "journal").read_bytes()
    second = 2 * frame_length(whole, 0)
    length = frame_length(whole, second)
    third = second + 2 * length
    damaged = bytearray(whole)
    damaged[second + 40] ^= 1
    damaged[second + length + 40] ^= 1
    other = _small(tmp_path / "other")
    foreign = (other / "journal").read_bytes()
    foreign = foreign[2 * frame_length(foreign, 0) :]
    for journal in (damaged, whole[:second] + whole[third:], whole[:second] + foreign):
        (folder / "journal").write_bytes(journal)
        with pytest.raises(Bad):
            reader.Repository(folder)


@pytest.mark.parametrize("name", ["format", "journal", "packs/00000001.pack"])
def test_a_flipped_bit_is_repaired_or_found(tmp_path: Path, name: str):
    folder = _small(tmp_path)
    whole = (folder / name).read_bytes()
    commits = list(reader.Repository(folder).commits)
    sound = [reader.Repository(folder).checkout(c) for c in commits]
    found = 0
    for at in range(0, len(whole), max(1, len(whole) // 150)):
        (folder / name).write_bytes(whole[:at] + bytes([whole[at] ^ 4]) + whole[at + 1 :])
        try:
            oracle = reader.Repository(folder)
            assert [oracle.checkout(c) for c in commits] == sound
        except Bad:
            found += 1
    assert (found == 0) == (name == "journal")
