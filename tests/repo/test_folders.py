from pathlib import Path

import pytest

from mvc.errors import StorageFull
from mvc.io.files import FileSystem
from mvc.repo import checkout
from mvc.repo.folders import taken_back
from mvc.repo.repository import Repository
from tests.repo.working import write_model


def test_only_empty_folders_that_were_made_are_removed(tmp_path: Path) -> None:
    (tmp_path / "before").mkdir()
    with pytest.raises(KeyError), taken_back(FileSystem(), tmp_path / "before/new/out"):
        (tmp_path / "before/new/out/sub/sub").mkdir(parents=True)
        raise KeyError
    assert list((tmp_path / "before").iterdir()) == []
    with pytest.raises(KeyError), taken_back(FileSystem(), tmp_path / "new/out"):
        (tmp_path / "new/out/sub").mkdir(parents=True)
        (tmp_path / "new/out/file").touch()
        raise KeyError
    assert [p.name for p in (tmp_path / "new/out").iterdir()] == ["file"]


def test_an_output_that_cannot_be_written_leaves_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repo = Repository.init(tmp_path / "models")
    write_model(repo.root / "m.safetensors")
    repo.commit(repo.root / "m.safetensors")

    def full(*_: object) -> None:
        raise StorageFull("no space left")

    monkeypatch.setattr(checkout, "write_file", full)
    with pytest.raises(StorageFull):
        repo.restore(output=tmp_path / "a/b/live.safetensors")
    assert not (tmp_path / "a").exists()
