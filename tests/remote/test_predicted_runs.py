"""Runs of an optimizer's steps on their way to other repositories, and to files that follow one."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

import mvc
from mvc.api import Gone
from mvc.api.repository import Repository
from mvc.errors import DamagedData
from mvc.io.files import FileSystem
from mvc.remote.sending.closure import Closure
from mvc.store.format import read_features
from tests.adamw import training
from tests.fleet.following import follow
from tests.histories import CheckedHistory, assert_same
from tests.maintenance.damaging import smash_payload
from tests.remote.kit.serving import serving, token

RAW = 38_000
"""Bytes of one state of ``training``."""


@pytest.fixture
def run(tmp_path: Path) -> Iterator[CheckedHistory]:
    """A version in full, and nine that are predicted."""
    history = CheckedHistory(tmp_path / "served" / "models", make=training)
    for _ in range(10):
        history.commit()
    yield history
    history.close()


@pytest.fixture(params=["folder", "http"])
def url(
    run: CheckedHistory, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> object:
    if request.param == "folder":
        yield str(run.root)
        return
    monkeypatch.setenv("MVC_TOKEN_ORIGIN", token(run.root.parent, "read"))
    with serving(run.root.parent) as server:
        yield f"{server.url}/models"


@pytest.fixture
def opened() -> Iterator[Callable[[Repository], Repository]]:
    """Keeps repositories until the test ends."""
    with ExitStack() as stack:
        yield stack.enter_context


def in_packs(repo: Repository) -> int:
    return sum(pack.stat().st_size for pack in (repo.root / ".mvc/packs").iterdir())


def is_as(repo: Repository, run: CheckedHistory) -> bool:
    for id_ in run.ids:
        if not isinstance(repo.availability(id_), Gone):
            assert_same(repo.checkout(id_), run.states[id_])
    return repo.storage.fsck(full=True).sound


def predicted(repo: Repository) -> int:
    found = repo.storage.stats().predicted
    return 0 if found is None else found.contents


Keep = Callable[[Repository], Repository]


def test_a_clone_and_what_it_fetches_are_the_same_records(
    run: CheckedHistory, url: str, tmp_path: Path, opened: Keep
) -> None:
    repo = opened(mvc.clone(url, tmp_path / "c"))
    assert is_as(repo, run)
    assert (predicted(repo), in_packs(repo)) == (predicted(run.repo), in_packs(run.repo))
    assert "optim" in read_features(FileSystem(), repo.root / ".mvc")
    before = in_packs(repo)
    run.commit()
    done = repo.fetch()
    assert done.versions == 1 and is_as(repo, run)
    assert in_packs(repo) - before <= done.bytes < RAW / 2


@pytest.mark.parametrize("states", ["last:1", "last:2"])
def test_few_states_out_of_a_run_take_no_more_than_they_have(
    run: CheckedHistory, url: str, tmp_path: Path, opened: Keep, states: str
) -> None:
    """The versions between them and the beginning of the run stay where they are."""
    repo = opened(mvc.clone(url, tmp_path / "c", states=states))
    assert is_as(repo, run)
    assert in_packs(repo) < RAW * 1.3
    before = in_packs(repo)
    run.commit()
    repo.fetch()
    assert is_as(repo, run) and in_packs(repo) - before < RAW / 2
    repo.fetch("origin", [run.ids[4]])
    assert not isinstance(repo.availability(run.ids[4]), Gone) and is_as(repo, run)
    assert in_packs(repo) - before < RAW * 1.5


def test_pushed(run: CheckedHistory, tmp_path: Path, opened: Keep) -> None:
    there = opened(Repository.init(tmp_path / "bare", bare=True))
    run.repo.remotes.add("b", str(tmp_path / "bare"))
    run.repo.push("b")
    assert is_as(there, run) and predicted(there) == predicted(run.repo)
    run.commit()
    assert run.repo.push("b").bytes < RAW / 2 and is_as(there, run)


def test_through_a_bucket(run: CheckedHistory, tmp_path: Path, opened: Keep) -> None:
    (tmp_path / "bucket").mkdir()
    run.repo.remotes.add("b", f"bucket:{tmp_path / 'bucket'}")
    run.repo.push("b")
    repo = opened(mvc.clone(f"bucket:{tmp_path / 'bucket'}", tmp_path / "c"))
    assert is_as(repo, run) and predicted(repo) == predicted(run.repo)
    run.commit()
    run.repo.push("b")
    assert repo.fetch().bytes < RAW / 2 and is_as(repo, run)


def test_after_one_was_forgotten_in_the_middle(
    run: CheckedHistory, url: str, tmp_path: Path, opened: Keep
) -> None:
    """Before gc its objects are still the way to others; none of them goes along."""
    gone = run.ids[4]
    run.forget(gone)
    repo = opened(mvc.clone(url, tmp_path / "c"))
    assert is_as(repo, run)
    lost = run.lost([gone])
    assert not any(repo.handle.store.graph.holds(id_) for id_ in lost)


def test_a_false_input_is_not_taken(run: CheckedHistory, tmp_path: Path, opened: Keep) -> None:
    """A moment that is damaged where it comes from leads nowhere, and nothing of it counts."""
    entry = run.repo.manifest(run.ids[5]).entries[0]
    key = "optimizer.state.0.exp_avg_sq"
    content = next(entry.contents[t.content] for t in entry.tensors if t.key == key)
    (step,) = run.repo.handle.store.graph.codings(content.id)
    run.close()
    smash_payload(run.root, step)
    with pytest.raises(DamagedData):
        opened(mvc.clone(str(run.root), tmp_path / "c"))


def test_every_input_is_looked_for(
    run: CheckedHistory, tmp_path: Path, opened: Keep, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who thinks that the receiver has an input which it lacks is asked for it."""
    there = opened(Repository.init(tmp_path / "bare", bare=True))
    run.repo.remotes.add("b", str(tmp_path / "bare"))
    whole, lied = Closure.__contains__, set[bytes]()

    def has(self: Closure, id_: bytes) -> bool:
        entry = run.repo.manifest(run.ids[3]).entries[0]
        moments = {entry.contents[t.content].id for t in entry.tensors if "exp_avg" in t.key}
        if id_ in moments and id_ not in lied:
            lied.add(id_)
            return True
        return whole(self, id_)

    monkeypatch.setattr(Closure, "__contains__", has)
    run.repo.push("b")
    assert lied and is_as(there, run)


def commit(repo: Repository, number: int) -> bytes:
    state = training(number)
    files = {"model.st": state["model"], "training.st": state["optimizer"]}
    return repo.commit(states=files, deploy="prod").id


@pytest.mark.parametrize("served", ["folder", "http"])
def test_a_follower_of_weights_gets_no_moments(
    tmp_path: Path, served: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But deltas between weights; and who follows the whole training gets the steps."""
    folder, node = tmp_path / "served", tmp_path / "node"
    node.mkdir()
    with ExitStack() as stack:
        repo = stack.enter_context(Repository.init(folder / "models"))
        url = str(folder / "models")
        if served == "http":
            monkeypatch.setenv("MVC_TOKEN_ORIGIN", token(folder, "read"))
            url = f"{stack.enter_context(serving(folder)).url}/models"
        sizes: dict[str, list[int]] = {"model.st": [], "training.st": []}
        for number in (1, 2, 4, 5, 6):  # the third was not waited for
            version = commit(repo, number - (number == 4))
            if number == 4:
                version = commit(repo, number)
            assert number == 1 or repo.storage.predicted(version).keys() == sizes.keys()
            for path, received in sizes.items():
                done = follow(url, "prod", to=node / path, path=path, once=True)
                assert done is not None and done.commit == version
                received.append(done.received)
                repo.checkout(version, path=path, to=tmp_path / "compare" / path, force=True)
                whole = (tmp_path / "compare" / path).read_bytes()
                assert (node / path).read_bytes() == whole
        assert max(sizes["model.st"][1:]) < 0.7 * sizes["model.st"][0]
        assert sizes["training.st"][-1] < 0.6 * sizes["training.st"][0]
        assert os.listdir(node)
