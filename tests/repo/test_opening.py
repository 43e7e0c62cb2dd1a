from pathlib import Path
from typing import Any

import pytest

from mvc.api.repository import Repository
from mvc.errors import AlreadyARepository, DamagedData, InvalidConfig, NotARepository
from mvc.io.files import FileSystem
from tests.index_files import open_files


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The .mvc of an empty repository."""
    Repository.init(tmp_path).close()
    return tmp_path / ".mvc"


@pytest.mark.parametrize("name", ["format", "journal"])
@pytest.mark.parametrize("empty", [False, True])
def test_a_missing_or_empty_file_is_named(folder: Path, name: str, empty: bool) -> None:
    (folder / name).unlink()
    if empty:
        (folder / name).touch()
    for use in (Repository.open, Repository.init):
        with pytest.raises(DamagedData, match=f"damaged or incomplete: .*file {name}") as caught:
            use(folder.parent)
        hint = caught.value.hint or ""
        assert "restore" in hint and ("fsck --repair" in hint) is (name == "format")


def test_an_unreadable_journal_is_no_matter_for_a_mere_check(folder: Path) -> None:
    journal = folder / "journal"
    journal.write_bytes(bytes(journal.stat().st_size))
    with pytest.raises(DamagedData, match="both copies") as caught:
        Repository.open(folder.parent)
    assert "fsck --repair" in (caught.value.hint or "") and "journal" in (caught.value.hint or "")


def test_an_empty_folder_is_no_repository(tmp_path: Path) -> None:
    (tmp_path / ".mvc").mkdir()
    for use in (Repository.open, Repository.init):
        with pytest.raises(DamagedData, match="has no file format") as caught:
            use(tmp_path)
        assert (caught.value.hint or "").startswith(
            "if 'mvc restore' was interrupted, run it again"
        )


def test_a_file_is_no_repository(tmp_path: Path) -> None:
    (tmp_path / ".mvc").touch()
    for use in (Repository.open, Repository.init):
        with pytest.raises(NotARepository, match="is a file"):
            use(tmp_path)


def test_init_twice_says_that_it_can_be_used(folder: Path) -> None:
    with pytest.raises(AlreadyARepository) as caught:
        Repository.init(folder.parent)
    assert "mvc status" in (caught.value.hint or "")


def test_of_two_that_make_a_repository_at_once_one_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace = FileSystem.replace

    def late(fs: FileSystem, src: Path, dst: Path, **how: Any) -> None:
        monkeypatch.undo()
        Repository.init(tmp_path).close()
        replace(fs, src, dst, **how)

    monkeypatch.setattr(FileSystem, "replace", late)
    with pytest.raises(AlreadyARepository):
        Repository.init(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [".mvc"]
    Repository.open(tmp_path).close()


def test_a_configuration_that_cannot_be_read_leaves_no_index_open(tmp_path: Path) -> None:
    """An index is one a process: opening that fails must not hold it."""
    Repository.init(tmp_path).close()
    (tmp_path / ".mvc" / "config.yaml").write_text("store: [")
    with pytest.raises(InvalidConfig) as _held:
        Repository.open(tmp_path)
    assert not [path for path in open_files() if tmp_path in path.parents]
    assert _held.value
