"""A state that is committed to a folder: what is read joined is written joined."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load as load_arrays
from safetensors.torch import load_file, save_file

import mvc
from mvc.errors import InvalidName, UnknownPath, WrongUsage
from mvc.repo.commit import shards
from mvc.state import LazyTensor

Tensors = Mapping[str, torch.Tensor]


@pytest.fixture
def repo(tmp_path: Path) -> Iterator[mvc.Repository]:
    with mvc.Repository.init(tmp_path / "repo") as opened:
        yield opened


def shard(number: int, count: int) -> str:
    return f"model-{number:05}-of-{count:05}.safetensors"


def write(folder: Path, files: Mapping[str, Tensors], **metadata: Any) -> None:
    """A folder as transformers writes it."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text('{"model_type": "tiny"}')
    for name, tensors in files.items():
        save_file(dict(tensors), folder / name, {"format": "pt"})
    size = sum(tensor.nbytes for tensors in files.values() for tensor in tensors.values())
    places = {key: name for name, tensors in files.items() for key in tensors}
    index = {"metadata": {**metadata, "total_size": size}, "weight_map": places}
    text = json.dumps(index, indent=2, sort_keys=True) + "\n"
    (folder / "model.safetensors.index.json").write_text(text)


def read(folder: Path) -> tuple[dict[str, dict[str, torch.Tensor]], dict[str, bytes]]:
    """The tensors of each safetensors file, and the bytes of every other one."""
    found = {path.name: path for path in folder.iterdir()}
    tensors = {name: load_file(p) for name, p in found.items() if p.suffix == ".safetensors"}
    return tensors, {name: p.read_bytes() for name, p in found.items() if name not in tensors}


def same(left: Any, right: Any) -> bool:
    if isinstance(left, torch.Tensor):
        bits = [t.reshape(-1).view(torch.uint8) for t in (left, right)]
        return left.dtype == right.dtype and left.shape == right.shape and torch.equal(*bits)
    return left.keys() == right.keys() and all(same(left[key], right[key]) for key in right)


DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.uint8]
KEYS = st.sampled_from([f"{layer}.{kind}" for layer in "abcdef" for kind in ("weight", "bias")])


@st.composite
def tensors(draw: st.DrawFn) -> torch.Tensor:
    size, dtype = draw(st.integers(0, 9)), draw(st.sampled_from(DTYPES))
    count = size * torch.empty(0, dtype=dtype).element_size()
    raw = torch.tensor(list(draw(st.binary(min_size=count, max_size=count))), dtype=torch.uint8)
    return raw.view(dtype).reshape(draw(st.sampled_from([(size,), (1, size), (size, 1)])))


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_any_folder(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    """What a checkout has is what another writer makes of the tensors and the old places."""
    count = data.draw(st.integers(1, 4), "shards")
    state = data.draw(st.dictionaries(KEYS, tensors(), min_size=1), "state")
    places = {key: shard(data.draw(st.integers(1, count)), count) for key in state}
    files = {name: {k: state[k] for k in state if places[k] == name} for name in places.values()}
    root = tmp_path_factory.mktemp("sharded")
    write(root / "repo/policy", files, note="kept")
    with mvc.Repository.init(root / "repo") as repo:
        repo.commit(repo.root / "policy")
        for turn in range(data.draw(st.integers(1, 3), "commits")):
            before = repo.manifest().by_path
            state = repo.checkout(path="policy/")
            if turn or data.draw(st.booleans(), "changed"):
                gone = data.draw(st.sets(st.sampled_from(sorted(state)), max_size=len(state) - 1))
                new = data.draw(st.dictionaries(KEYS, tensors(), max_size=4), "new")
                state = {k: t for k, t in state.items() if k not in gone} | new
            repo.commit(state, path="policy/")

            last = max(places.values())
            kept = dict.fromkeys([*files])
            places = {key: places.get(key, last) for key in state}
            files = {n: {k: t for k, t in state.items() if places[k] == n} for n in kept}
            write(root / f"wanted-{turn}", files, note="kept")
            repo.checkout(to=root / f"found-{turn}")
            found, beside = read(root / f"found-{turn}/policy")
            wanted, other = read(root / f"wanted-{turn}")
            assert same(found, wanted) and beside == other
            assert same(repo.checkout(path="policy/"), state)
            assert repo.manifest().by_path["policy/config.json"] == before["policy/config.json"]


@pytest.mark.parametrize("path", ["", ".", "./"])
def test_the_folder_of_a_version_has_all_its_names(repo: mvc.Repository, path: str) -> None:
    state = {"a": torch.ones(3)}
    repo.commit(state, path=path)
    assert list(repo.manifest().by_path) == ["model.safetensors"]
    assert same(repo.checkout(path=path), state)


def test_the_same_state_changes_nothing_but_the_format(repo: mvc.Repository) -> None:
    files = {shard(1, 2): {"a": torch.ones(3)}, shard(2, 2): {"b": torch.zeros(2, 2)}}
    write(repo.root / "policy", files)
    index = repo.root / "policy/model.safetensors.index.json"
    index.write_text(index.read_text().replace("\n", ""))  # as another program writes it
    repo.commit(repo.root / "policy")
    entry = repo.manifest().by_path["policy/model.safetensors.index.json"]
    state = repo.checkout(path="policy/")
    done = repo.commit(state, path="policy/", deploy="prod")
    assert done.state is state and done.deployment is not None
    assert repo.manifest().by_path["policy/model.safetensors.index.json"] == entry
    assert done.raw_bytes == sum(t.nbytes for t in state.values())
    assert done.stored_bytes < 2_000  # no tensor is stored again
    again = repo.commit(state, path="policy/")
    assert repo.manifest(again.id).id == repo.manifest(done.id).id


def test_a_new_folder(repo: mvc.Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    state = {f"layer.{i}": torch.full((25,), float(i)) for i in range(7)}
    repo.commit(state, path="one/")
    assert list(repo.manifest().by_path) == ["one/model.safetensors"]
    monkeypatch.setattr(shards, "NEW_SHARD", 300)
    repo.commit(state, path="several/")
    repo.checkout(path="several", to=repo.root.parent / "out")
    found, beside = read(repo.root.parent / "out/several")
    hub = pytest.importorskip("huggingface_hub")
    split = hub.split_torch_state_dict_into_shards(state, max_shard_size=300)
    assert {name: sorted(t) for name, t in found.items()} == {
        name: sorted(keys) for name, keys in split.filename_to_tensors.items()
    }
    index = json.loads(beside["model.safetensors.index.json"])
    assert index == {"metadata": split.metadata, "weight_map": split.tensor_to_filename}
    assert same(repo.checkout(path="several/"), state)
    repo.commit({"x": torch.ones(99), "y": torch.ones(99)}, path="one/")  # stays one
    assert same(repo.checkout(path="one/"), {"x": torch.ones(99), "y": torch.ones(99)})
    assert "one/model.safetensors.index.json" not in repo.manifest().by_path


def test_the_file_that_a_folder_has(repo: mvc.Repository) -> None:
    (repo.root / "adapter").mkdir()
    (repo.root / "adapter/adapter_config.json").write_text("{}")
    repo.commit(repo.root / "adapter")
    save_file({"a": torch.ones(2)}, repo.root / "adapter/adapter_model.safetensors")
    repo.commit(repo.root / "adapter")
    repo.commit({"a": torch.zeros(2)}, path="adapter/", states={"./": {"w": torch.ones(1)}})
    assert sorted(repo.manifest().by_path) == [
        "adapter/adapter_config.json", "adapter/adapter_model.safetensors", "model.safetensors",
    ]  # fmt: skip
    assert same(repo.checkout(path="adapter"), {"a": torch.zeros(2)})


def test_tensors_are_not_copied(repo: mvc.Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that are put together as they are read never lie in memory as a whole."""
    largest = 0

    def zeros(start: int, out: memoryview) -> None:
        nonlocal largest
        largest = max(largest, len(out))
        out[:] = bytes(len(out))

    monkeypatch.setattr(shards, "NEW_SHARD", 48 << 20)
    spec = mvc.state.tensor_spec(torch.empty(10 << 20), "x")
    repo.commit({name: LazyTensor(spec, zeros) for name in "abc"}, path="policy/")
    assert len(repo.manifest().by_path) == 4
    assert 0 < largest < spec.nbytes
    repo.commit({name: np.zeros(spec.shape, np.float32) for name in "abc"}, path="policy/")
    with repo.open_file("HEAD", f"policy/{shard(2, 3)}") as file:
        assert list(load_arrays(file.read())) == ["b"]


def test_a_lossy_pipeline_reduces_every_shard(repo: mvc.Repository) -> None:
    files = {shard(i, 2): {f"w{i}": torch.zeros(64)} for i in (1, 2)}
    write(repo.root / "policy", files)
    repo.commit(repo.root / "policy")
    trained = {f"w{i}": torch.randn(64) for i in (1, 2)}
    done = repo.commit(trained, path="policy/", pipeline="topk:0.25 | xor | sparse")
    assert same(repo.checkout(path="policy/"), done.state)
    assert [int((t != 0).sum()) for t in done.state.values()] == [16, 16]


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({"model": {"w": torch.ones(2)}}, "can contain only tensors, but model is not a tensor"),
        ({"w": torch.ones(2), "epoch": 3}, "epoch is not a tensor"),
        ({0: torch.ones(2)}, "0 is not a tensor"),
        ({}, "the state at policy/ is empty"),
    ],
)
def test_only_tensors_by_name(repo: mvc.Repository, state: Any, message: str) -> None:
    with pytest.raises(WrongUsage, match=message):
        repo.commit(state, path="policy/")
    assert repo.head().commit is None


def test_other_formats_and_names(repo: mvc.Repository) -> None:
    state = {"w": torch.ones(2)}
    (repo.root / "old").mkdir()
    torch.save(state, repo.root / "old/pytorch_model.bin")
    repo.commit(repo.root / "old")
    with pytest.raises(WrongUsage, match=r"old/pytorch_model\.bin is not a safetensors file"):
        repo.commit(state, path="old/")
    repo.commit(states={"two/a.safetensors": state, "two/b.safetensors": state})
    with pytest.raises(UnknownPath, match="two/ has several states"):
        repo.commit(state, path="two/")
    with pytest.raises(WrongUsage, match=r"new/model\.safetensors is named twice"):
        repo.commit(state, path="new/", states={"new/model.safetensors": state})
    for wrong in ("../", "a/../b/", "/", "two/a.safetensors/"):
        with pytest.raises((InvalidName, WrongUsage)):
            repo.commit(state, path=wrong)
    with pytest.raises(InvalidName):
        repo.commit(states={"new/": None})
    index = '{"weight_map": {"w": "../../x.safetensors"}}'
    (repo.root / "model.safetensors.index.json").write_text(index)
    repo.commit(repo.root / "model.safetensors.index.json")
    with pytest.raises(InvalidName):
        repo.commit(state, path="./")


def test_an_index_that_spells_a_file_in_two_ways(repo: mvc.Repository) -> None:
    index = '{"weight_map": {"a": "./x.safetensors", "b": "x.safetensors"}}'
    (repo.root / "model.safetensors.index.json").write_text(index)
    repo.commit(repo.root / "model.safetensors.index.json")
    state = {"a": torch.ones(2), "b": torch.zeros(3)}
    repo.commit(state, path="./")
    assert same(repo.checkout(path="./"), state)


def test_transformers_loads_what_was_trained(repo: mvc.Repository) -> None:
    transformers = pytest.importorskip("transformers")
    sizes = {"n_embd": 8, "n_layer": 2, "n_head": 2, "n_positions": 8, "vocab_size": 32}
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes))
    model.save_pretrained(repo.root / "policy", max_shard_size="4KB")
    repo.commit(repo.root / "policy")
    state = repo.checkout(path="policy/")
    assert len(repo.manifest().by_path) > 4
    trained = {key: tensor + 1 for key, tensor in state.items()}
    repo.commit(trained, path="policy/")
    repo.checkout(path="policy", to=repo.root.parent / "served")
    served = repo.root.parent / "served/policy"
    back = transformers.GPT2LMHeadModel.from_pretrained(served)
    assert same({k: t for k, t in back.state_dict().items() if k in trained}, trained)
    whole = model.state_dict()  # with the tied name, which the folder lacks
    assert whole.keys() - state.keys() == {"lm_head.weight"}
    repo.commit(whole, path="policy/")
    repo.checkout(path="policy", to=repo.root.parent / "tied")
    back = transformers.GPT2LMHeadModel.from_pretrained(repo.root.parent / "tied/policy")
    assert same(back.state_dict(), whole)
