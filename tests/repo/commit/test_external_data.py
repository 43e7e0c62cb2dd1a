"""Tensors of ONNX graphs in files beside them: the graphs in the folder say where they lie."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

import mvc
from mvc.adapters.opening import open_file
from mvc.importing.finding import find_histories
from mvc.system import FileSystem
from mvc.testing import fresh_process, killed
from tests.adapters.onnx_files import model, outside, tensor
from tests.repo.checkout.test_together import on, restore_in

FS = FileSystem()
FAR = 65_536


def weights(seed: int) -> tuple[np.ndarray, np.ndarray]:
    first = np.random.default_rng(0).standard_normal((2, 60, 100)).astype("<f4")
    return first[0] * np.float32(1 + seed * 1e-5), first[1]


def write(folder: Path, seed: int = 0, name: str = "model", far: int = FAR) -> Path:
    """A graph, and its data file with two tensors, one of which has two names."""
    a, b = weights(seed)
    folder.mkdir(parents=True, exist_ok=True)
    data = f"{name}.onnx.data"
    graph = model(
        tensor("small", a[0]),
        outside("a", a, location=data, offset=64, length=a.nbytes),
        outside("b", b, location=f"./{data}", offset=far),
        outside("tied", b, location=data, offset=far, length=b.nbytes),
    )
    (folder / f"{name}.onnx").write_bytes(graph)
    (folder / data).write_bytes(
        bytes(64) + a.tobytes() + bytes(far - 64 - a.nbytes) + b.tobytes() + b"end"
    )
    return folder


def keys(repo: mvc.Repository, path: str) -> dict[str, str]:
    return {t.key: str(t.spec) for t in repo.manifest("HEAD").by_path[path].tensors}


def test_a_data_file_has_the_tensors_of_its_graph(tmp_path: Path) -> None:
    folder = write(tmp_path / "net")
    shape = "float32[60, 100]"
    with mvc.Repository.init(tmp_path) as repo:
        first = repo.commit(folder, deploy="prod")
        assert keys(repo, "net/model.onnx") == {"small": "float32[100]"}
        assert keys(repo, "net/model.onnx.data") == dict.fromkeys(("a", "b", "tied"), shape)
        write(folder, 1)
        assert repo.commit(folder).stored_bytes < 10_000
        assert repo.status().clean
        changed = {t.key for f in repo.diff("HEAD~1", "HEAD").files for t in f.tensors
                   if t.kind == "changed"}  # fmt: skip
        assert changed == {"a", "small"}
        data = (folder / "model.onnx.data").read_bytes()
        repo.checkout(first.id, to=tmp_path)
        assert repo.status().clean and (folder / "model.onnx.data").read_bytes() != data
        write(tmp_path / "again", 0)
        assert (folder / "model.onnx.data").read_bytes() == (
            tmp_path / "again/model.onnx.data"
        ).read_bytes()
        (found,) = repo.identify(tmp_path / "again/model.onnx.data")
        assert found.commit == first.id and found.exact
        assert repo.storage.fsck(full=True).sound


def test_the_graph_comes_after_its_data(tmp_path: Path) -> None:
    folder = write(tmp_path)
    graph = (folder / "model.onnx").read_bytes()
    (folder / "model.onnx").unlink()
    with mvc.Repository.init(tmp_path) as repo:
        repo.commit(folder)
        (folder / "model.onnx").write_bytes(graph)
        status = repo.status()
        assert status.untracked == ("model.onnx",)
        assert {change.kind for change in status.changes} == {"unchanged"}
        assert {each.kind for each in repo.diff(None).files} == {"unchanged"}
        repo.commit(folder)
        assert keys(repo, "model.onnx.data").keys() == {"a", "b", "tied"}


def test_its_tensors_are_contents_of_other_files_too(tmp_path: Path) -> None:
    a, b = weights(0)
    save_file({"a": a, "b": b, "tied": b}, tmp_path / "m.safetensors")
    with mvc.Repository.init(tmp_path) as repo:
        first = repo.commit(tmp_path / "m.safetensors")
        write(tmp_path / "net")
        assert repo.commit(tmp_path / "net").stored_bytes < 3000
        found = repo.identify(tmp_path / "net/model.onnx.data")
        assert first.id in {each.commit for each in found}


def test_several_graphs_and_a_file_for_each_tensor(tmp_path: Path) -> None:
    a, b = weights(0)
    for n in range(12):
        write(tmp_path / "net", n, name=f"part{n}")
    one = model(outside("a", a, location="shared"), outside("b", b, location="b.weight"))
    two = model(outside("c", b, location="shared", offset=a.nbytes))
    files = {"x.onnx": one, "y.onnx": two, "shared": a.tobytes() + b.tobytes(), "b.weight": b}
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    with mvc.Repository.init(tmp_path) as repo:
        repo.commit(tmp_path)
        for n in range(12):
            assert keys(repo, f"net/part{n}.onnx.data").keys() == {"a", "b", "tied"}
        assert keys(repo, "shared").keys() == {"a", "c"}
        assert keys(repo, "b.weight").keys() == {"b"}


ODD = {
    "overlap": ({"offset": 0}, {"offset": 100}, {"a"}),
    "past the end": ({"offset": 0}, {"offset": 24_001}, {"a"}),
    "far past the end": ({"offset": 10**30}, {"offset": -1}, set()),
    "no numbers": ({"offset": "x"}, {"length": "1" * 5000}, {"a"}),
    "another length": ({"length": 8}, {"offset": 24_000, "length": 4}, {"a", "b"}),
    "elsewhere": ({"location": "../net/w"}, {"location": "/etc/passwd"}, set()),
    "zero bytes": ({"location": "w\0"}, {"location": "\0"}, set()),
}


@pytest.mark.parametrize("kind", ODD)
def test_odd_places(tmp_path: Path, kind: str) -> None:
    first, second, names = ODD[kind]
    a, b = weights(0)
    (tmp_path / "m.onnx").write_bytes(
        model(
            tensor("inside", a[0]),
            outside("a", a, **{"location": "w", **first}),
            outside("b", b, **{"location": "w", **second}),
        )
    )
    data = a.tobytes() + b.tobytes()
    (tmp_path / "w").write_bytes(data)
    with mvc.Repository.init(tmp_path) as repo:
        repo.commit(tmp_path)
        assert keys(repo, "w").keys() == names
        (tmp_path / "w").unlink()
        repo.checkout("HEAD", to=tmp_path, force=True)
        assert (tmp_path / "w").read_bytes() == data


def test_a_graph_is_imported_with_its_data(tmp_path: Path) -> None:
    exports = write(tmp_path / "exports", name="final")
    (exports / "notes.txt").write_text("notes")
    left_out: list[Path] = []
    (history,) = find_histories(FS, [exports], "mtime", None, left_out)
    assert left_out == [exports / "notes.txt"]
    (checkpoint,) = history.checkpoints
    assert checkpoint.size == sum(
        (exports / f"final.onnx{s}").stat().st_size for s in ("", ".data")
    )
    with mvc.Repository.init(tmp_path / "repo") as repo:
        (made,) = mvc.import_checkpoints(repo, [exports], deploy="prod")
        assert {*repo.manifest("HEAD").by_path} == {"model.onnx", "final.onnx.data"}
        assert keys(repo, "final.onnx.data").keys() == {"a", "b", "tied"}
        (again,) = mvc.import_checkpoints(repo, [exports], deploy="prod")
        assert again.commit == made.commit and not again.is_new
        repo.checkout("HEAD", to=tmp_path / "out")
    for ours, theirs in (("model.onnx", "final.onnx"), ("final.onnx.data",) * 2):
        assert (tmp_path / "out" / ours).read_bytes() == (exports / theirs).read_bytes()


def test_a_file_is_told_from_others_wherever_it_lies(tmp_path: Path) -> None:
    folder = write(tmp_path / "net")
    with open_file(FS, folder / "model.onnx.data", "net/model.onnx.data") as file:
        entry = file.entry
    alone = tmp_path / "alone"
    alone.write_bytes((folder / "model.onnx.data").read_bytes())

    def content_id(like: mvc.FileEntry | None) -> bytes:
        with open_file(FS, alone, "alone", like=like) as file:
            return file.entry.content_id

    assert content_id(entry) == entry.content_id != content_id(None) and entry.tensors
    alone.write_bytes(alone.read_bytes()[:-1] + b"x")
    assert content_id(entry) != entry.content_id
    alone.write_bytes(alone.read_bytes() + b"x")
    assert content_id(entry) == content_id(None)


def test_a_data_file_is_as_in_head_also_without_its_graph(tmp_path: Path) -> None:
    folder = write(tmp_path / "net")
    with mvc.Repository.init(tmp_path) as repo:
        repo.commit(folder)
        (folder / "model.onnx").rename(tmp_path / "other.onnx")
        rows = {row.path: row.kind for row in repo.status().changes}
        assert rows == {"net/model.onnx.data": "unchanged", "other.onnx": "renamed"}


@pytest.mark.parametrize("name", ["model.onnx", "model.onnx.data"])
def test_a_killed_checkout_is_completed(tmp_path: Path, name: str) -> None:
    with mvc.Repository.init(tmp_path) as repo:
        first = repo.commit(write(tmp_path / "net", 0, far=FAR)).id
        held = [(tmp_path / "net" / n).read_bytes() for n in ("model.onnx", "model.onnx.data")]
        repo.commit(write(tmp_path / "net", 1, far=2 * FAR))
    assert killed(restore_in(tmp_path, str(first)), on("replace", name))
    fresh_process()
    with mvc.Repository.open(tmp_path) as repo:
        assert repo.find() == first and repo.status().clean
    assert held == [(tmp_path / "net" / n).read_bytes() for n in ("model.onnx", "model.onnx.data")]


def test_repair_reads_a_data_file_of_the_working_folder(tmp_path: Path) -> None:
    with mvc.Repository.init(tmp_path) as repo:
        repo.commit(write(tmp_path / "net"))
    for pack in (tmp_path / ".mvc/packs").rglob("*"):
        if pack.is_file():
            data = bytearray(pack.read_bytes())
            data[len(data) // 2] ^= 1
            pack.write_bytes(data)
    fresh_process()
    words = [sys.executable, "-m", "mvc", "-C", str(tmp_path), "fsck", "--repair"]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    with mvc.Repository.open(tmp_path) as repo:
        assert repo.storage.fsck(full=True).sound
