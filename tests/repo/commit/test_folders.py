"""A folder that is named in a commit means its content: what is gone from it leaves the version."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

import mvc
from mvc.errors import WrongUsage
from tests.repo.working import write_model


@pytest.fixture
def repo(tmp_path: Path):
    with mvc.Repository.init(tmp_path) as opened:
        yield opened


def one_file(folder: Path, value: float) -> None:
    save_file({name: np.full(4, value, np.float32) for name in "xy"}, folder / "model.safetensors")


def shards(folder: Path, value: float) -> None:
    names = {name: f"model-0000{i}-of-00002.safetensors" for i, name in enumerate("xy", 1)}
    for name, file in names.items():
        save_file({name: np.full(4, value, np.float32)}, folder / file)
    index = {"metadata": {}, "weight_map": names}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def distributed(folder: Path, value: float) -> None:
    """As torch.distributed.checkpoint names its files: by rank and number."""
    for rank in range(int(value) + 1):
        (folder / f"__{rank}_0.distcp").write_bytes(b"PK" + bytes([int(value), rank]))
    (folder / ".metadata").write_bytes(bytes([int(value)]))


def orbax(folder: Path, value: float) -> None:
    """As Orbax names its files: by hashes, in folders."""
    for name in ("ocdbt.process_0/d", "d"):
        (folder / name).mkdir(parents=True)
        (folder / name / f"{int(value):032x}").write_bytes(bytes([int(value)]))
    (folder / "_METADATA").write_text(str(value))


def on_disk(folder: Path) -> dict[str, bytes]:
    return {
        file.relative_to(folder).as_posix(): file.read_bytes()
        for file in folder.rglob("*")
        if file.is_file() and ".mvc" not in file.parts
    }


@pytest.mark.parametrize(
    ("before", "after"),
    [(one_file, shards), (shards, one_file), (distributed, distributed), (orbax, orbax)],
)
def test_a_folder_that_was_written_anew_is_live_as_it_is(
    repo: mvc.Repository,
    before: Callable[[Path, float], None],
    after: Callable[[Path, float], None],
) -> None:
    net = repo.root / "net"
    write_model(repo.root / "beside.safetensors")
    repo.commit(repo.root / "beside.safetensors")
    for make, value in ((before, 2.0), (after, 1.0)):
        shutil.rmtree(net, ignore_errors=True)
        net.mkdir()
        make(net, value)
        done = repo.commit(net, deploy="prod")
    served = repo.root.parent / f"{repo.root.name}-served"
    repo.checkout(target="prod", to=f"{served}/")
    assert on_disk(served) == on_disk(repo.root)  # beside.safetensors stays, as nobody named it
    left = {path.path for path in done.paths if path.kind == "removed"}
    renamed = {path.renamed_from for path in done.paths if path.kind == "renamed"}
    before_it = {entry.path for entry in repo.manifest("HEAD~1").entries}
    assert left | renamed == before_it - {entry.path for entry in repo.manifest().entries} != set()


def test_a_folder_of_the_new_layout_is_one_model(repo: mvc.Repository) -> None:
    net = repo.root / "net"
    net.mkdir()
    one_file(net, 0)
    repo.commit(net, deploy="prod")
    (net / "model.safetensors").unlink()
    shards(net, 1)
    repo.commit(net, deploy="prod")
    state = repo.checkout(target="prod", path="net")
    assert {name: float(state[name][0]) for name in state} == {"x": 1, "y": 1}


def test_only_a_named_folder_loses_files(repo: mvc.Repository) -> None:
    for name in ("a/x", "a/deep/y", "ab/z", "top"):
        write_model(repo.root / f"{name}.safetensors", seed=len(name))
    repo.commit(repo.root)
    for name in ("a/x", "a/deep/y", "ab/z", "top"):
        (repo.root / f"{name}.safetensors").unlink()
    write_model(repo.root / "a/new.safetensors")
    paths = repo.commit(repo.root / "a").paths
    assert {(p.path, p.kind) for p in paths} == {
        ("a/new.safetensors", "added"), ("a/x.safetensors", "removed"),
        ("a/deep/y.safetensors", "removed"),
    }  # fmt: skip
    repo.commit(repo.root)
    assert repo.manifest().by_path.keys() == {"a/new.safetensors"}


def test_states_of_python_and_files_of_others_stay(repo: mvc.Repository) -> None:
    repo.commit({"w": np.ones(3)}, path="net/state.safetensors")
    write_model(repo.root / "net/a.safetensors")
    repo.commit(repo.root / "net")
    (repo.root / "net/a.safetensors").unlink()
    write_model(repo.root / "net/b.safetensors", seed=1)
    repo.commit(repo.root / "net")
    assert repo.manifest().by_path.keys() == {"net/state.safetensors", "net/b.safetensors"}


def test_a_tracked_file_that_is_ignored_is_recorded_as_it_is(repo: mvc.Repository) -> None:
    write_model(repo.root / "net/a.safetensors")
    write_model(repo.root / "net/b.safetensors")
    repo.commit(repo.root / "net")
    (repo.root / ".mvcignore").write_text("a.safetensors\n")
    write_model(repo.root / "net/a.safetensors", seed=1)
    changes = {path.path: path.kind for path in repo.commit(repo.root / "net").paths}
    assert changes["net/a.safetensors"] == "changed"
    assert repo.status().clean
    (repo.root / "net/a.safetensors").unlink()
    repo.commit(repo.root / "net")
    assert "net/a.safetensors" not in repo.manifest().by_path


def test_the_branch_that_gets_the_version_says_what_is_tracked(repo: mvc.Repository) -> None:
    write_model(repo.root / "net/a.safetensors")
    repo.commit(repo.root / "net")
    repo.branch("other")
    (repo.root / "net/a.safetensors").unlink()
    write_model(repo.root / "net/b.safetensors")
    repo.commit(repo.root / "net", options=mvc.CommitOptions(branch="other"))
    assert repo.manifest("other").by_path.keys() == {"net/b.safetensors"}
    assert repo.manifest("main").by_path.keys() == {"net/a.safetensors"}


def test_an_empty_folder_is_refused(repo: mvc.Repository) -> None:
    write_model(repo.root / "net/a.safetensors")
    repo.commit(repo.root / "net")
    (repo.root / "net/a.safetensors").unlink()
    with pytest.raises(WrongUsage, match="no files to commit"):
        repo.commit(repo.root / "net", deploy="prod")
    assert repo.manifest().by_path.keys() == {"net/a.safetensors"}
