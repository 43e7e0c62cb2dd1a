from __future__ import annotations

import os
import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import mvc
from mvc.api.repository import Repository
from mvc.errors import MvcError, StorageFull, WrongUsage
from mvc.io.files import TEMPORARY, FileSystem
from mvc.io.replacement import make_folder, removing_if_failed
from mvc.repo.checkout import checkout
from mvc.testing import HookedFS
from tests.faults.crashfs import CrashFS
from tests.faults.recording import RecordingFS
from tests.repo.working import write_model


def test_only_empty_folders_that_were_made_are_removed(tmp_path: Path) -> None:
    fs = FileSystem()
    (tmp_path / "before").mkdir()
    with pytest.raises(KeyError), removing_if_failed(fs) as made:
        make_folder(fs, tmp_path / "before/new/out/sub/sub", created=made)
        raise KeyError
    assert list((tmp_path / "before").iterdir()) == []
    with pytest.raises(KeyError), removing_if_failed(fs) as made:
        make_folder(fs, tmp_path / "new/out/sub", created=made)
        (tmp_path / "new/out/file").touch()
        raise KeyError
    assert [p.name for p in (tmp_path / "new/out").iterdir()] == ["file"]


def test_empty_folders_of_another_process_stay(tmp_path: Path) -> None:
    fs = FileSystem()
    with pytest.raises(KeyError), removing_if_failed(fs) as made:
        (tmp_path / "new/theirs").mkdir(parents=True)  # between the question and the answer
        make_folder(fs, tmp_path / "new/ours", created=made)
        raise KeyError
    assert [p.name for p in (tmp_path / "new").iterdir()] == ["theirs"]


def test_a_checkout_that_fails_leaves_empty_folders_of_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repo = Repository.init(tmp_path / "models")
    for name in ("a/m.safetensors", "b/m.safetensors"):
        (repo.root / name).parent.mkdir()
        write_model(repo.root / name)
    repo.commit([repo.root / "a", repo.root / "b"])
    out = tmp_path / "out"

    def full(*_: object, **__: object) -> None:
        (out / "logs").mkdir()  # another process, in the folder that the checkout made
        raise StorageFull("no space left")

    monkeypatch.setattr(checkout, "fill_file", full)
    with pytest.raises(StorageFull):
        repo.checkout(to=out)
    assert [p.name for p in out.iterdir()] == ["logs"]


def test_an_output_that_cannot_be_written_leaves_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repo = Repository.init(tmp_path / "models")
    write_model(repo.root / "m.safetensors")
    repo.commit(repo.root / "m.safetensors")

    def full(*_: object, **__: object) -> None:
        raise StorageFull("no space left")

    monkeypatch.setattr(checkout, "fill_file", full)
    with pytest.raises(StorageFull):
        repo.checkout(to=tmp_path / "a/b/live.safetensors")
    assert not (tmp_path / "a").exists()


# -- what was acknowledged is there after a power loss, and so are the folders it lies in --------

DRAWS = 40


def images(fs: CrashFS, base: Path) -> Iterator[Path]:
    """What a power loss after the last change may leave, drawn many times."""
    chance = random.Random(10)
    for i in range(DRAWS):
        fs.image(fs.crash_points(), chance, base / f"image{i}")
        yield base / f"image{i}"


@pytest.mark.parametrize("place", ["a", "a/b", "there/a/b/c"])
def test_a_new_repository_survives_with_the_folders_above_it(tmp_path: Path, place: str) -> None:
    (tmp_path / "disk/there").mkdir(parents=True)
    fs = CrashFS(tmp_path / "disk")
    with Repository.init(tmp_path / "disk" / place, fs=fs) as repo:
        wanted = repo.commit({"w": np.ones(3, np.float32)}).id
    for image in images(fs, tmp_path):
        with Repository.open(image / place) as found:
            assert found.find() == wanted


@pytest.mark.parametrize("output", ["x/y/z", "there/x/model.safetensors", "x/y/model.safetensors"])
def test_files_that_were_written_survive_with_the_folders_above_them(
    tmp_path: Path, output: str
) -> None:
    with Repository.init(tmp_path / "models") as repo:
        for name in ("model.safetensors", "sub/dir/other.safetensors"):
            write_model(repo.root / name)
        repo.commit([repo.root])
    paths = ["model.safetensors"] if output.endswith(".safetensors") else []
    (tmp_path / "disk/there").mkdir(parents=True)
    fs = CrashFS(tmp_path / "disk")
    with Repository.open(tmp_path / "models", fs=fs) as repo:
        repo.checkout(to=tmp_path / "disk" / output, path=paths)
    wanted = held(tmp_path / "disk")
    assert len(wanted) == (1 if paths else 2)
    assert all(held(image) == wanted for image in images(fs, tmp_path))


def test_the_folders_of_a_whole_version_survive(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    with Repository.init(tmp_path / "disk/models") as repo:
        write_model(repo.root / "sub/dir/model.safetensors")
        repo.commit([repo.root])
        shutil.rmtree(repo.root / "sub")
    fs = CrashFS(tmp_path / "disk")
    with Repository.open(tmp_path / "disk/models", fs=fs) as repo:
        repo.checkout("HEAD", to=repo.root)
    for image in images(fs, tmp_path):
        assert (image / "models/sub/dir/model.safetensors").is_file()


def held(folder: Path) -> dict[str, bytes]:
    """The content of every file by its path."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def test_folders_that_were_there_are_not_flushed(tmp_path: Path) -> None:
    (tmp_path / "a/b").mkdir(parents=True)
    fs = RecordingFS()
    Repository.init(tmp_path / "a/b/c/d", fs=fs).close()
    flushed = {call.path for call in fs.calls if call.op == "sync_dir"}
    assert {tmp_path / "a/b", tmp_path / "a/b/c"} <= flushed
    assert not flushed & {tmp_path, tmp_path / "a"}


def test_a_repository_that_cannot_be_made_leaves_no_folder(tmp_path: Path) -> None:
    def full(_: int, op: str, path: Path) -> None:
        if op == "open_write" and path.name.startswith(TEMPORARY):
            raise StorageFull("no space left")

    with pytest.raises(StorageFull):
        Repository.init(tmp_path / "a/b", fs=HookedFS(full))
    assert not (tmp_path / "a").exists()


def test_a_checkout_that_cannot_be_finished_does_not_hold_up_later_ones(
    repo: mvc.Repository,
) -> None:
    (repo.root / "a.txt").write_text("one")
    (repo.root / "d").write_text("d")
    repo.commit([repo.root / "a.txt", repo.root / "d"])
    repo.branch("other")
    repo.switch("other")
    (repo.root / "a.txt").write_text("two")
    (repo.root / "d").unlink()
    repo.commit([repo.root / "a.txt", repo.root / "d"])
    repo.switch("main")
    (repo.root / "d").unlink()
    (repo.root / "d").mkdir()
    with pytest.raises(MvcError):
        repo.switch("other", force=True)
    (repo.root / "d").rmdir()
    repo.switch("main", force=True)
    assert (repo.root / "a.txt").read_text() == "one"
    assert not os.listdir(repo.root / ".mvc" / "checkouts")


def test_an_empty_output_is_no_folder(repo: mvc.Repository) -> None:
    repo.commit({"w": np.ones(3, np.float32)})
    with pytest.raises(WrongUsage, match="argument 'to' is empty"):
        repo.checkout(to="", delete=True, force=True)
