"""The oracle reads what maintenance leaves: undone, forgotten, collected, compacted."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest

from mvc.api.repository import Repository
from mvc.maintenance import gc
from mvc.model.statement import Tombstone
from mvc.repo import refs
from mvc.store.journal.entries import Entry, StateMark
from tests.oracle import reader
from tests.oracle.holding import held_against, series

NOW = timedelta(0)


@pytest.fixture(params=["lossless", "vsol"])
def repo(tmp_path: Path, request: pytest.FixtureRequest) -> Repository:
    repo = Repository.init(tmp_path)
    for i, state in enumerate(series(8)):
        repo.commit(state, message=str(i), pipeline=request.param, deploy="prod" if i < 3 else None)
    return repo


def test_an_undone_operation_and_a_forgotten_state(repo: Repository) -> None:
    repo.undo()
    last = repo.find("HEAD~2")
    store = repo.handle.store
    marks = (StateMark(last, "forgotten"),)
    store.publish(lambda: Entry("forget", store.clock.now_ns(), states=marks))
    oracle = held_against(repo.root)
    assert oracle.entries[-2].author == repo.handle.config.author
    assert [e.undoes for e in oracle.entries if e.undoes] == [8 + 1]
    assert oracle.entries[-1].states == [(last, "", 1)]
    assert oracle.refs["heads/main"] == repo.find("HEAD")


def test_a_collected_branch(repo: Repository) -> None:
    keep = [repo.find(f"HEAD~{i}") for i in range(8)]
    repo.branch("side", "HEAD~3")
    repo.switch("side", force=True)
    refs.delete_branch(repo.handle.store, "main", force=True)
    gone = gc.collect(repo.handle.store, repo.handle.config, grace=NOW)
    assert set(gone.commits) == set(keep[:3])
    oracle = held_against(repo.root)
    assert set(oracle.commits) == set(keep[3:])
    sequences = [e.sequence for e in oracle.entries]
    assert sequences == sorted(sequences) and sequences[-1] >= len(sequences)
    assert oracle.live("prod", None, 1 << 62) == keep[5]


def test_a_forgotten_state_in_the_middle_of_a_chain(repo: Repository) -> None:
    middle = repo.find("HEAD~3")  # later versions are coded against it
    held = {bytes(c.id) for e in repo.manifest(middle).entries for c in e.contents}
    others = {
        bytes(c.id)
        for i in (0, 1, 2, 4, 5, 6, 7)
        for e in repo.manifest(f"HEAD~{i}").entries
        for c in e.contents
    }
    store = repo.handle.store
    stone = Tombstone(subject=middle, root=repo.version(middle).root)
    store.publish(lambda: Entry("forget", store.clock.now_ns(), statements=(stone,)))
    assert gc.collect(repo.handle.store, repo.handle.config, grace=NOW).recoded > 0
    oracle = held_against(repo.root)
    stored = {piece[0] for piece in oracle.pieces}
    assert held - others and not stored & (held - others)


def test_work_goes_on_behind_a_collection(repo: Repository) -> None:
    repo.undo()
    gc.collect(repo.handle.store, repo.handle.config, grace=NOW)
    for i, state in enumerate(series(3, (30, 50))):
        repo.commit(state, message=f"again {i}")
        gc.collect(repo.handle.store, repo.handle.config, grace=NOW)
    oracle = held_against(repo.root)
    assert len(oracle.commits) == 10
    for state, entry in zip(series(3, (30, 50))[::-1], ("HEAD", "HEAD~1", "HEAD~2"), strict=True):
        for name, array in repo.checkout(entry).items():
            assert np.array_equal(array, state[name])


def test_an_unknown_feature_is_refused(repo: Repository) -> None:
    path = repo.root / ".mvc" / "format"
    path.write_bytes(path.read_bytes().replace(b"features=", b"features=colour"))
    with pytest.raises(reader.Bad, match="format"):
        reader.Repository(repo.root / ".mvc")
