"""Commits of files by path: made before, stored already, or gone."""

import numpy as np
import pytest

import mvc
from mvc.api import Alternative, FileEntry, Proof
from mvc.errors import (
    CannotRetrain,
    DamagedData,
    InvalidName,
    SourceChanged,
    StateForgotten,
    UnknownRevision,
    WrongUsage,
)
from mvc.state import StateFile


@pytest.fixture
def repo(tmp_path):
    with mvc.Repository.init(tmp_path / "r") as opened:
        yield opened


def same(one, other):
    return mvc.root_of(one) == mvc.root_of(other)


def state(seed=0):
    return {"w": np.random.default_rng(seed).standard_normal((64, 64)).astype(np.float32), "n": [1]}


def test_a_file_that_was_made_before_is_stored_as_it_is(repo):
    file = StateFile.of(state())
    done = repo.commit({"a": file, "b": StateFile.of_bytes(b"text")}, metrics={"loss": 1})
    assert done.entries["a"].state.root == file.root == mvc.root_of(state())
    assert same(repo.checkout(path="a"), state()) and same(file.nested(), state())
    assert set(repo.manifest().by_path) == {"a", "b"}
    again = repo.commit(state(), path="a", states={"b": None})
    assert set(repo.manifest(again.id).by_path) == {"a"}


def test_a_lossy_pipeline_leaves_files_as_they_are(repo):
    repo.commit({"a": StateFile.of(state())})
    repo.commit({"a": StateFile.of(state(1))}, pipeline="lc:x=2")
    assert same(repo.checkout(path="a"), state(1))


def test_a_file_that_was_written_to_since_it_was_hashed_is_refused(repo):
    given = state()
    file = StateFile.of(given)
    assert file.root
    given["w"][0] = 1
    with pytest.raises(SourceChanged):
        repo.commit({"a": file})
    assert repo.head().commit is None


def test_a_stored_file_is_taken_from_another_version(repo):
    first = repo.commit(state(), path="a").id
    entry = repo.manifest(first).by_path["a"]
    repo.commit({"b": entry}, states={"a": None})
    assert same(repo.checkout(path="b"), state()) and set(repo.manifest().by_path) == {"b"}
    other = StateFile.of(state(1)).entry
    assert isinstance(other, FileEntry)
    with pytest.raises(StateForgotten, match="not stored"):
        repo.commit({"b": other})


@pytest.mark.parametrize("given", ["a.safetensors", 5, [1], np.zeros(2)])
def test_what_is_no_file_of_a_version_is_refused(repo, given):
    with pytest.raises(WrongUsage, match="a state is a dictionary"):
        repo.commit(states={"a": given})
    with pytest.raises(WrongUsage, match="a state is a dictionary"):
        repo.commit({"a": given, "b": StateFile.of(state())})
    assert repo.head().commit is None


@pytest.mark.parametrize(
    "places",
    [
        {"detached": True, "branch": "side"},
        {"detached": True, "tag": "v1"},
        {"tag": "v1", "branch": "side"},
    ],
)
def test_a_version_has_one_place(places):
    with pytest.raises(WrongUsage, match="only one of branch, tag and detached"):
        mvc.CommitOptions(**places)


def test_branches_advance_only_by_their_names_and_to_versions(repo):
    with pytest.raises(InvalidName):
        repo.advance({}, "move", first="two words")
    first, second = (repo.commit(state(seed)).id for seed in range(2))
    for name in ("../x", "HEAD", "two words", first.hex()):
        with pytest.raises(InvalidName):
            repo.advance({name: (None, first)}, "move")
    with pytest.raises(UnknownRevision):
        repo.advance({"side": (None, first), "main": (second, "none")}, "move")
    assert [(ref.name, ref.commit) for ref in repo.refs()] == [("main", second)]
    repo.advance({"side": (None, first), "main": (second, first)}, "move")
    assert {ref.commit for ref in repo.refs()} == {first}


def test_weights_are_proven_by_the_file_that_a_replay_made(repo):
    first, second = (repo.commit({"a": StateFile.of(state(seed))}).id for seed in range(2))
    right, other = (StateFile.of(state(seed)).root for seed in (1, 0))
    for path, root in (("a", other), ("b", right)):
        with pytest.raises(DamagedData):
            repo.storage.prove([Proof(second, path, root, first, 1)], where="here")
    assert not repo.storage.proofs()
    repo.storage.prove([Proof(second, "a", right, first, 1)], where="here")
    assert set(repo.storage.proofs()) == {second}
    with pytest.raises(CannotRetrain):  # it carries no recipe
        repo.storage.drop_weights({second: Alternative(first, "a", 1)})
    assert same(repo.checkout(second, path="a"), state(1))
