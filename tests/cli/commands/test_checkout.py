from __future__ import annotations

import numpy as np
import pytest
from safetensors.numpy import load_file
from torch import nn

import mvc as library
from mvc.api.repository import Repository
from tests.cli.program import spawn


@pytest.fixture
def versions(mvc):
    for value in (1, 2, 3):
        mvc.commit(value)
        mvc("deploy", "HEAD", "prod", "--at", f"2026-11-0{value}T10:00Z")
    return mvc


def content(mvc, name: str = "model.safetensors") -> bytes:
    return (mvc.folder / name).read_bytes()


def test_restores_and_moves_head(versions) -> None:
    newest = content(versions)
    result = versions("checkout", "HEAD~1")
    assert result.out == ""
    assert "model.safetensors written" in result.err
    assert "HEAD is now at" in result.err
    assert "(detached) value 2" in result.err
    assert content(versions) != newest
    assert "(branch main) value 3" in versions("checkout", "main").err
    assert content(versions) == newest


def test_at_a_moment(versions) -> None:
    head = versions("rev-parse", "HEAD").out
    result = versions("checkout", "--at", "2026-11-02T12:00Z", "-o", "live.safetensors")
    assert "was live on prod from 2026-11-02T10:00:00+00:00" in result.err
    assert versions("rev-parse", "HEAD").out == head
    versions("checkout", "HEAD~1")
    assert content(versions) == content(versions, "live.safetensors")


def test_before_the_first_deployment(versions) -> None:
    result = versions("checkout", "--at", "2026-10-01", "--target", "prod", "-o", "x", code=3)
    assert "2026-11-01" in result.err


def test_target_alone_is_what_is_live_now(versions) -> None:
    found = versions("checkout", "--target", "prod", "-o", "x.safetensors", "--json").json
    assert found["commit"] == versions("rev-parse", "HEAD").out.strip()
    assert found["head_moved"] is False


def test_uncommitted_work_is_kept(versions) -> None:
    versions.write(99)
    mine = content(versions)
    result = versions("checkout", "HEAD~1", code=3)
    assert "model.safetensors" in result.err
    assert "-f" in result.err
    assert content(versions) == mine
    versions("checkout", "HEAD~1", "-f")
    assert content(versions) != mine


def test_a_path_leaves_head(versions) -> None:
    head = versions("rev-parse", "HEAD").out
    versions("checkout", "HEAD~2", "model.safetensors")
    assert versions("rev-parse", "HEAD").out == head
    assert versions("status", "-s").out == "M model.safetensors\n"


def test_existing_output_needs_force(versions) -> None:
    versions("checkout", "HEAD", "-o", "x.safetensors")
    assert "-f" in versions("checkout", "HEAD~1", "-o", "x.safetensors", code=3).err
    versions("checkout", "HEAD~1", "-f", "-o", "x.safetensors")


def test_wrong_usage(versions) -> None:
    assert "--at" in versions("checkout", code=2).err
    assert versions("checkout", "nowhere", code=3).err.startswith("mvc: ")


def test_a_path_in_place_of_a_revision(mvc) -> None:
    mvc.commit(1)
    err = mvc("checkout", "model.safetensors", code=3).err
    assert "to restore a path: mvc checkout HEAD -- model.safetensors" in err
    mvc("checkout", "HEAD", "--", "model.safetensors")
    assert "to restore" not in mvc("checkout", "nothing", code=3).err


def test_everything_of_a_version_without_files_is_nothing(mvc) -> None:
    mvc.commit(1)
    mvc("rm", "model.safetensors")
    mvc("commit", "-m", "empty")
    assert mvc("checkout", "HEAD", ".").err == "0 files written\n"


def test_leaving_a_detached_head(versions) -> None:
    versions("checkout", "HEAD~1")
    ids = []
    for value in (4, 5):
        ids.append(versions.commit(value))
    left = {"newest": ids[1], "count": 2, "deployed": 0}
    result = versions("checkout", "main")
    assert result.err.splitlines()[2:] == [
        f"mvc: warning: no branch or tag leads to 2 versions now, the newest {ids[1][:10]}; "
        "'mvc gc' deletes them after 14 days",
        f"to give them a branch: mvc branch NAME {ids[1][:10]}",
    ]
    versions("checkout", ids[1])
    assert versions("checkout", "main", "--json").json["unreached"] == left
    assert versions("checkout", "HEAD~1", "--json").json["unreached"] is None
    versions("checkout", ids[1])
    versions("deploy", ids[0], "prod")
    err = versions("switch", "main").err
    assert "deployments keep 1 of them, 'mvc gc' deletes the others after 14 days" in err
    versions("checkout", ids[1])
    versions("deploy", ids[1], "prod")
    assert "deployments keep them from 'mvc gc'" in versions("switch", "main").err
    versions("branch", "kept", ids[1])
    versions("checkout", ids[1])
    assert "no branch" not in versions("switch", "main").err


def test_files_of_an_older_version_are_no_work(versions) -> None:
    versions("checkout", "HEAD~2", "model.safetensors")
    versions("checkout", "HEAD~1")
    versions.write(9)
    assert "not committed" in versions("checkout", "main", code=3).err


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
    assert "left out model.training.safetensors; --all writes" in result.err
    assert list(load_file(recorded.folder / "live.safetensors")) == ["w"]
    found = recorded("checkout", "HEAD", "-o", "x.safetensors", "--json").json
    assert found["left_out"] == ["model.training.safetensors"]


def test_the_training_state_comes_with_all_or_by_path(recorded) -> None:
    recorded("checkout", "HEAD", "-o", "both", "--all")
    names = ["model.safetensors", "model.training.safetensors"]
    assert sorted(p.name for p in (recorded.folder / "both").iterdir()) == names
    recorded("checkout", "HEAD", "-o", "state", "model.training.safetensors")
    assert (recorded.folder / "state").is_file()
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
    versions("checkout", "HEAD", "-o", "./-", "other.safetensors")
    assert (versions.folder / "-").is_file()


def test_a_damaged_file_writes_nothing_to_stdout(versions) -> None:
    for pack in (versions.folder / ".mvc/packs").iterdir():
        data = bytearray(pack.read_bytes())
        data[40:] = bytes(b ^ 1 for b in data[40:])
        pack.write_bytes(data)
    done = spawn("checkout", "HEAD", "-o", "-", cwd=versions.folder, binary=True)
    assert done.returncode == 4 and done.stdout == b""


def test_a_served_folder_from_the_command_line(versions) -> None:
    live = versions.folder.parent / "live"
    versions("checkout", "HEAD", "-o", live, "--atomic-dir")
    versions("checkout", "HEAD~1", "-o", live, "--atomic-dir")
    assert live.is_symlink()
    plain = versions.folder.parent / "plain"
    versions("checkout", "HEAD", "-o", f"{plain}/")
    (plain / "old.bin").touch()
    assert "-f" in versions("checkout", "HEAD~1", "-o", plain, "--delete", code=3).err
    assert "1 deleted" in versions("checkout", "HEAD~1", "-o", plain, "--delete", "-f").err
    names = ("--atomic-dir", "--delete", "--all")
    assert all("-o" in versions("checkout", "HEAD", name, code=2).err for name in names)


def test_a_whole_model(mvc) -> None:
    mvc.commit(1)
    assert "has weights, but no code" in mvc("checkout", "--model", "HEAD", code=3).err
    made = library.Architecture(nn.Linear(2, 3), {"in_features": 2, "out_features": 3})
    with library.Repository.open(mvc.folder) as repo:
        id_ = repo.commit(made.model.state_dict(), model=made, path="net.safetensors").id
    said = mvc("checkout", "--model", "HEAD").err
    folder = mvc.folder / f"model-{id_.short}"
    assert "5 files written" in said and f"{folder.name}/load.py loads it" in said
    assert sorted(path.name for path in folder.iterdir()) == [
        "environment.json", "load.py", "model.json", "model.safetensors", "net.safetensors",
    ]  # fmt: skip
    assert "exists already" in mvc("checkout", "--model", "HEAD", code=3).err
    found = mvc("checkout", "--model", "HEAD", "-o", "x", "--json", "--trust-code").json
    assert found["built"] is True and found["folder"] == "x"
    assert found["model"] == "torch.nn.modules.linear.Linear(in_features=2, out_features=3)"
    for more in (("net.safetensors",), ("--all",), ("--delete", "-o", "y"), ("-o", "-")):
        mvc("checkout", "--model", "HEAD", *more, code=2)
    assert not (mvc.folder / "y").exists()
