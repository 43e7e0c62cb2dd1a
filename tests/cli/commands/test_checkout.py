from __future__ import annotations

import shlex
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file
from torch import nn

import mvc as library
from mvc.api.repository import Repository
from tests.cli.program import spawn
from tests.models.whole import commit_model
from tests.repo.checkout.receiver import pull


@pytest.fixture
def versions(mvc):
    for value in (1, 2, 3):
        mvc.commit(value)
        mvc("deploy", "HEAD", "prod", "--at", f"2026-11-0{value}T10:00Z")
    return mvc


def content(mvc, name: str = "model.safetensors") -> bytes:
    return (mvc.folder / name).read_bytes()


# -- output elsewhere ----------------------------------------------------------------------


@pytest.fixture
def recorded(mvc):
    """A version as a Recorder makes it: a model, and the training state beside it."""
    with Repository.open(mvc.folder) as repo:
        model, training = {"w": np.arange(3.0)}, {"step": 1, "m": np.zeros(3)}
        repo.commit(model, states={"model.training.safetensors": training}, deploy="prod")
    return mvc


def test_one_model_is_written_to_the_file_that_is_named(recorded) -> None:
    result = recorded("checkout", "--target", "prod", "--at", "now", "-o", "live.safetensors")
    assert (recorded.folder / "live.safetensors").is_file()
    assert "not written: model.training.safetensors; --all writes" in result.err
    assert list(load_file(recorded.folder / "live.safetensors")) == ["w"]
    found = recorded("checkout", "HEAD", "-o", "x.safetensors", "--json").json
    assert found["left_out"] == ["model.training.safetensors"]


def test_only_targets_that_count_are_candidates(recorded) -> None:
    recorded("deploy", "HEAD", "a-mistake")
    several = recorded("checkout", "--at", "now", "-o", "x.safetensors", code=3)
    assert "there are several targets: a-mistake, prod" in several.err
    recorded("deploy", "HEAD", "a-mistake", "--retract")
    done = recorded("checkout", "--at", "now", "-o", "x.safetensors")
    assert "was live on prod from" in done.err


def test_a_target_in_place_of_a_path_is_named(recorded) -> None:
    for more in ((), ("--json",)):
        refused = recorded("checkout", "prod", "--at", "now", "-o", "x.safetensors", *more, code=2)
        assert "--target prod" in refused.err + refused.out
    recorded("checkout", "model.safetensors", "--at", "now", "-o", "x.safetensors")


def test_what_changed_is_written_for_a_receiver(recorded) -> None:
    with Repository.open(recorded.folder) as repo:
        model = {"w": np.arange(3.0) + 1}
        repo.commit(model, states={"model.training.safetensors": {"step": 2, "m": np.ones(3)}})
    base = recorded("show", "--id", "HEAD~1").out.strip()
    recorded("checkout", "HEAD~1", "-o", "local/")
    done = recorded("checkout", "HEAD", "-o", "delta", "--delta-from", "HEAD~1", "--json").json
    assert done["left_out"] == ["model.training.safetensors"]
    assert pull(recorded.folder / "local", recorded.folder / "delta", base) == done["commit"]
    recorded("checkout", "HEAD", "-o", "whole/")
    name = "model.safetensors"
    assert content(recorded, f"local/{name}") == content(recorded, f"whole/{name}")


def test_the_training_state_comes_with_all_or_by_path(recorded) -> None:
    recorded("checkout", "HEAD", "-o", "both", "--all")
    names = ["model.safetensors", "model.training.safetensors"]
    assert sorted(p.name for p in (recorded.folder / "both").iterdir()) == names
    recorded("checkout", "HEAD", "-o", "state.bin", "model.training.safetensors")
    assert (recorded.folder / "state.bin").is_file()
    recorded("checkout", "HEAD", "-o", "folder/")
    assert [p.name for p in (recorded.folder / "folder").iterdir()] == names[:1]
    recorded("checkout", "HEAD")
    assert (recorded.folder / names[1]).is_file()


def test_minus_is_stdout(recorded) -> None:
    recorded("checkout", "HEAD", "-o", "live.safetensors")
    for paths in ((), ("model.safetensors",)):
        done = spawn("checkout", "HEAD", *paths, "-o", "-", cwd=recorded.folder, binary=True)
        assert done.returncode == 0, done.stderr
        assert done.stdout == (recorded.folder / "live.safetensors").read_bytes()
    assert not (recorded.folder / "-").exists()


def test_stdout_takes_one_file(versions) -> None:
    versions.write(5, "other.safetensors")
    versions("commit", "other.safetensors")
    assert "name one of model.safetensors, other" in versions("checkout", "HEAD", "-o-", code=2).err
    failed = versions("checkout", "HEAD", "-o", "-", "--json", code=2).json
    assert failed["message"] == "-o - and --json both write to stdout"
    versions("checkout", "HEAD", "-o", "./-.bin", "other.safetensors")
    assert (versions.folder / "-.bin").is_file()


def test_a_damaged_file_writes_nothing_to_stdout(versions) -> None:
    for pack in (versions.folder / ".mvc/packs").iterdir():
        data = bytearray(pack.read_bytes())
        data[40:] = bytes(b ^ 1 for b in data[40:])
        pack.write_bytes(data)
    done = spawn("checkout", "HEAD", "-o", "-", cwd=versions.folder, binary=True)
    assert done.returncode == 4 and done.stdout == b""


def test_a_whole_model(mvc) -> None:
    mvc.commit(1)
    assert "has weights, but no code" in mvc("checkout", "--model", "HEAD", code=3).err
    made = library.Architecture(nn.Linear(2, 3), {"in_features": 2, "out_features": 3})
    with library.Repository.open(mvc.folder) as repo:
        id_ = commit_model(repo, made, path="net.safetensors").id
    said = mvc("checkout", "--model", "HEAD").err
    folder = mvc.folder / f"model-{id_.short}"
    assert "5 files written" in said and f"{folder.name}/load.py loads the model" in said
    assert sorted(path.name for path in folder.iterdir()) == [
        "environment.json", "load.py", "model.json", "model.safetensors", "net.safetensors",
    ]  # fmt: skip
    assert "exists already" in mvc("checkout", "--model", "HEAD", code=3).err
    found = mvc("checkout", "--model", "HEAD", "-o", "x", "--json").json
    assert found["folder"] == "x"
    assert found["model"] == "torch.nn.modules.linear.Linear(in_features=2, out_features=3)"
    for more in (("net.safetensors",), ("--all",), ("--delete", "-o", "y"), ("-o", "-")):
        mvc("checkout", "--model", "HEAD", *more, code=2)
    assert not (mvc.folder / "y").exists()


# -- without a repository ------------------------------------------------------------------


@pytest.fixture
def elsewhere(versions, tmp_path, monkeypatch):
    """In a folder without a repository; the versions are in ``../work``."""
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return versions


def test_a_version_of_a_remote_is_written_without_a_repository(elsewhere, tmp_path) -> None:
    result = elsewhere("checkout", "--remote", "../work", "main~1", "-o", "x.safetensors")
    assert "x.safetensors written" in result.err
    assert load_file("x.safetensors")["layer.weight"][0, 0] == 2
    at = ("--at", "2026-11-01T12:00Z", "--target", "prod")
    elsewhere("checkout", "--remote", "../work", *at, "-o", "y.safetensors")
    assert load_file("y.safetensors")["layer.weight"][0, 0] == 1
    found = elsewhere(
        "checkout", "--remote", "../work", "--json", "HEAD", "model.safetensors", "-o", "out"
    ).json
    assert found["written"] == ["out/model.safetensors"]
    names = ["out", "x.safetensors", "y.safetensors"]
    assert sorted(p.name for p in (tmp_path / "elsewhere").iterdir()) == names


def test_a_remote_may_be_named(elsewhere) -> None:
    elsewhere("init")
    elsewhere("remote", "add", "origin", "../work")
    elsewhere("checkout", "--remote", "origin", "main~1", "-o", "x.safetensors")
    assert load_file("x.safetensors")["layer.weight"][0, 0] == 2
    said = elsewhere("checkout", "--remote", "orign", "main", "-o", "x", code=3).err
    assert "there is no remote orign" in said and "available: origin" in said
    Path(".mvc/format").unlink()
    elsewhere("checkout", "--remote", "../work", "main", "-o", "y.safetensors")


def test_what_cannot_be_written_of_a_remote(elsewhere) -> None:
    said = elsewhere("checkout", "--remote", "../work", "main", code=2).err
    assert "--remote needs -o" in said
    said = elsewhere("checkout", "--remote", "../nowhere", "main", "-o", "x", code=3).err
    assert "there is no folder" in said
    said = elsewhere("checkout", "--remote", "../work", "nope", "-o", "x", code=3).err
    assert "there is no version, branch, tag or target nope" in said
    said = elsewhere("checkout", "--remote", "../work", "main", "gone", "-o", "x", code=3).err
    assert "gone" in said
    elsewhere("checkout", "--remote", "../work", "main", "-o", "x.safetensors")


def test_the_refusal_names_the_files_that_hold_work(mvc) -> None:
    mvc.write(1, "a b.safetensors")
    mvc("commit", "a b.safetensors", "-m", "one")
    mvc.commit(1)
    mvc.write(2, "a b.safetensors")
    mvc.write(2)
    told = mvc("checkout", "HEAD", "a b.safetensors", code=3).err
    command = told.partition("away; 'mvc ")[2].partition("' discards the changes")[0]
    mvc(*shlex.split(command))
    assert mvc("status", "-s").out == "M model.safetensors\n"


def test_a_file_that_head_lacks_can_only_be_moved_away(mvc) -> None:
    mvc.commit(1)
    mvc.write(1, "new.safetensors")
    mvc("commit", "new.safetensors")
    mvc("checkout", "HEAD~1")
    mvc.write(2, "new.safetensors")
    told = mvc("checkout", "main", code=3).err
    assert "move it away" in told and "checkout -f" not in told
    (mvc.folder / "new.safetensors").rename(mvc.folder / "mine.safetensors")
    mvc("checkout", "main")
