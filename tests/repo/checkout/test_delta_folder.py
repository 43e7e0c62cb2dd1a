"""``delta_from``: a folder with what changed, which an engine's receiver applies to the base."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file

from mvc.api.repository import Repository
from mvc.errors import MvcError, StateForgotten, UnknownRevision, WouldOverwrite, WrongUsage
from mvc.io.files import FileSystem
from mvc.limits import PIECE
from mvc.repo.checkout import delta_folder
from mvc.repo.commit.request import CommitOptions
from mvc.testing import killed
from tests.repo.checkout.receiver import INDEX, Refused, pull, tensors

State = dict[str, Any]
DTYPES = (ml_dtypes.bfloat16, np.float32, np.float16, np.int32, np.uint8, np.int64)


def state(seed: int, size: int = 3_000) -> State:
    """A tensor of each kind of number."""
    rng = np.random.default_rng(seed)
    return {
        f"layers.{i}.{np.dtype(dtype).name}": rng.integers(0, 99, size).astype(dtype)
        for i, dtype in enumerate(DTYPES)
    }


def stepped(tensor: Any, share: float, seed: int = 1) -> Any:
    """The numbers next to some of a tensor's, as after a small step of training."""
    words = tensor.view(f"u{tensor.itemsize}").copy()
    rng = np.random.default_rng(seed)
    chosen = rng.random(words.shape) < share
    words[chosen] += rng.choice([1, -1], int(chosen.sum())).astype(words.dtype)
    return words.view(tensor.dtype)


def write(folder: Path, tensors: Mapping[str, Any], shards: int = 1) -> None:
    for old in folder.glob("*.safetensors"):
        old.unlink()
    names = sorted(tensors)
    for i in range(shards):
        part = {name: tensors[name] for name in names[i::shards]}
        name = f"model-{i + 1}-of-{shards}.safetensors" if shards > 1 else "model.safetensors"
        save_file(part, folder / name)
    if shards > 1:
        (folder / INDEX).write_text(json.dumps({"metadata": {"shards": shards}}))


class World:
    """A repository, and versions that are committed to it."""

    def __init__(self, root: Path) -> None:
        self.root, self.out = root / "repo", root / "out"
        self.repo = Repository.init(self.root)

    def commit(self, tensors: Mapping[str, Any], shards: int = 1) -> str:
        write(self.root, tensors, shards)
        options = CommitOptions(allow_empty=True)
        return str(self.repo.commit([self.root], options=options).id)

    def delta(self, new: str, old: str, name: str = "delta", **options: Any) -> Sequence[str]:
        return self.repo.checkout(new, to=self.out / name, delta_from=old, **options).written

    def base(self, version: str) -> Path:
        shutil.rmtree(self.out / "local", ignore_errors=True)
        self.repo.checkout(version, to=f"{self.out / 'local'}/")
        return self.out / "local"


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


@pytest.mark.parametrize("shards", [1, 3])
def test_a_receiver_makes_the_new_version_of_the_old_one(world: World, shards: int) -> None:
    first = state(1)
    second = {**first, **{name: stepped(first[name], 0.1) for name in list(first)[::2]}}
    old, new = world.commit(first, shards), world.commit(second, shards)
    written = world.delta(new, old)
    local = world.base(old)
    assert pull(local, world.out / "delta", old) == new
    for path in local.glob("*.safetensors"):
        assert path.read_bytes() == (world.root / path.name).read_bytes()
    said = json.loads((world.out / "delta" / INDEX).read_text())
    assert said["weight_map"].keys() == set(list(first)[::2])
    assert said["metadata"]["mvc_version"] == new
    assert sorted(written) == sorted(map(str, (world.out / "delta").iterdir()))


def test_a_folder_with_the_name_that_sglang_reads_has_numbers(world: World) -> None:
    old, new = world.commit(state(1)), world.commit(state(2))
    world.delta(new, old, "weight_v000012")
    assert pull(world.base(old), world.out / "weight_v000012", "000011") == "000012"
    said = json.loads((world.out / "weight_v000012" / INDEX).read_text())["metadata"]
    assert (said["mvc_version"], said["mvc_base_version"]) == (new, old)


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_two_models_of_one_shape(data: st.DataObject, world: World) -> None:
    kinds = st.sampled_from([ml_dtypes.float8_e4m3fn, ml_dtypes.bfloat16, np.int8, np.float64])
    shapes = st.lists(st.tuples(kinds, st.integers(0, 90)), min_size=1, max_size=4)
    chosen = {f"t{i}": kind for i, kind in enumerate(data.draw(shapes))}

    def drawn() -> State:
        sizes = {key: size * np.dtype(kind).itemsize for key, (kind, size) in chosen.items()}
        found = {key: data.draw(st.binary(min_size=n, max_size=n)) for key, n in sizes.items()}
        return {key: np.frombuffer(found[key], kind) for key, (kind, _) in chosen.items()}

    states, shards = (drawn(), drawn()), st.integers(1, len(chosen))
    old, new = (world.commit(each, data.draw(shards)) for each in states)
    world.delta(new, old, force=True)
    local = world.base(old)
    pull(local, world.out / "delta", old)
    for name, (path, offset, size) in tensors(local).items():
        assert path.read_bytes()[offset : offset + size] == states[1][name].tobytes()


def test_another_base_is_refused_by_the_receiver(world: World) -> None:
    old, new = world.commit(state(1)), world.commit(state(2))
    world.delta(new, old)
    local = world.base(old)
    with pytest.raises(Refused, match="builds on"):
        pull(local, world.out / "delta", new)
    path, offset, _ = tensors(local)["layers.1.float32"]
    damaged = bytearray(path.read_bytes())
    damaged[offset + 5] ^= 1
    path.write_bytes(damaged)
    with pytest.raises(Refused, match=r"checksum of layers\.1"):
        pull(local, world.out / "delta", old)
    assert path.read_bytes() == damaged


@pytest.mark.parametrize("share", [0.01, 0.2])
def test_a_tensor_of_several_pieces(world: World, share: float) -> None:
    first = {"a": np.random.default_rng(1).integers(0, 200, PIECE + 5, np.uint8)}
    old, new = world.commit(first), world.commit({"a": stepped(first["a"], share)})
    steps: list[tuple[int, int]] = []
    world.delta(new, old, progress=lambda done, total, _: steps.append((done, total)))
    assert steps[-1] == (PIECE + 5, PIECE + 5)
    local = world.base(old)
    pull(local, world.out / "delta", old)
    name = "model.safetensors"
    assert (local / name).read_bytes() == (world.root / name).read_bytes()


def test_other_files_are_whole_if_they_changed(world: World) -> None:
    (world.root / "config.json").write_text("{}")
    (world.root / "tokenizer.json").write_text("[]")
    old = world.commit(state(1))
    (world.root / "config.json").write_text('{"a": 1}')
    (world.root / "more").mkdir()
    (world.root / "more/notes.txt").write_text("new")
    new = world.commit(state(1))
    world.delta(new, old)
    files = {str(p.relative_to(world.out / "delta")) for p in (world.out / "delta").rglob("*.*")}
    assert files == {"config.json", "more/notes.txt", INDEX}
    assert json.loads((world.out / "delta/config.json").read_text()) == {"a": 1}
    assert json.loads((world.out / "delta" / INDEX).read_text())["weight_map"] == {}


def test_what_a_delta_cannot_say_is_refused(world: World) -> None:
    first = state(1)
    old = world.commit(first)
    name = min(first)
    for other in (
        {**first, "more": first[name]},
        {key: tensor for key, tensor in first.items() if key != name},
        {**first, name: first[name].reshape(2, -1)},
        {**first, name: first[name].view(np.float16)},
    ):
        with pytest.raises(WrongUsage, match="cannot express the change of") as refused:
            world.delta(world.commit(other), old)
        assert "whole" in str(refused.value.hint)
    (world.root / "b").mkdir()
    save_file(first, world.root / "b/model.safetensors")
    two = world.commit(first)
    with pytest.raises(WrongUsage, match="one folder"):
        world.delta(two, old)
    new = world.commit({key: stepped(tensor, 1) for key, tensor in first.items()})
    world.delta(new, two, path="model.safetensors")
    assert pull(world.base(old), world.out / "delta", two) == new
    for options in ({"everything": True}, {"atomic_dir": True}, {"delete": True}):
        with pytest.raises(WrongUsage):
            world.delta(new, old, "other", **options)
    with pytest.raises(UnknownRevision):
        world.delta(new, "nothing", "other")
    with pytest.raises(WrongUsage):
        world.repo.checkout(new, delta_from=old)
    assert not (world.out / "other").exists()


def test_only_a_delta_is_replaced_and_with_force(world: World) -> None:
    versions = [world.commit(state(seed)) for seed in (1, 2, 3)]
    world.delta(versions[1], versions[0])
    (world.out / "delta/stale.safetensors").write_text("of an earlier run")
    with pytest.raises(WouldOverwrite, match="exists already"):
        world.delta(versions[2], versions[0])
    world.delta(versions[2], versions[0], force=True)
    assert not (world.out / "delta/stale.safetensors").exists()
    assert pull(world.base(versions[0]), world.out / "delta", versions[0]) == versions[2]
    with pytest.raises(WouldOverwrite, match="exists already"):
        world.delta(versions[2], versions[0], "local", force=True)
    (world.out / "link").symlink_to("delta")
    world.delta(versions[1], versions[0], "link", force=True)
    assert pull(world.base(versions[0]), world.out / "delta", versions[0]) == versions[1]
    assert sorted(p.name for p in world.out.iterdir()) == ["delta", "link", "local"]


def test_nothing_is_left_where_writing_fails(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    old, new = world.commit(state(1)), world.commit(state(2))

    def fail(*_: Any, **__: Any) -> None:
        raise MvcError("no room")

    monkeypatch.setattr(delta_folder, "verify_pieces", fail)
    with pytest.raises(MvcError, match="no room"):
        world.delta(new, old)
    assert not world.out.exists()


def test_a_killed_export_leaves_no_folder_or_all_of_it(world: World) -> None:
    old, new = world.commit(state(1)), world.commit(state(2))
    local, seen = world.base(old), set()

    def act(fs: FileSystem) -> None:
        with Repository.open(world.root, fs=fs) as repo:
            repo.checkout(new, to=world.out / "delta", delta_from=old)

    for at in range(1, 400, 3):
        if not killed(act, lambda number, *_, at=at: number == at):
            break
        seen.add((world.out / "delta").exists())
        if seen == {True, False}:
            break
    assert pull(local, world.out / "delta", old) == new


def test_a_forgotten_version_is_no_base(world: World) -> None:
    old = world.commit(state(1))
    new = world.commit(state(2))
    world.repo.storage.forget(old)
    with pytest.raises(StateForgotten):
        world.delta(new, old)


def test_it_takes_little_more_than_the_records(world: World) -> None:
    rng = np.random.default_rng(1)
    first = {"a": (rng.standard_normal(2_000_000) / 50).astype(ml_dtypes.bfloat16)}

    def stored() -> int:
        return sum(p.stat().st_size for p in (world.root / ".mvc/packs").rglob("*") if p.is_file())

    old, before = world.commit(first), stored()
    new = world.commit({"a": stepped(first["a"], 0.01)})
    world.delta(new, old)
    exported = sum(path.stat().st_size for path in (world.out / "delta").iterdir())
    assert exported <= 1.4 * (stored() - before)
