"""Follower: what is served is what the record says, and stays where the record cannot be had."""

from __future__ import annotations

import os
import shutil
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch

import mvc
from mvc.errors import (
    DoesNotFit,
    InvalidName,
    IoFailed,
    MvcError,
    NoDeployment,
    NotARepository,
    StateForgotten,
    UnknownPath,
    WrongUsage,
)
from mvc.ids import CommitId
from mvc.serving.follower import Follower
from mvc.serving.sources import Followed, NotFollowing
from mvc.testing import FixedClock
from tests.waiting import until

SECOND = 10**9


@pytest.fixture
def repo(tmp_path: Path, clock: FixedClock) -> Iterator[mvc.Repository]:
    with mvc.Repository.init(tmp_path / "models", clock=clock) as made:
        yield made


class Kept:
    """A sink that keeps the number of the version that it has."""

    number: int | None = None

    @contextmanager
    def serving(self, repo: mvc.Repository, live: mvc.Deployed) -> Iterator[None]:
        before, self.number = self.number, number_in(repo.checkout(live)["w"])
        try:
            yield
        except BaseException:
            self.number = before
            raise


@pytest.fixture
def kept() -> Kept:
    return Kept()


def version(repo: mvc.Repository, number: int, target: str | None = "prod") -> CommitId:
    return repo.commit({"w": np.full(99, number, np.float32)}, deploy=target).id


def number_in(values: np.ndarray) -> int:
    """Which version it is, whole."""
    assert (values == values[0]).all()
    return int(values[0])


def polled(follower: Follower) -> CommitId | None:
    """The commit that a poll finds newly live; the next one finds nothing."""
    found = follower.poll()
    assert follower.poll() is None
    assert found is None or found == follower.current
    assert found is None or found.deployed == follower.repo.live("prod").deployment
    return found and found.commit


def test_every_change_of_the_record_is_followed_once(
    repo: mvc.Repository, kept: Kept, clock: FixedClock
) -> None:
    follower = mvc.Follower(repo, "prod", kept)
    assert polled(follower) is None and follower.current is None and kept.number is None
    first = version(repo, 1)
    assert polled(follower) == first and kept.number == 1
    second = version(repo, 2)
    version(repo, 3, "edge")
    assert polled(follower) == second
    third = version(repo, 3)
    assert polled(follower) == third and kept.number == 3
    repo.rollback("prod")
    assert polled(follower) == second and kept.number == 2
    repo.retract(None, "prod")  # the rollback
    assert polled(follower) == third and kept.number == 3
    repo.deploy(first, "prod", at=clock.time_ns - 3600 * SECOND)  # late: live stays what it is
    assert polled(follower) is None and kept.number == 3
    repo.deploy(third, "prod")  # once more: another deployment, the same version
    assert polled(follower) == third and kept.number == 3


def test_gc_repack_and_a_new_index_change_nothing(
    repo: mvc.Repository, kept: Kept, clock: FixedClock
) -> None:
    follower = mvc.Follower(repo.root, "prod", kept)
    live = [version(repo, i) for i in range(5)][-1]
    assert polled(follower) == live
    version(repo, 7, None)
    repo.undo()
    clock.advance(90 * 24 * 3600 * SECOND)
    repo.storage.gc(grace="0")
    assert polled(follower) is None
    repo.storage.repack(interval=2)
    shutil.rmtree(repo.root / ".mvc" / "index.lmdb")
    assert polled(follower) is None
    assert polled(mvc.Follower(repo, "prod")) == live
    repo.rollback("prod")
    assert polled(follower) == repo.live("prod").commit and kept.number == 3


def test_a_dated_deployment_is_served_when_its_time_comes(
    repo: mvc.Repository, clock: FixedClock
) -> None:
    follower = mvc.Follower(repo, "prod")
    now, later = version(repo, 1), version(repo, 2, None)
    hour = 3600 * SECOND
    repo.deploy(later, "prod", at=clock.time_ns + hour)
    assert polled(follower) == now
    clock.advance(hour - SECOND)
    assert polled(follower) is None
    clock.advance(SECOND)
    assert polled(follower) == later  # nothing was written meanwhile
    clock.advance(-hour)
    assert polled(follower) == now  # so the record says with the clock set back
    clock.advance(2 * hour)
    assert polled(follower) == later


def test_a_first_deployment_that_is_dated(repo: mvc.Repository, clock: FixedClock) -> None:
    follower = mvc.Follower(repo, "prod")
    made = version(repo, 1, None)
    repo.deploy(made, "prod", at=clock.time_ns + SECOND)
    assert polled(follower) is None
    clock.advance(SECOND)
    assert polled(follower) == made


def test_when_nothing_is_live_any_more_the_last_version_stays(
    repo: mvc.Repository, kept: Kept
) -> None:
    follower = mvc.Follower(repo, "prod", kept)
    made = version(repo, 1)
    assert polled(follower) == made
    repo.retract(made, "prod")
    for _ in range(2):
        with pytest.raises(NoDeployment, match="every deployment was retracted"):
            follower.poll()
    assert follower.current is not None and kept.number == 1
    assert mvc.Follower(repo, "prod").poll() is None  # it serves nothing
    second = version(repo, 2)
    assert polled(follower) == second


def test_a_forgotten_version_is_not_served(repo: mvc.Repository, kept: Kept) -> None:
    first, second = version(repo, 1), version(repo, 2)
    changes: list[Followed] = []
    follower = mvc.Follower(repo, "prod", kept, on_change=changes.append)
    bare = mvc.Follower(repo, "prod", on_change=changes.append)
    assert polled(follower) == second == polled(bare)
    third = version(repo, 3, "prod")
    version(repo, 4, None)
    repo.storage.forget(first)
    repo.storage.forget(third)
    for each in (follower, bare):
        with pytest.raises(StateForgotten):
            each.poll()
        assert each.current is not None and each.current.commit == second
    assert kept.number == 2 and [d.commit for d in changes] == [second, second]
    repo.deploy(second, "prod")
    assert polled(follower) == second


# -- the repository goes away, or becomes another one --------------------------------------------


def test_a_repository_that_goes_away_and_comes_back(repo: mvc.Repository, kept: Kept) -> None:
    follower = mvc.Follower(repo.root, "prod", kept)
    first = version(repo, 1)
    assert polled(follower) == first
    away = repo.root.with_name("away")
    repo.root.rename(away)
    for _ in range(2):
        with pytest.raises(NotARepository, match="models is missing") as caught:
            follower.poll()
        assert "the served version stays" in str(caught.value.hint)
    assert kept.number == 1 and follower.current is not None
    with mvc.Repository.open(away) as moved:
        second = version(moved, 2)
    away.rename(repo.root)
    assert polled(follower) == second and kept.number == 2


@pytest.mark.parametrize("gone", [None, "format", "journal"])
def test_a_repository_whose_folder_stays(
    repo: mvc.Repository, kept: Kept, tmp_path: Path, gone: str | None
) -> None:
    folder = repo.root / ".mvc"
    follower = mvc.Follower(repo.root, "prod", kept)
    first = version(repo, 1)
    assert polled(follower) == first
    shutil.copytree(folder, tmp_path / "copy")
    for path in folder.iterdir() if gone is None else [folder / gone]:
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    left = sorted(folder.iterdir())
    for call in (follower.poll, follower.poll):
        with pytest.raises(
            NotARepository, match=f"is missing: its folder has no {gone or 'format'}"
        ):
            call()
    assert sorted(folder.iterdir()) == left
    assert kept.number == 1 and follower.current is not None
    shutil.copytree(tmp_path / "copy", folder, dirs_exist_ok=True)
    with mvc.Repository.open(repo.root) as again:
        second = version(again, 2)
    assert polled(follower) == second and kept.number == 2


def test_another_repository_in_its_place_is_followed(repo: mvc.Repository, kept: Kept) -> None:
    follower = mvc.Follower(repo, "prod", kept)
    first = version(repo, 1)
    assert polled(follower) == first
    shutil.rmtree(repo.root / ".mvc")
    with mvc.Repository.init(repo.root) as other:
        with pytest.raises(MvcError, match="nothing was ever deployed on prod"):
            follower.poll()
        assert kept.number == 1
        second = version(other, 5)
        assert polled(follower) == second and kept.number == 5
    assert not repo.closed  # it is the caller's
    follower.close()
    assert follower.repo.closed


def test_a_repository_that_the_caller_closes(repo: mvc.Repository, kept: Kept) -> None:
    follower = mvc.Follower(repo, "prod", kept)
    first = version(repo, 1)
    assert polled(follower) == first
    repo.close()
    assert follower.poll() is None
    second = version(follower.repo, 2)
    assert polled(follower) == second and kept.number == 2
    follower.close()
    assert follower.repo.closed
    with pytest.raises(WrongUsage, match="this follower is closed"):
        follower.poll()


def test_a_backup_put_in_its_place_is_followed(
    repo: mvc.Repository, kept: Kept, tmp_path: Path
) -> None:
    first = version(repo, 1)
    shutil.copytree(repo.root, tmp_path / "backup")
    follower = mvc.Follower(repo.root, "prod", kept)
    version(repo, 2)
    assert polled(follower) != first and kept.number == 2
    shutil.rmtree(repo.root / ".mvc")
    shutil.copytree(tmp_path / "backup/.mvc", repo.root / ".mvc")
    assert polled(follower) == first and kept.number == 1


def test_damage_is_said_and_what_is_served_stays(repo: mvc.Repository, kept: Kept) -> None:
    follower = mvc.Follower(repo.root, "prod", kept)
    version(repo, 1)
    assert polled(follower) is not None
    journal = repo.root / ".mvc" / "journal"
    sound = journal.read_bytes()
    version(repo, 2)
    longer = journal.read_bytes()
    journal.write_bytes(sound[:100] + bytes(len(longer) - 100))
    with pytest.raises(MvcError):
        follower.poll()
    assert kept.number == 1
    journal.write_bytes(longer)
    assert polled(follower) is not None and kept.number == 2


# -- where it goes -------------------------------------------------------------------------------


def test_one_file_of_several(repo: mvc.Repository, tmp_path: Path) -> None:
    states = {name: {"w": np.full(99, i, np.float32)} for i, name in enumerate("abc")}
    repo.commit(states=states, deploy="prod")
    served = tmp_path / "served.st"
    several = pytest.raises(UnknownPath, match="several states: a, b, c")
    with several, mvc.Follower(repo, "prod", mvc.ReplicaSink(served)) as follower:
        follower.poll()
    assert not served.exists()
    with mvc.Follower(repo, "prod", mvc.ReplicaSink(served, path="b")) as follower:
        assert follower.poll() is not None and follower.poll() is None
    assert number_in(np.frombuffer(served.read_bytes()[-4 * 99 :], np.float32)) == 1


@pytest.mark.parametrize("source", ["repository", "path"])
def test_the_model_of_a_recorder_without_its_training_state(
    repo: mvc.Repository, tmp_path: Path, source: str
) -> None:
    given = repo if source == "repository" else repo.root
    model, network = torch.nn.Linear(9, 11), torch.nn.Linear(9, 11)
    with mvc.Recorder(repo, model, name="net.safetensors", deploy="prod") as recorder:
        recorder.step()
    assert mvc.Follower(given, "prod", mvc.ModelSink(network)).poll() is not None
    assert torch.equal(network.weight, model.weight)
    served, wanted = tmp_path / "served.bin", tmp_path / "wanted.bin"
    with mvc.Follower(given, "prod", mvc.ReplicaSink(served)) as follower:
        assert follower.poll() is not None
    repo.checkout("HEAD", path="net.safetensors", to=wanted)
    assert served.read_bytes() == wanted.read_bytes()


def test_a_model_that_does_not_fit_stays_as_it_is(repo: mvc.Repository) -> None:
    network, other = torch.nn.Linear(3, 4), torch.nn.Linear(4, 3)
    follower = mvc.Follower(repo, "prod", mvc.ModelSink(network))
    first = repo.commit(network.state_dict(), deploy="prod").id
    network.weight.data.zero_()
    assert polled(follower) == first and network.weight.any()
    weight = network.weight.clone()
    repo.commit(other.state_dict(), deploy="prod")
    with pytest.raises(DoesNotFit):
        follower.poll()
    assert torch.equal(network.weight, weight)
    assert follower.current is not None and follower.current.commit == first
    repo.rollback("prod")  # the model never left this version
    assert polled(follower) == first and torch.equal(network.weight, weight)


def test_an_error_of_on_change_is_raised_and_the_change_tried_again(repo: mvc.Repository) -> None:
    seen: list[Followed] = []

    def change(deployed: Followed) -> None:
        seen.append(deployed)
        if len(seen) < 3:
            raise ValueError("not yet")

    follower = mvc.Follower(repo, "prod", on_change=change)
    version(repo, 1)
    for _ in range(2):
        with pytest.raises(ValueError, match="not yet"):
            follower.poll()
        assert follower.current is None
    assert polled(follower) is not None and follower.current is not None
    assert [each.deployed for each in seen] == [follower.current.deployed] * 3


def test_bad_arguments(repo: mvc.Repository, tmp_path: Path) -> None:
    with pytest.raises(InvalidName):
        mvc.Follower(repo, "a b")
    with pytest.raises(NotARepository):
        mvc.Follower(tmp_path / "absent", "prod")
    with pytest.raises(NotARepository, match=r"mvc\.ReplicaSink follows a URL.*: http://host/m"):
        mvc.Follower("http://host/m", "prod", mvc.ModelSink(torch.nn.Linear(1, 1)))
    with pytest.raises(WrongUsage, match=r"repo must be .*, not of type int"):
        mvc.Follower(3, "prod")  # type: ignore[arg-type]
    with pytest.raises(WrongUsage, match="is inside the store"):
        mvc.Follower(repo, "prod", mvc.ReplicaSink(repo.root / ".mvc" / "journal.st"))
    with pytest.raises(IoFailed, match=r"the folder .* does not exist"):
        mvc.Follower(repo, "prod", mvc.ReplicaSink(tmp_path / "absent" / "file.st"))
    pair = mvc.ReplicaSink(tmp_path / "a.st"), mvc.ReplicaSink(tmp_path / "b.st")
    for sinks in ([torch.nn.Linear(1, 1)], [mvc.FileSink(tmp_path / "a")], pair, [Kept(), pair[0]]):
        with pytest.raises(WrongUsage, match="sinks must be ModelSinks, or one ReplicaSink"):
            mvc.Follower(repo, "prod", *sinks)  # type: ignore[arg-type]


# -- run -----------------------------------------------------------------------------------------


def test_run_follows_until_it_is_closed(repo: mvc.Repository, kept: Kept) -> None:
    follower = mvc.Follower(repo.root, "prod", kept)
    caught: list[str] = []
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = lambda text, *_: caught.append(str(text))  # type: ignore[assignment]
        thread = threading.Thread(target=follower.run, args=(0.001,))
        thread.start()
        try:
            first = version(repo, 1)
            until(lambda: follower.current is not None)
            away = repo.root.with_name("away")
            repo.root.rename(away)
            until(lambda: caught)
            assert kept.number == 1
            away.rename(repo.root)
            second = version(repo, 2)
            until(lambda: follower.current is not None and follower.current.commit == second)
        finally:
            follower.close()
            thread.join(60)
    assert not thread.is_alive() and kept.number == 2 and follower.repo.closed
    assert len(caught) == 1, caught
    assert caught[0].startswith(f"cannot follow prod, still serving {first.short}: the repository")
    assert issubclass(NotFollowing, RuntimeWarning)


def test_a_poll_without_news_asks_the_system_for_little(
    repo: mvc.Repository, kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A few looks at names, whatever the history; nothing is opened, read or listed."""
    made = [version(repo, i) for i in range(3)]
    for i in range(300):
        repo.deploy(made[i % 3], "prod")
    with mvc.Follower(repo.root, "prod", kept) as follower:
        assert follower.poll() is not None
        calls: list[str] = []
        for name in ("stat", "open", "listdir", "pread", "read", "fsync", "write"):
            original = getattr(os, name)
            monkeypatch.setattr(
                os, name, lambda *a, _f=original, _n=name, **k: (calls.append(_n), _f(*a, **k))[1]
            )
        assert follower.poll() is None
        monkeypatch.undo()
    assert len(calls) <= 8 and set(calls) <= {"stat", "pread"}, calls
