"""Data sets: stored once, by reference, compared before they are used."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import mvc
import mvc.recipes as recipes
from mvc.errors import (
    CannotRecord,
    CannotRetrain,
    DamagedData,
    InvalidName,
    UnknownPath,
    WrongUsage,
)
from mvc.ids import CommitId
from mvc.recipes.dataset import place, used
from mvc.recipes.recipe import Data
from mvc.repo.commit.commit import commit
from mvc.repo.commit.request import CommitRequest
from mvc.repo.handle import Handle
from mvc.state import StateFile


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "food"
    (made / "train").mkdir(parents=True)
    (made / "train/a.txt").write_text("apple " * 1000)
    (made / "train/b.txt").write_text("bread " * 1000)
    (made / "labels.csv").write_text("a,1\nb,2\n")
    return made


def placed(repo: mvc.Repository, name: str, folder: Path, file: str = "") -> Path:
    return place(repo, Data(name, recipes.data_set(repo, name).version, file), folder)


def test_a_data_set_is_stored_once_and_each_version_has_its_files(
    repo: mvc.Repository, folder: Path, tmp_path: Path
) -> None:
    first = recipes.add_data(repo, folder)
    assert first.files == ("labels.csv", "train/a.txt", "train/b.txt")
    assert recipes.add_data(repo, folder) == first  # nothing changed, nothing is stored
    (folder / "train/b.txt").unlink()
    (folder / "train/c.txt").write_text("cake")
    second = recipes.add_data(repo, folder, message="bread is out")
    assert second.files == ("labels.csv", "train/a.txt", "train/c.txt")
    assert repo.version("data/food").parents == (first.version,)
    assert [each.name for each in recipes.data_sets(repo)] == ["food"]
    assert repo.head().commit is None  # no branch has moved
    written = place(repo, Data("food", first.version, ""), tmp_path / "out")
    assert (written / "train/b.txt").read_text() == "bread " * 1000
    assert not (written / "train/c.txt").exists()
    repo.storage.gc(grace="0")
    assert repo.storage.fsck(full=True).sound


def test_a_reference_is_compared_file_by_file(
    repo: mvc.Repository, folder: Path, tmp_path: Path
) -> None:
    found = recipes.add_data(repo, folder, name="outside", reference=True)
    assert found.source == str(folder)
    assert found.nbytes == sum(f.stat().st_size for f in folder.rglob("*.*"))
    assert placed(repo, "outside", tmp_path / "x") == folder
    for change, message in (
        (lambda: (folder / "labels.csv").write_text("a,1\nb,3\n"), "labels.csv has other content"),
        (lambda: (folder / "labels.csv").unlink(), "labels.csv is missing"),
        (lambda: (folder / "labels.csv").write_text("a,1\nb,2\n"), ""),
        (lambda: (folder / "new").write_text(""), "new is new"),
    ):
        change()
        if message:
            with pytest.raises(CannotRetrain, match=f"outside has changed: {message}"):
                placed(repo, "outside", tmp_path / "x")
        else:
            assert placed(repo, "outside", tmp_path / "x") == folder
    folder.rename(tmp_path / "elsewhere")
    with pytest.raises(CannotRetrain, match="outside is missing: there is no"):
        placed(repo, "outside", tmp_path / "x")


def test_names_and_sources_that_are_none_are_refused(
    repo: mvc.Repository, folder: Path, tmp_path: Path
) -> None:
    with pytest.raises(InvalidName):
        recipes.add_data(repo, folder, name="a/b")
    with pytest.raises(UnknownPath):
        recipes.add_data(repo, tmp_path / "nothing")
    with pytest.raises(UnknownPath, match="no data set none"):
        recipes.data_set(repo, "none")


@pytest.mark.parametrize(
    "document",
    [
        {},
        {"schema": "mvc.reference/1", "source": "relative", "files": {"a": [1, "0" * 64]}},
        {"schema": "mvc.reference/1", "source": "/x", "files": {"../a": [1, "0" * 64]}},
        {"schema": "mvc.reference/1", "source": "/x", "files": {"a": [-1, "0" * 64]}},
        {"schema": "mvc.reference/1", "source": "/x", "files": {"a": [1, "no"]}},
        {"schema": "mvc.reference/1", "source": "file:///x", "files": {"a": [1, "0" * 64]}},
        [1],
    ],
)
def test_hostile_references_are_refused(
    repo: mvc.Repository, tmp_path: Path, document: object
) -> None:
    (tmp_path / "reference.json").write_text(json.dumps(document))
    forged(repo.handle, tmp_path / "reference.json")
    with pytest.raises(DamagedData, match="no valid reference to a data set"):
        recipes.data_set(repo, "forged")


def forged(context: Handle, path: Path) -> None:
    request = CommitRequest(
        contents={"reference.json": StateFile.of_bytes(path.read_bytes())},
        params={"mvc.data": "reference"},
        options=mvc.CommitOptions(tag="data/forged"),
    )
    commit(context.store, context.config, context.recent, request)


def test_a_training_has_no_more_data_sets_than_a_commit_can_need(
    repo: mvc.Repository, folder: Path
) -> None:
    many = {f"set{n}": folder / "labels.csv" for n in range(1024)}
    with pytest.raises(CannotRecord, match="at most 1023 data sets"):
        used(repo, many)
    assert not recipes.data_sets(repo)
    ids = [CommitId(n.to_bytes(32, "big")) for n in range(1025)]
    with pytest.raises(WrongUsage, match="needs at most 1024 other"):
        repo.commit({"w": 1}, options=mvc.CommitOptions(needs=ids))
