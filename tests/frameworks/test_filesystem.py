"""Versions read through fsspec: where a path leads, what lies there, ranges of files."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch

import mvc
from mvc.errors import InvalidName, NotARepository, UnknownRevision, WrongUsage
from mvc.frameworks.fsspec.filesystem import VersionPath
from tests.frameworks.need import need

fsspec = need("fsspec")


def state(seed: int = 0) -> dict[str, torch.Tensor]:
    draw = torch.Generator().manual_seed(seed)
    return {
        "w": torch.randn(20, 30, generator=draw),
        "half": torch.randn(7, generator=draw).bfloat16(),
        "n": torch.tensor(3),
    }


@pytest.fixture
def repo(repo, beside):
    files = {
        "ck/model.pt": lambda p: torch.save(state(), p),
        "ck/model.safetensors": lambda p: safetensors.torch.save_file(state(), p),
        "data/a.npz": lambda p: np.savez(p, a=np.arange(300), b=np.float32(2)),
        "notes.txt": lambda p: p.write_text("first\nsecond\n"),
    }
    for name, write in files.items():
        path = repo.root / name
        path.parent.mkdir(exist_ok=True)
        write(path)
    repo.commit(list(files), message="files", files=mvc.FileOptions(cwd=repo.root))
    repo.commit(state(1), message="state")
    repo.tag("v1", "HEAD~1")
    return repo


@pytest.fixture
def fs():
    return fsspec.filesystem("mvc")


def test_every_form_of_a_path_leads_to_the_same_file(repo, fs, monkeypatch):
    expected = (repo.root / "notes.txt").read_bytes()
    newest = str(repo.find())
    repo.branch("feature/x")
    for rev in ("", "@main", "@HEAD", "@HEAD~1", "@v1", f"@{newest[:12]}", "@heads%2Fmain"):
        assert fs.cat_file(f"mvc://models{rev}/notes.txt") == expected
        assert fs.cat_file(f"mvc://{repo.root}{rev}/notes.txt") == expected
    assert fs.cat_file("mvc://models@feature%2Fx/notes.txt") == expected
    assert fs.cat_file("mvc://models@main@{now}/notes.txt") == expected
    with fsspec.open("mvc://models@v1/notes.txt", "r") as file:
        assert file.readlines() == ["first\n", "second\n"]
    monkeypatch.chdir("models/data")
    assert fs.cat_file("mvc://../../models@v1/notes.txt") == expected


def test_names_are_absolute_and_lead_back(repo, fs, monkeypatch):
    names = fs.find("mvc://models@v1")
    assert [os.path.relpath(n, repo.root.parent) for n in names] == [
        "models@v1/ck/model.pt",
        "models@v1/ck/model.safetensors",
        "models@v1/data/a.npz",
        "models@v1/notes.txt",
    ]
    monkeypatch.chdir("/")
    assert all(fs.exists(name) and fs.isfile(fs.unstrip_protocol(name)) for name in names)


def test_repositories_with_at_signs_and_repositories_in_repositories(tmp_path, fs):
    outer = tmp_path / "me@host" / "models"
    for place in (outer, outer / "sub"):
        with mvc.Repository.init(place) as repo:
            repo.commit({"w": torch.full((2,), float(len(str(place))))}, message="x")
    for place in (outer, outer / "sub"):
        at = VersionPath(f"{place}@main/a@b/c")
        assert (at.repo.root, at.rev, at.path) == (place, "main", "a@b/c")
    at = VersionPath(f"{outer}/sub@main")
    assert (at.repo.root, at.path) == (outer / "sub", "")
    at = VersionPath(f"{outer}/x@y/z")
    assert (at.repo.root, at.rev, at.path) == (outer, None, "x@y/z")


@pytest.mark.parametrize("name", ["ck/model.pt", "ck/model.safetensors", "data/a.npz", "notes.txt"])
def test_bytes_are_those_of_the_file_in_any_order(repo, fs, name):
    expected = (repo.root / name).read_bytes()
    path = f"mvc://models@v1/{name}"
    assert fs.cat_file(path) == expected
    assert fs.info(path)["size"] == len(expected)
    with fs.open(path) as file:
        for start in range(len(expected) - 5, -1, -max(1, len(expected) // 40)):
            file.seek(start)
            assert file.read(7) == expected[start : start + 7]
        file.seek(-4, io.SEEK_END)
        assert (file.read(), file.read(), file.tell()) == (expected[-4:], b"", len(expected))
        file.seek(len(expected) + 9)
        assert file.read(3) == b""
    assert fs.cat_file(path, 3, 9) == expected[3:9]
    assert fs.cat_file(path, -6, -2) == expected[-6:-2]


def test_a_checksum_is_right_before_what_it_covers_was_read(repo, fs):
    with fs.open("mvc://models@v1/ck/model.pt") as file, zipfile.ZipFile(file) as archive:
        assert archive.testzip() is None


def test_readers_of_model_files(repo, fs):
    with fs.open("mvc://models@v1/ck/model.pt") as file:
        loaded = torch.load(file)
    raw = fs.cat_file("mvc://models@v1/ck/model.safetensors")
    for name, value in state().items():
        assert torch.equal(loaded[name], value)
        assert torch.equal(safetensors.torch.load(raw)[name], value)
    with fsspec.open("mvc://models@v1/data/a.npz") as file:
        assert np.array_equal(np.load(file)["a"], np.arange(300))
    state_bytes = fs.cat_file("mvc://models/model.safetensors")
    assert torch.equal(safetensors.torch.load(state_bytes)["w"], state(1)["w"])


def test_looking_around(repo, fs):
    root = f"{repo.root}@v1"
    assert fs.ls("mvc://models@v1", detail=False) == [
        f"{root}/ck",
        f"{root}/data",
        f"{root}/notes.txt",
    ]
    assert [e["type"] for e in fs.ls("mvc://models@v1")] == ["directory", "directory", "file"]
    assert fs.ls("mvc://models@v1/notes.txt", detail=False) == [f"{root}/notes.txt"]
    assert fs.glob("mvc://models@v1/*/model.*") == [
        f"{root}/ck/model.pt",
        f"{root}/ck/model.safetensors",
    ]
    assert [top for top, _, _ in fs.walk("mvc://models@v1")] == [root, f"{root}/ck", f"{root}/data"]
    info = fs.info("mvc://models@v1/notes.txt")
    assert (info["type"], info["format"], info["commit"]) == (
        "file",
        "opaque",
        str(repo.find("v1")),
    )
    assert fs.isdir("mvc://models") and fs.isdir("mvc://models@v1/ck")
    assert fs.ukey("mvc://models@v1/notes.txt") == fs.ukey("mvc://models/notes.txt")
    assert fs.ukey("mvc://models@v1") != fs.ukey("mvc://models")


def test_fetching_a_folder(repo, fs, tmp_path):
    fs.get("mvc://models@v1/ck/", str(tmp_path / "out"), recursive=True)
    for name in ("model.pt", "model.safetensors"):
        expected = (repo.root / "ck" / name).read_bytes()
        assert (tmp_path / "out" / name).read_bytes() == expected


def test_what_is_not_there(repo, fs, tmp_path):
    for path in ("models@v1/none", "models@v1/ck/mod", "models@v1/notes.txt/x"):
        assert not fs.exists(f"mvc://{path}")
        with pytest.raises(FileNotFoundError, match="has no path"):
            fs.info(f"mvc://{path}")
        with pytest.raises(mvc.MvcError, match="has no path"):
            fs.open(f"mvc://{path}")
    assert not fs.exists("mvc://models@v9/notes.txt")
    assert not fs.exists(f"mvc://{tmp_path}/elsewhere@main")
    with pytest.raises(UnknownRevision):
        fs.ls("mvc://models@v9")
    with pytest.raises(NotARepository, match="elsewhere"):
        fs.ls(f"mvc://{tmp_path}/elsewhere@main")
    with pytest.raises(InvalidName, match="no revision"):
        fs.ls("mvc://models@/x")
    with pytest.raises(IsADirectoryError):
        fs.open("mvc://models@v1/ck")


@pytest.mark.parametrize(
    "path", ["../x", "ck/../../x", "ck/./model.pt", ".mvc/config.yaml", "a\nb"]
)
def test_paths_do_not_leave_the_version(repo, fs, path):
    for act in (fs.cat_file, fs.info, fs.exists, lambda p: fs.open(p, "wb")):
        with pytest.raises(InvalidName):
            act(f"mvc://models@main/{path}")


def test_an_empty_repository(tmp_path, fs):
    mvc.Repository.init(tmp_path / "r").close()
    for rev in ("", "@main", "@HEAD"):
        assert fs.ls(f"mvc://{tmp_path}/r{rev}") == []
        assert fs.isdir(f"mvc://{tmp_path}/r{rev}")
        assert not fs.exists(f"mvc://{tmp_path}/r{rev}/x")


def test_other_processes_versions_are_seen(repo, fs):
    assert not fs.exists("mvc://models/more.txt")
    with mvc.Repository.open(repo.root) as other:
        (repo.root / "more.txt").write_text("x")
        other.commit("more.txt", files=mvc.FileOptions(cwd=repo.root))
    assert fs.cat_file("mvc://models/more.txt") == b"x"


def test_an_open_file_stays_the_version_it_was(repo, fs):
    with fs.open("mvc://models@main/notes.txt") as file:
        (repo.root / "notes.txt").write_text("changed")
        repo.commit("notes.txt", files=mvc.FileOptions(cwd=repo.root))
        assert file.read() == b"first\nsecond\n"
    with pytest.raises(ValueError, match="closed"):
        file.read()


def test_damage_is_not_handed_out(repo, fs):
    good = fs.cat_file("mvc://models@v1/ck/model.safetensors")
    pack = next(Path(repo.root, ".mvc/packs").iterdir())
    data = bytearray(pack.read_bytes())
    for i in range(len(data) // 4, len(data), 97):
        data[i] ^= 0x55
    pack.write_bytes(data)
    fsspec.filesystem("mvc").clear_instance_cache()
    with mvc.Repository.open(repo.root):
        try:
            again = fs.cat_file("mvc://models@v1/ck/model.safetensors")
        except mvc.MvcError as error:
            assert error.exit_code == 4
        else:
            assert again == good


def test_a_replaced_repository_is_opened_anew(tmp_path, fs):
    for text in ("one", "two"):
        place = tmp_path / "r"
        if place.exists():
            place.rename(tmp_path / "old")
        with mvc.Repository.init(place) as repo:
            (place / "t").write_text(text)
            repo.commit("t", files=mvc.FileOptions(cwd=place))
        assert fs.cat_file(f"mvc://{place}/t") == text.encode()


def test_the_file_system_travels_to_other_processes(fs):
    import pickle

    assert pickle.loads(pickle.dumps(fs)) == fs


def test_modes_that_versions_do_not_have(repo, fs):
    for mode in ("ab", "r+b"):
        with pytest.raises(WrongUsage, match="only be replaced"):
            fs.open("mvc://models/notes.txt", mode)


def test_reading_and_writing_files_does_not_load_torch(repo):
    program = (
        "import fsspec, sys\n"
        "with fsspec.open('mvc://models@v1/notes.txt') as f: text = f.read()\n"
        "with fsspec.open('mvc://models@main/copy.txt', 'wb') as f: f.write(text)\n"
        "fsspec.filesystem('mvc').exists('mvc://models/.metadata')\n"
        "print('torch' in sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout == "False\n"
    assert repo.manifest().by_path["copy.txt"].size == 13
