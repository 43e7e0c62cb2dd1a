"""Checkpoints of torch.distributed.checkpoint in one process: values, errors, hostile files."""

from __future__ import annotations

import io
import math
import os
import pickle
import random
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributed.checkpoint import filesystem as files
from torch.distributed.checkpoint import metadata as meta

import mvc
from mvc.errors import BadModelFile, UnsupportedTensor, WrongUsage
from mvc.frameworks.fsspec.dcp_metadata import Chunk, Placed, Record, read_metadata
from mvc.frameworks.fsspec.dcp_save import plain_value, saved_bytes
from mvc.frameworks.fsspec.dcp_shards import whole
from mvc.model.tensor import TensorSpec
from tests.frameworks.need import need

fsspec = need("fsspec")

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")


@pytest.fixture
def repo(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with mvc.Repository.init("models") as repo:
        yield repo


@pytest.fixture
def fs():
    return fsspec.filesystem("mvc")


def save(state, url="mvc://models@main/ck", **options):
    dcp.save(state, checkpoint_id=url, no_dist=True, **options)


def load(state, url="mvc://models@main/ck"):
    dcp.load(state, checkpoint_id=url, no_dist=True)
    return state


class Bytes:
    """Bytes as a source."""

    def __init__(self, data):
        self.data = data

    def size(self):
        return len(self.data)

    def read(self, offset, length):
        return self.data[offset : offset + length]

    def read_into(self, offset, buffer):
        piece = self.read(offset, len(buffer))
        buffer[: len(piece)] = piece
        return len(piece)


# -- what is kept ------------------------------------------------------------------------------


VALUES = {
    "number": 3,
    "huge": 1 << 80,
    "rate": 1e-3,
    "minus": -0.0,
    "infinite": math.inf,
    "text": "é\n",
    "raw": b"\x00\xff",
    "none": None,
    "yes": True,
    "list": [1, [2.5, "x"], []],
    "pair": (1, ("a", None)),
    "words": {"a": {"b": 1}},
    "set": {1, 2},
    "complex": 1 + 2j,
    "array": np.arange(4, dtype=np.int16),
    "size": torch.Size([2, 3]),
    "dtype": torch.bfloat16,
    "tensors": (torch.ones(2), 5),
    "random": random.Random(1).getstate(),
}


def test_every_value_comes_back(repo):
    tensors = {"w": torch.randn(3, 4), "nested": [torch.ones(2), {"x": torch.zeros(1)}]}
    save(VALUES | tensors)
    blank = {"w": torch.zeros(3, 4), "nested": [torch.zeros(2), {"x": torch.ones(1)}]}
    found = load({k: {"a": {"b": 0}} if k == "words" else 0 for k in VALUES} | blank)
    for name, value in VALUES.items():
        if name == "array":
            assert np.array_equal(found[name], value) and found[name].dtype == value.dtype
        elif name == "tensors":
            assert torch.equal(found[name][0], value[0]) and found[name][1] == 5
        else:
            assert found[name] == value and type(found[name]) is type(value), name
            assert repr(found[name]) == repr(value)
    assert torch.equal(found["w"], tensors["w"])
    assert torch.equal(found["nested"][0], torch.ones(2))
    manifest = repo.manifest()
    kept = repo.checkout(path="ck/model.safetensors")
    others = {t.key for t in manifest.by_path["ck/model.objects.safetensors"].tensors}
    assert others == {"raw", "set", "complex", "array", "size", "dtype", "tensors"}
    assert kept["pair"] == (1, ("a", None)) and kept["huge"] == 1 << 80
    assert torch.equal(kept["nested"][1]["x"], torch.zeros(1))


@pytest.mark.parametrize(
    "dtype",
    ["float64", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "int8", "uint16", "bool",
     "complex64"],
)  # fmt: skip
def test_dtypes_bit_for_bit(repo, dtype):
    kind = getattr(torch, dtype)
    raw = torch.randint(0, 2 if dtype == "bool" else 256, (6 * 8,), dtype=torch.uint8)
    tensor = raw.view(kind).reshape(-1, 2)
    save({"t": tensor, "turned": tensor.t(), "scalar": tensor[0, 0].clone(), "none": tensor[:0]})
    shapes = {"t": tensor.shape, "turned": tensor.t().shape, "scalar": (), "none": (0, 2)}
    found = load({name: torch.zeros(shape, dtype=kind) for name, shape in shapes.items()})

    def bits(t):
        return t.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()

    assert bits(found["t"]) == bits(tensor)
    assert bits(found["turned"]) == bits(tensor.t())
    assert bits(found["scalar"]) == bits(tensor[0, 0].clone())


def test_a_checkpoint_at_the_top_and_over_an_older_one(repo, fs):
    save({"w": torch.ones(3), "odd": {1}}, "mvc://models@main")
    with pytest.warns(UserWarning, match="existing checkpoint"):
        save({"w": torch.zeros(3)}, "mvc://models@main")
    assert sorted(repo.manifest().by_path) == ["model.safetensors"]
    assert torch.equal(repo.checkout()["w"], torch.zeros(3))
    assert torch.equal(load({"w": torch.zeros(3)}, "mvc://models@HEAD~1")["w"], torch.ones(3))
    assert fs.find("mvc://models@main") == [f"{repo.root}@main/model.safetensors"]


def test_an_unchanged_checkpoint_is_no_version(repo):
    save({"w": torch.ones(3)})
    with pytest.warns(UserWarning, match="existing checkpoint"):
        save({"w": torch.ones(3)})
    assert len(list(repo.log())) == 1


def test_versions_that_no_checkpoint_was_are_loaded_too(repo, fs):
    state = {"w": torch.randn(3, 2), "opt": {0: {"m": torch.ones(2)}}, "pair": (torch.ones(1), 2)}
    repo.commit(state | {"array": np.arange(3), "lr": np.float64(0.5)})
    blank = {
        "w": torch.zeros(3, 2),
        "opt": {0: {"m": torch.zeros(2)}},
        "pair": 0,
        "array": 0,
        "lr": 0,
    }
    found = load(blank, "mvc://models")
    assert torch.equal(found["w"], state["w"]) and torch.equal(found["opt"][0]["m"], torch.ones(2))
    assert torch.equal(found["pair"][0], torch.ones(1)) and found["pair"][1] == 2
    assert np.array_equal(found["array"], np.arange(3)) and found["lr"] == 0.5
    from safetensors.torch import save_file

    save_file({"a.b": torch.ones(4)}, repo.root / "model.safetensors")
    repo.commit("model.safetensors", cwd=repo.root)
    assert torch.equal(load({"a": {"b": torch.zeros(4)}}, "mvc://models")["a"]["b"], torch.ones(4))


def test_the_made_files_are_a_checkpoint_anywhere(repo, fs, tmp_path):
    save({"w": torch.arange(6.0).reshape(2, 3), "lr": 0.1})
    (tmp_path / "local").mkdir()
    for name in (".metadata", "__0_0.distcp"):
        assert fs.exists(f"mvc://models/ck/{name}")
        fs.get_file(f"mvc://models/ck/{name}", str(tmp_path / "local" / name))
        assert (
            fs.info(f"mvc://models/ck/{name}")["size"] == (tmp_path / "local" / name).stat().st_size
        )
    found = {"w": torch.zeros(2, 3), "lr": 0}
    dcp.load(found, checkpoint_id=tmp_path / "local", no_dist=True)
    assert torch.equal(found["w"], torch.arange(6.0).reshape(2, 3)) and found["lr"] == 0.1
    assert not fs.exists("mvc://models/.metadata")


def test_big_tensors_are_read_in_windows(repo):
    """Above 32 MiB a content is never read as a whole; two chunks meet in a window."""
    tensor = torch.arange(3 * 3_000_000, dtype=torch.float32).reshape(3, 3_000_000)
    save({"w": tensor, "turned": tensor[:, :5].t()})
    found = load({"w": torch.zeros_like(tensor), "turned": torch.zeros(5, 3)})
    assert torch.equal(found["w"], tensor)
    assert torch.equal(found["turned"], tensor[:, :5].t())


# -- what is refused -----------------------------------------------------------------------------


def test_what_cannot_be_taken_apart_is_refused_and_nothing_is_kept(repo):
    from torch.distributed.checkpoint._fsspec_filesystem import FsspecWriter

    writer = FsspecWriter(
        "mvc://models@main/ck", serialization_format=files.SerializationFormat.SAFETENSORS
    )
    with pytest.raises(dcp.api.CheckpointException) as caught:
        dcp.save({"w": torch.ones(2)}, storage_writer=writer, no_dist=True)
    assert "BadModelFile" in str(caught.value)
    assert repo.context.store.ref("heads/main") is None


def test_a_checkpoint_in_a_file_is_refused(repo, fs):
    fs.pipe_file("mvc://models/ck", b"a file")
    with pytest.raises(dcp.api.CheckpointException) as caught:
        save({"w": torch.ones(2)})
    assert "ck is a file" in str(caught.value)
    assert sorted(repo.manifest().by_path) == ["ck"]


def test_a_checkpoint_without_a_coordinator_is_refused(repo, fs):
    with pytest.raises(WrongUsage, match="without collectives"):
        fs.open("mvc://models@main/ck/__0.metadata.tmp", "wb")


def test_made_files_are_not_written_or_removed_by_hand(repo, fs):
    save({"w": torch.ones(2)})
    with pytest.raises(WrongUsage, match="cannot be written"):
        fs.pipe_file("mvc://models/ck/.metadata", b"x")
    with pytest.raises(WrongUsage, match="is made from"):
        fs.rm("mvc://models/ck/.metadata")
    fs.rm("mvc://models/ck", recursive=True)
    assert not fs.exists("mvc://models/ck/.metadata")


def test_a_missing_or_damaged_shard(repo, fs):
    save({"w": torch.arange(100.0)}, "mvc://models@main/good")
    staging = Path(repo.root, ".mvc/staging")

    def half(state, spoil):
        """Saves as dcp.save does, but for what happens before the rename."""
        fs.makedirs("mvc://models@main/bad", exist_ok=True)
        from torch.distributed.checkpoint._fsspec_filesystem import FsspecWriter

        class Writer(FsspecWriter):
            def finish(self, metadata, results):
                spoil(next(staging.glob("*/__0_0.distcp")), metadata, results)
                super().finish(metadata, results)

        dcp.save(state, storage_writer=Writer("mvc://models@main/bad"), no_dist=True)

    def cut(path, *_):
        path.write_bytes(path.read_bytes()[:-30])

    def other(path, *_):
        data = bytearray(path.read_bytes())
        record = io.BytesIO()
        torch.save(torch.arange(100.0).double(), record)
        path.write_bytes(record.getvalue() + bytes(data))

    def gone(path, *_):
        path.unlink()

    def elsewhere(path, metadata, results):
        results[0][0].storage_data.relative_path = "../../config.yaml"

    for spoil, said in [
        (cut, "shorter than .metadata says"),
        (other, "BadModelFile"),
        (gone, "was not written to this repository"),
        (elsewhere, "no shard"),
    ]:
        with pytest.raises(dcp.api.CheckpointException) as caught:
            half({"w": torch.arange(100.0)}, spoil)
        assert said in str(caught.value), caught.value
    assert sorted(repo.manifest().by_path) == ["good/model.safetensors"]
    save({"w": torch.arange(100.0)}, "mvc://models@main/bad")
    assert not list(staging.glob("*/*"))


class Runs:
    def __reduce__(self):
        return os.system, ("touch ran",)


def described(**changes):
    """A sound metadata object of one tensor in two chunks."""
    size = torch.Size([4, 2])
    chunks = [meta.ChunkStorageMetadata(torch.Size([o, 0]), torch.Size([2, 2])) for o in (0, 2)]
    tensor = meta.TensorStorageMetadata(meta.TensorProperties(torch.float32), size, chunks)
    stored = {
        meta.MetadataIndex("w", [o, 0]): files._StorageInfo("__0_0.distcp", 100 * o, 99)
        for o in (0, 2)
    }
    fields = {
        "state_dict_metadata": {"w": tensor, "n": meta.BytesStorageMetadata()},
        "planner_data": {"w": ("w",), "n": ("deep", 0)},
        "storage_data": stored
        | {meta.MetadataIndex("n"): files._StorageInfo("__1_0.distcp", 7, 8)},
    }
    made = meta.Metadata(**fields)
    for path, value in changes.items():
        target, _, name = path.rpartition("__")
        owner = {
            "": made,
            "tensor": tensor,
            "chunk": chunks[1],
            "info": next(iter(stored.values())),
        }
        setattr(owner[target], name, value)
    return pickle.dumps(made)


def test_metadata_is_read():
    saved = read_metadata(described())
    assert saved.tensors["w"].spec == TensorSpec("float32", (4, 2))
    assert [c.record for c in saved.tensors["w"].chunks] == [
        Record("__0_0.distcp", 0, 99),
        Record("__0_0.distcp", 200, 99),
    ]
    assert saved.objects == {"n": Record("__1_0.distcp", 7, 8)}
    assert saved.paths == {"w": ("w",), "n": ("deep", 0)}
    assert read_metadata(described(planner_data=None)).paths["n"] == ("n",)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"storage_data": {}}, "does not say where w lies"),
        ({"chunk__offsets": torch.Size([1, 0])}, "does not say where|overlap"),
        ({"chunk__sizes": torch.Size([1, 2])}, "do not cover"),
        ({"chunk__sizes": torch.Size([3, 2])}, "outside"),
        ({"chunk__sizes": torch.Size([2])}, "outside"),
        ({"tensor__size": torch.Size([5, 2])}, "do not cover"),
        ({"tensor__properties": None}, "not what torch"),
        ({"tensor__chunks": []}, "do not cover"),
        ({"info__offset": -1}, "not what torch"),
        ({"info__relative_path": 3}, "not what torch"),
        ({"info__transform_descriptors": ["zstd"]}, "transformed"),
        ({"planner_data": {"w": ("w", 1 << 40)}}, "not what torch"),
        ({"state_dict_metadata": {"w": 3}}, "not what torch"),
        ({"state_dict_metadata": Runs()}, "not what torch"),
    ],
)  # fmt: skip
def test_impossible_metadata_is_refused(changes, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises((BadModelFile, UnsupportedTensor), match=said):
        read_metadata(described(**changes))
    assert not Path("ran").exists()


def test_a_pickle_in_place_of_metadata_does_not_run(repo, fs):
    with fs.open("mvc://models@main/ck/.metadata.tmp", "wb") as file:
        pickle.dump(Runs(), file)
    with pytest.raises(BadModelFile):
        fs.mv("mvc://models@main/ck/.metadata.tmp", "mvc://models@main/ck/.metadata")
    with pytest.raises(WrongUsage, match="belongs to a checkpoint"):
        fs.mv("mvc://models@main/ck/.metadata.tmp", "mvc://models@main/elsewhere")
    assert not Path("ran").exists()
    assert repo.context.store.ref("heads/main") is None


@pytest.mark.parametrize("cut", [0, 1, 10, 100, -1])
def test_metadata_cut_short(cut):
    data = described()
    with pytest.raises(BadModelFile):
        read_metadata(data[:cut])


# -- the parts, by themselves --------------------------------------------------------------------


@given(data=st.data())
@settings(max_examples=60)
def test_any_grid_of_chunks_read_in_any_window(data):
    shape = tuple(data.draw(st.lists(st.integers(1, 5), max_size=3)))
    full = torch.arange(math.prod(shape), dtype=torch.int16).reshape(shape)
    cuts = [sorted({0, n, *data.draw(st.lists(st.integers(0, n), max_size=2))}) for n in shape]
    boxes = [()]
    for row in cuts:
        boxes = [(*b, (a, z)) for b in boxes for a, z in pairwise(row)]
    chunks, raw = [], b""
    for box in boxes:
        part = full[tuple(slice(a, z) for a, z in box)].clone()
        if part.dim() > 1 and data.draw(st.booleans()):
            part = part.t() if part.dim() == 2 else part.transpose(0, 2)
            part = part.contiguous().t() if part.dim() == 2 else part.contiguous().transpose(0, 2)
        record = io.BytesIO()
        torch.save(part, record)
        place = Record("f", len(raw), record.tell())
        raw += record.getvalue()
        chunks.append(Chunk(tuple(a for a, _ in box), tuple(z - a for a, z in box), place))
    spec = TensorSpec("int16", shape)
    deferred = whole("w", Placed(spec, tuple(chunks)), {"f": Bytes(raw)})
    expected = full.numpy().tobytes()
    for _ in range(4):
        start = data.draw(st.integers(0, len(expected)))
        end = data.draw(st.integers(start, len(expected)))
        out = bytearray(end - start)
        deferred.read(start, memoryview(out))
        assert out == expected[start:end]


plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary(),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(st.text() | st.integers(), inner, max_size=4)
    ),
    max_leaves=12,
)


@given(plain)
@settings(max_examples=60)
def test_plain_values_are_themselves(value):
    try:
        found = plain_value(saved_bytes(value))
    except mvc.MvcError:
        return  # then its bytes are kept
    assert repr(found) == repr(value)


@pytest.mark.parametrize(
    "value", [{1}, frozenset(), bytearray(b"x"), torch.Size([1]), [torch.ones(1)]]
)
def test_what_looks_plain_in_a_pickle_and_is_not(value):
    with pytest.raises((mvc.MvcError, TypeError, ValueError)):
        plain_value(saved_bytes(value))
