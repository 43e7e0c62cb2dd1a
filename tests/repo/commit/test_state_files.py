"""Commits of files by path: made before, stored already, or gone."""

import numpy as np
import pytest

import mvc
from mvc.api import FileEntry
from mvc.errors import SourceChanged, StateForgotten
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
