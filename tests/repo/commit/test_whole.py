"""A version that lacks a file of its model goes live only if somebody says so."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save

import mvc
from mvc.errors import BadModelFile, TargetProtected
from tests.adapters.onnx_files import model, outside, tensor
from tests.repo.test_protection import protect

FIRST, SECOND = (f"model-0000{n}-of-00002.safetensors" for n in (1, 2))
INDEX = "model.safetensors.index.json"
SHARD = save({"x": np.ones(4, np.float32)})


def index(*names: str) -> bytes:
    return json.dumps({"weight_map": {f"t{n}": name for n, name in enumerate(names)}}).encode()


def npy() -> bytes:
    out = io.BytesIO()
    np.save(out, np.ones(4))
    return out.getvalue()


def onnx(*locations: str) -> bytes:
    """A graph whose tensors lie in the files ``locations``, but for one, which lies inside."""
    inside = np.ones(4, np.float32)
    return model(tensor("a", inside), *(outside(n, inside, location=n) for n in locations))


def write(folder: Path, files: dict[str, bytes]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in files.items():
        (folder / name).write_bytes(data)
    return folder


@pytest.fixture
def net(tmp_path: Path) -> Path:
    """The folder of a model in two shards, of which the second one is missing."""
    mvc.Repository.init(tmp_path).close()
    return write(tmp_path / "net", {FIRST: SHARD, INDEX: index(FIRST, SECOND)})


def refuses(repo: mvc.Repository, path: Path, missing: str) -> None:
    """Whether no way leads to a deployment that does not say so."""
    with pytest.raises(BadModelFile, match=missing) as refused:
        repo.commit(path, deploy="prod")
    assert "\n" not in refused.value.message and "anyway" in str(refused.value.hint)
    version = repo.commit(path)
    with pytest.raises(BadModelFile, match=missing):
        repo.deploy(version.id, "prod")
    with pytest.raises(BadModelFile, match=missing):
        repo.commit(deploy="prod", options=mvc.CommitOptions(allow_empty=True))
    assert not repo.targets()
    again = mvc.CommitOptions(anyway=True, allow_empty=True)
    assert repo.commit(path, deploy="prod", options=again).deployment is not None
    repo.deploy(version.id, "prod", anyway=True)


def test_an_index_that_names_a_missing_shard(net: Path) -> None:
    (net / f"{SECOND}.incomplete").write_bytes(b"123")
    with mvc.Repository.open(net) as repo:
        refuses(repo, net, f"net/{SECOND} is missing, but net/{INDEX} names it")
        (net / f"{SECOND}.incomplete").unlink()
        write(net, {SECOND: SHARD})
        assert repo.commit(net, deploy="prod").deployment is not None
        (net / FIRST).unlink()
        with pytest.raises(BadModelFile, match=FIRST):
            repo.commit(net, deploy="prod")


def test_a_part_of_a_model_is_whole_with_what_the_parent_has(net: Path) -> None:
    write(net, {SECOND: SHARD})
    with mvc.Repository.open(net) as repo:
        repo.commit(net / SECOND)
        with pytest.raises(BadModelFile, match=FIRST):
            repo.commit(net / INDEX, deploy="prod")
        repo.commit(net / FIRST)
        assert repo.commit(net / INDEX, deploy="prod").deployment is not None
        (net / SECOND).unlink()
        with pytest.raises(BadModelFile, match=SECOND):
            repo.commit(net / SECOND, deploy="prod")


INCOMPLETE: dict[str, tuple[dict[str, bytes], str]] = {
    "gap": ({"a-00001-of-00003.x": b"", "a-00003-of-00003.x": b""}, "a-00002-of-00003.x"),
    "end": ({"a-00001-of-00002": b""}, "a-00002-of-00002"),
    "from 0": ({"a.data-00000-of-00002": b""}, "a.data-00001-of-00002"),
    "no end": ({f"a-00001-of-{'9' * 200}": b""}, f"a-{2:0200}-of"),
    "variant": ({"m.safetensors.index.fp16.json": index("y")}, "y is missing"),
    "cut off": ({INDEX: index("x")[:-3]}, f"{INDEX} is truncated"),
    "above": ({INDEX: index("../a")}, ": a is missing"),
    "graph": ({"m.onnx": onnx("./w.bin")}, "w.bin is missing, but net/m.onnx names it"),
    "two places": ({"m.ONNX": onnx("v", "w"), "v": b""}, "net/w is missing"),
    **{
        suffix: ({f"model.pt.{suffix}": b"1"}, f"pt.{suffix} is an unfinished download")
        for suffix in ("incomplete", "part", "partial", "crdownload", "tmp")
    },
}


@pytest.mark.parametrize("kind", INCOMPLETE)
def test_what_is_missing_is_named(tmp_path: Path, kind: str) -> None:
    files, missing = INCOMPLETE[kind]
    with mvc.Repository.init(tmp_path) as repo:
        refuses(repo, write(tmp_path / "net", files), missing)


WHOLE: dict[str, dict[str, bytes]] = {
    "series": {f"{n}-0000{n}-of-00002": b"" for n in (1, 2)}
    | {"1-00002-of-00002": b"", "2-00001-of-00002": b""}
    | {f"a.data-0000{n}-of-00002": b"" for n in (0, 1)},
    "folds": {"fold-1-of-5.txt": b""},
    "another index": {"a.index.json": b'{"a": [1]}', "b.index.json": b"[" * 100_000},
    "another format that was not asked for": {
        FIRST: SHARD,
        SECOND: SHARD,
        INDEX: index(FIRST, SECOND),
        "pytorch_model.bin.index.json": index("b", "c"),
    },
    "graph": {"m.onnx": onnx("w/../w.bin"), "w.bin": b"w"},
    "tensors by the name of a graph": {"m.onnx": SHARD},
}


@pytest.mark.parametrize("kind", WHOLE)
def test_what_is_whole_goes_live(tmp_path: Path, kind: str) -> None:
    with mvc.Repository.init(tmp_path) as repo:
        repo.commit(write(tmp_path / "net", WHOLE[kind]), deploy="prod")
        repo.deploy("HEAD", "prod")


def test_states_by_the_names_of_an_index_and_a_graph_go_live(tmp_path: Path) -> None:
    state = {"w": np.ones(4)}
    with mvc.Repository.init(tmp_path) as repo:
        repo.commit(states={INDEX: state, "m.onnx": state}, deploy="prod")
        repo.deploy("HEAD", "prod")


FALSE = {
    "cut.npy": (npy()[:-8], "cut.npy: it is truncated"),
    "cut.safetensors": (SHARD[:-1], "cut.safetensors: it is truncated"),
    "empty.pt": (b"", "empty.pt: it is empty"),
    "model.bin": (b"version https://git-lfs.github.com/spec/v1\n", "it is a pointer of git-lfs"),
}


@pytest.mark.parametrize("name", FALSE)
def test_a_false_file_goes_live_only_if_somebody_says_so(tmp_path: Path, name: str) -> None:
    data, problem = FALSE[name]
    opaque = mvc.FileOptions(opaque=True)
    with mvc.Repository.init(tmp_path) as repo:
        first = repo.commit(write(tmp_path / "net", {name: data}), files=opaque).id
        write(tmp_path, {"x.safetensors": SHARD})
        for deploy in (
            lambda: repo.deploy("HEAD", "prod"),
            lambda: repo.commit(tmp_path / "x.safetensors", deploy="prod"),
        ):
            with pytest.raises(BadModelFile, match=problem) as refused:
                deploy()
            assert "--anyway" in str(refused.value.hint)
        assert not repo.targets() and repo.find("HEAD") == first
        repo.deploy("HEAD", "prod", anyway=True)
        (tmp_path / "net" / name).write_bytes(data + b"\n")
        assert repo.commit(tmp_path / "net", deploy="prod", files=opaque).deployment is not None


def test_the_commands_say_what_is_missing_and_what_to_do(net: Path) -> None:
    words = [sys.executable, "-m", "mvc", "-C", str(net.parent)]
    for command in ("commit net --deploy prod", "commit net", "deploy HEAD prod"):
        done = subprocess.run([*words, *command.split()], text=True, capture_output=True)
        if "prod" in command:
            message, hint = done.stderr.splitlines()
            assert done.returncode == 3 and f"net/{SECOND} is missing" in message
            assert "--anyway" in hint and not done.stdout
    for command in ("commit net --allow-empty --anyway --deploy prod", "deploy HEAD prod --anyway"):
        subprocess.run([*words, *command.split()], check=True)


def test_what_is_sent_at_once_is_whole(net: Path) -> None:
    mvc.Repository.init(net.parent / "server", bare=True).close()
    with mvc.Repository.open(net) as repo:
        repo.remotes.add("origin", str(net.parent / "server"))
        with pytest.raises(BadModelFile, match=SECOND):
            repo.commit(net, deploy="prod", options=mvc.CommitOptions(push=True))
        assert not repo.refs()
        repo.commit(net, deploy="prod", options=mvc.CommitOptions(anyway=True, push=True))
        assert repo.live("prod").commit == repo.find("HEAD")


def test_saying_so_does_not_open_a_protected_target(net: Path) -> None:
    protect(net.parent)
    with mvc.Repository.open(net) as repo:
        with pytest.raises(TargetProtected):
            repo.commit(net, deploy="prod", options=mvc.CommitOptions(anyway=True))
        with pytest.raises(TargetProtected):
            mvc.import_checkpoints(repo, [net], deploy="prod", anyway=True)


def test_what_was_forgotten_may_still_have_been_live(net: Path) -> None:
    with mvc.Repository.open(net) as repo:
        first = repo.commit(net, options=mvc.CommitOptions(time="2026-01-01")).id
        repo.commit({"w": np.ones(4)})
        repo.storage.forget([first])
        assert repo.deploy(first, "prod", at="2026-02-01").commit == first


def test_an_import_deploys_what_is_whole(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    for number in (1, 2):
        files = {"model.onnx": onnx("weights.bin"), "pytorch_model.bin": bytes([number])}
        write(runs / f"checkpoint-{number}", files)
    write(runs / "checkpoint-2", {"weights.bin": b"weights"})
    with mvc.Repository.init(tmp_path / "repo") as repo:
        with pytest.raises(BadModelFile, match=r"checkpoint-1.*weights.bin is missing") as refused:
            mvc.import_checkpoints(repo, [runs], deploy="prod")
        assert "without --deploy" in str(refused.value.hint)
        broken: list[Path] = []
        (version,) = mvc.import_checkpoints(repo, [runs], deploy="prod", broken=broken)
        assert broken == [runs / "checkpoint-1"]
        assert {d.commit for d in repo.deployments("prod")} == {version.commit}
        assert "weights.bin" in repo.manifest(version.commit).by_path
    with mvc.Repository.init(tmp_path / "other") as repo:
        kept = mvc.import_checkpoints(repo, [runs])
        assert len(kept) == 2
        with pytest.raises(BadModelFile):
            mvc.import_checkpoints(repo, [runs], deploy="prod")
        mvc.import_checkpoints(repo, [runs], deploy="prod", anyway=True)
        assert {d.commit for d in repo.deployments("prod")} == {v.commit for v in kept}


def test_a_graph_is_not_imported_without_its_weights_to_go_live(tmp_path: Path) -> None:
    exports = write(tmp_path / "exports", {"model.onnx": onnx("model.onnx.data")})
    with mvc.Repository.init(tmp_path) as repo:
        with pytest.raises(BadModelFile, match=r"model.onnx.data is missing"):
            mvc.import_checkpoints(repo, [exports], deploy="prod")
        write(exports, {"model.onnx.data": bytes(range(256))})
        (version,) = mvc.import_checkpoints(repo, [exports], deploy="prod")
        assert {*repo.manifest(version.commit).by_path} == {"model.onnx", "model.onnx.data"}
        assert repo.commit(exports, deploy="prod").deployment is not None
