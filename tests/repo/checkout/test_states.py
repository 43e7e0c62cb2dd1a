"""States in memory: the shards of a model as one state, a torch file with its structure."""

from __future__ import annotations

import json
from collections import Counter, OrderedDict, defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import mvc
from mvc.errors import BadModelFile, UnknownPath


def commit(repo: mvc.Repository, *names: str) -> None:
    repo.commit([repo.root / name for name in names])


SHARDS = [
    {"embed.weight": torch.randn(9, 4), "layer.0.weight": torch.randn(4, 4)},
    {"layer.1.weight": torch.randn(4, 4), "head.bias": torch.randn(9).bfloat16()},
]


def sharded(folder: Path, suffix: str = "safetensors", stem: str = "model") -> dict[str, Any]:
    """Writes a folder as the Hub has it; returns the whole state."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text('{"model_type": "tiny"}')
    weight_map = {}
    for number, shard in enumerate(SHARDS, 1):
        name = f"{stem}-{number:05}-of-00002.{suffix}"
        if suffix == "bin":
            torch.save(OrderedDict(shard), folder / name)
        else:
            save_file(shard, folder / name)
        weight_map |= dict.fromkeys(shard, name)
    index = {"metadata": {"total_size": 1}, "weight_map": dict(sorted(weight_map.items()))}
    (folder / f"{stem}.{suffix}.index.json").write_text(json.dumps(index))
    return {key: value for shard in SHARDS for key, value in shard.items()}


def same(left: dict[str, Any], right: dict[str, Any]) -> bool:
    return left.keys() == right.keys() and all(torch.equal(left[k], right[k]) for k in right)


@pytest.mark.parametrize(("suffix", "stem"), [("safetensors", "model"), ("bin", "pytorch_model")])
def test_a_sharded_folder_is_one_state(repo: mvc.Repository, suffix: str, stem: str) -> None:
    whole = sharded(repo.root / "base", suffix, stem)
    commit(repo, "base")
    for path in ("base", "base/", f"base/{stem}.{suffix}.index.json"):
        state = repo.checkout("HEAD", path=path)
        assert same(state, whole)
        assert list(state) == sorted(whole)  # the order of the index
    one = repo.checkout(path=f"base/{stem}-00001-of-00002.{suffix}")
    assert same(one, SHARDS[0])


def test_load_takes_the_folder(repo: mvc.Repository) -> None:
    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = torch.nn.Embedding(9, 4)
            self.layer = torch.nn.ModuleList(torch.nn.Linear(4, 4, bias=False) for _ in range(2))
            self.head = torch.nn.Linear(4, 9)
            del self.head.weight
            self.head.bias.data = self.head.bias.data.bfloat16()

    whole = sharded(repo.root / "base")
    commit(repo, "base")
    model = Net()
    mvc.load(repo, model, "HEAD", path="base")
    assert same(dict(model.state_dict()), whole)


def test_at_the_root_no_path_is_needed(repo: mvc.Repository) -> None:
    whole = sharded(repo.root / "base")
    for file in (repo.root / "base").iterdir():
        file.rename(repo.root / file.name)
    commit(repo, ".")
    assert same(repo.checkout(), whole)
    assert same(repo.checkout(path="."), whole)
    save_file(SHARDS[0], repo.root / "model.safetensors")  # as wherever several are
    commit(repo, "model.safetensors")
    assert same(repo.checkout(), SHARDS[0])
    assert same(repo.checkout(path="model.safetensors.index.json"), whole)


def test_a_folder_with_one_state(repo: mvc.Repository) -> None:
    (repo.root / "adapter").mkdir()
    (repo.root / "adapter/adapter_config.json").write_text("{}")
    save_file(SHARDS[0], repo.root / "adapter/adapter_model.safetensors")
    save_file(SHARDS[1], repo.root / "other.safetensors")
    commit(repo, ".")
    assert same(repo.checkout(path="adapter"), SHARDS[0])
    with pytest.raises(UnknownPath, match=r"several states: adapter.*other") as caught:
        repo.checkout()
    assert "folder of a sharded model" in str(caught.value.hint)
    with pytest.raises(UnknownPath, match="has no path adapt"):
        repo.checkout(path="adapt")


def test_both_formats_in_one_folder(repo: mvc.Repository) -> None:
    whole = sharded(repo.root / "base")
    (repo.root / "base/pytorch_model.bin.index.json").write_text('{"weight_map": {}}')
    (repo.root / "base/third.index.json").write_text('{"weight_map": {}}')
    commit(repo, "base")
    assert same(repo.checkout(path="base"), whole)
    (repo.root / "base/model.safetensors.index.json").unlink()
    commit(repo, "base/model.safetensors.index.json")
    with pytest.raises(UnknownPath, match="several indexes"):
        repo.checkout(path="base")


@pytest.mark.parametrize(
    ("index", "error", "match"),
    [
        (
            '{"weight_map": {"a": "gone.safetensors"}}',
            UnknownPath,
            "lacks the shard base/gone.safetensors",
        ),
        ('{"weight_map": {"a": "../x"}}', UnknownPath, "lacks the shard base/../x"),
        ('{"weight_map": {"a": "model-00001-of-00002.safetensors"}}', UnknownPath, "no tensor a"),
        (
            '{"weight_map": {"\\u001b[2J": "model-00001-of-00002.safetensors"}}',
            UnknownPath,
            r"no tensor .*\[2J",
        ),
        ('{"weight_map": ["a"]}', BadModelFile, "not the index of a sharded model"),
        ('{"weight_map": {"a": 1}}', BadModelFile, "not the index"),
        ("[" * 100_000, BadModelFile, "not the index"),
        ("no json", BadModelFile, "not the index"),
    ],
    ids=["gone", "outside", "missing", "control", "list", "number", "deep", "text"],
)
def test_a_wrong_index_is_named(
    repo: mvc.Repository, index: str, error: type[mvc.MvcError], match: str
) -> None:
    sharded(repo.root / "base")
    (repo.root / "base/model.safetensors.index.json").write_text(index)
    commit(repo, "base")
    with pytest.raises(error, match=match) as caught:
        repo.checkout(path="base")
    assert caught.value.message.isprintable()


# -- torch files -------------------------------------------------------------------------


def saved(repo: mvc.Repository, value: Any, **options: Any) -> Any:
    """What checkout gives of a file that torch.save has written."""
    torch.save(value, repo.root / "ckpt.pt", **options)
    repo.commit([repo.root / "ckpt.pt"])
    return repo.checkout(path="ckpt.pt")


def equal(left: Any, right: Any) -> bool:
    """The same types, nesting, order and bits."""
    if isinstance(right, torch.Tensor):
        return torch.equal(left, right) and left.dtype == right.dtype
    if type(left) is not type(right):
        return False
    if isinstance(right, dict):
        return list(left) == list(right) and all(equal(left[k], right[k]) for k in right)
    if isinstance(right, list | tuple):
        return len(left) == len(right) and all(map(equal, left, right))
    return bool(left == right)


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_a_checkpoint_comes_back_with_its_structure(repo: mvc.Repository, protocol: int) -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
    optimizer = torch.optim.AdamW(model.parameters())
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=9)
    model(torch.randn(5, 3)).sum().backward()
    optimizer.step()
    checkpoint = {
        "epoch": 3,
        "best": 0.5,
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "scheduler": scheduler.state_dict(),
        "history": [{"loss": 1.5, "lr": (1e-3, None)}, {}],
        "args": {"name": "é", "amp": True, "raw": b"\x00\xff", "none": b"", "z": 1j, 7: 1 << 80},
    }
    back = saved(repo, checkpoint, pickle_protocol=protocol)
    assert equal(back, checkpoint)
    model.load_state_dict(back["model"])
    optimizer.load_state_dict(back["optimizer"])
    scheduler.load_state_dict(back["scheduler"])
    repo.commit(back, path="again.safetensors")
    assert equal(repo.checkout(path="again.safetensors"), checkpoint)
    versions = repo.iter_versions(path="ckpt.pt", on_error="skip")
    assert [state["epoch"] for _, state in versions] == [3, 3]


def test_what_is_named_twice_is_one_object(repo: mvc.Repository) -> None:
    shared = {"w": torch.ones(2)}
    back = saved(repo, {"a": shared, "b": shared, "p": torch.nn.Parameter(torch.ones(2))})
    assert back["a"] is back["b"]
    assert type(back["p"]) is torch.Tensor


def test_counters_become_dictionaries_and_sizes_tuples(repo: mvc.Repository) -> None:
    kinds = {"c": Counter({3: 1}), "d": defaultdict(list, {"a": [1]}), "s": torch.Size((2, 3))}
    back = saved(repo, {**kinds, "w": torch.ones(2)})
    assert equal(back, {"c": {3: 1}, "d": {"a": [1]}, "s": (2, 3), "w": torch.ones(2)})


class Thing:
    def __init__(self) -> None:
        self.w = torch.ones(2)


ITSELF: dict[str, Any] = {"w": torch.ones(2)}
ITSELF["again"] = [ITSELF]
DEEP: Any = torch.ones(2)
for _ in range(150):
    DEEP = [DEEP]


@pytest.mark.parametrize(
    ("value", "names"),
    [
        ({"a": {"w": torch.ones(2)}, "thing": Thing()}, {"a.w", "thing.w"}),
        ({"a": {"w": torch.ones(2)}, "s": {1, 2}}, {"a.w"}),
        ({"a": {"w": torch.ones(2)}, "f": frozenset([1])}, {"a.w"}),
        ({"a": {"w": torch.ones(2)}, "b": bytearray(3)}, {"a.w"}),
        ({"a": {"w": torch.ones(2)}, "n": np.float64(1)}, {"a.w"}),
        ({"a": {"w": torch.ones(2)}, "k": {frozenset([1]): 1}}, {"a.w"}),
        ({"a": torch.eye(3).to_sparse()}, {"a.indices", "a.values"}),
        (ITSELF, {"w"}),
        ([torch.ones(2)], {"0"}),
        (torch.ones(2), {"tensor"}),
    ],
    ids=[
        "object", "set", "frozenset", "bytearray", "scalar", "key", "sparse", "itself", "list",
        "tensor",
    ],
)  # fmt: skip
@pytest.mark.parametrize("protocol", [2, 5])
def test_more_than_plain_data_stays_flat(
    repo: mvc.Repository, value: Any, names: set[str], protocol: int
) -> None:
    assert set(saved(repo, value, pickle_protocol=protocol)) == names


def test_deep_nesting_stays_flat(repo: mvc.Repository) -> None:
    assert len(saved(repo, {"deep": DEEP})) == 1


def test_shared_parts_do_not_multiply(repo: mvc.Repository) -> None:
    value: Any = [1]
    for _ in range(12):
        value = [value, value]
    back = saved(repo, {"v": value, "w": torch.ones(2)})["v"]
    for _ in range(12):
        assert back[0] is back[1]
        back = back[0]
    assert back == [1]
