"""Checkpoints of torch.distributed.checkpoint in one process: values, errors, hostile files."""

from __future__ import annotations

import copy
import dataclasses
import math
import random
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

import mvc
from mvc.adapters.parsed import MemorySource
from mvc.errors import InvalidName
from mvc.frameworks.common.data import saved_bytes
from mvc.frameworks.dcp import MvcReader, MvcWriter
from mvc.frameworks.dcp.objects import plain_value
from mvc.frameworks.dcp.writer import Chunk, assembled
from mvc.model.tensor import TensorSpec

CK = "ck/model.safetensors"

pytestmark = [
    pytest.mark.filterwarnings("ignore:torch.distributed is disabled"),
    pytest.mark.usefixtures("beside"),
]


def save(repo, state, path=CK, **options):
    dcp.save(state, storage_writer=MvcWriter(repo, path=path, **options), no_dist=True)


def load(repo, state, path=CK, rev="HEAD"):
    dcp.load(state, storage_reader=MvcReader(repo, rev, path=path), no_dist=True)
    return state


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
    save(repo, VALUES | tensors)
    blank = {"w": torch.zeros(3, 4), "nested": [torch.zeros(2), {"x": torch.ones(1)}]}
    found = load(repo, {k: {"a": {"b": 0}} if k == "words" else 0 for k in VALUES} | blank)
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
    "state",
    [
        {},
        {"list": [1], "text": "x"},
        {"nested": {"empty": {}}},
        {"set": {1, 2}},
        {"": {1, 2}},
        {"list": [[], {"set": {1, 2}}], "other": [[5, {"set": {1}}], 7, (torch.ones(1), 2)]},
    ],
    ids=["empty", "plain", "nested empty", "object", "object without a name", "objects in lists"],
)
def test_what_is_written_is_read(repo, state):
    def blank(value):
        if isinstance(value, dict):
            return {key: blank(item) for key, item in value.items()}
        return [blank(item) for item in value] if isinstance(value, list) else value and 0

    save(repo, state)
    found = load(repo, blank(state))
    assert repr(found) == repr(state)


leaves = st.sampled_from([1, "x", None, {1, 2}, b"x", (), (torch.ones(2), 5), torch.ones(2)])
names = st.text("ab.", max_size=2)
trees = st.recursive(
    leaves,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3),
    max_leaves=8,
)


@given(state=st.dictionaries(names, trees, max_size=3))
@settings(max_examples=40)
def test_any_state_is_read_as_torch_reads_its_own(tmp_path_factory, state):
    """Names with dots may collide, which torch refuses when it saves."""

    def read(reader):
        made = copy.deepcopy(state)
        try:
            dcp.load(made, storage_reader=reader, no_dist=True)
        except dcp.api.CheckpointException:
            return None
        return repr(made)

    folder = tmp_path_factory.mktemp("states")
    own = folder / "own"
    with mvc.Repository.init(folder / "repo") as repo:
        try:
            dcp.save(state, checkpoint_id=own, no_dist=True)
        except (ValueError, dcp.api.CheckpointException):
            return
        save(repo, state)
        expected = read(dcp.FileSystemReader(own))
        assert expected is None or read(MvcReader(repo, path=CK)) == expected


@pytest.mark.parametrize(
    "dtype",
    ["float64", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "int8", "uint16", "bool",
     "complex64"],
)  # fmt: skip
def test_dtypes_bit_for_bit(repo, dtype):
    kind = getattr(torch, dtype)
    raw = torch.randint(0, 2 if dtype == "bool" else 256, (6 * 8,), dtype=torch.uint8)
    tensor = raw.view(kind).reshape(-1, 2)
    save(
        repo,
        {"t": tensor, "turned": tensor.t(), "scalar": tensor[0, 0].clone(), "none": tensor[:0]},
    )
    shapes = {"t": tensor.shape, "turned": tensor.t().shape, "scalar": (), "none": (0, 2)}
    found = load(repo, {name: torch.zeros(shape, dtype=kind) for name, shape in shapes.items()})

    def bits(t):
        return t.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()

    assert bits(found["t"]) == bits(tensor)
    assert bits(found["turned"]) == bits(tensor.t())
    assert bits(found["scalar"]) == bits(tensor[0, 0].clone())


def test_a_checkpoint_over_an_older_one(repo):
    save(repo, {"w": torch.ones(3), "odd": {1}}, "model.safetensors")
    assert len(repo.manifest().by_path) == 2
    save(repo, {"w": torch.zeros(3)}, "model.safetensors")
    assert sorted(repo.manifest().by_path) == ["model.safetensors"]
    assert torch.equal(repo.checkout()["w"], torch.zeros(3))
    found = load(repo, {"w": torch.zeros(3)}, "model.safetensors", "HEAD~1")
    assert torch.equal(found["w"], torch.ones(3))


def test_an_unchanged_checkpoint_is_no_version(repo):
    writer = MvcWriter(repo)
    dcp.save({"w": torch.ones(3)}, storage_writer=writer, no_dist=True)
    assert writer.committed == repo.find("HEAD")
    dcp.save({"w": torch.ones(3)}, storage_writer=writer, no_dist=True)
    assert writer.committed is None
    assert len(list(repo.log())) == 1


def test_the_root_is_that_of_a_plain_commit(repo, tmp_path):
    state = {"w": torch.randn(3, 4), "opt": {"m": [torch.ones(2)], "lr": 0.1}}
    save(repo, state, "model.safetensors")
    with mvc.Repository.init(tmp_path / "plain") as plain:
        plain.commit(state)
        assert plain.manifest().root == repo.manifest().root


def test_folder_branch_message_and_checkpoint_id(repo):
    repo.commit({"w": torch.zeros(3)})
    repo.branch("other")
    writer = MvcWriter(repo.root, branch="other", message="step 3")
    dcp.save({"w": torch.ones(3)}, checkpoint_id=CK, storage_writer=writer, no_dist=True)
    assert [e.commit.message for e in repo.log("other")] == ["step 3", ""]
    assert sorted(repo.manifest("other").by_path) == [CK, "model.safetensors"]
    assert sorted(repo.manifest("main").by_path) == ["model.safetensors"]
    found = {"w": torch.zeros(3)}
    reader = MvcReader(repo.root, "other")
    dcp.load(found, checkpoint_id=CK, storage_reader=reader, no_dist=True)
    assert torch.equal(found["w"], torch.ones(3))


def test_async_save_is_a_commit_of_the_state_at_the_call(repo):
    import torch.distributed as dist

    state = {"w": torch.ones(3)}
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        future = dcp.async_save(state, storage_writer=MvcWriter(repo.root, path=CK))
        state["w"].zero_()
        future.result()
    finally:
        dist.destroy_process_group()
    assert torch.equal(load(repo, {"w": torch.zeros(3)})["w"], torch.ones(3))


def test_the_planner_caches_its_plans(repo):
    for value in (1.0, 2.0, 3.0):
        planner = dcp.DefaultSavePlanner(enable_plan_caching=True)
        writer = MvcWriter(repo, path=CK)
        dcp.save(
            {"w": torch.full((3,), value)}, storage_writer=writer, planner=planner, no_dist=True
        )
        assert torch.equal(load(repo, {"w": torch.zeros(3)})["w"], torch.full((3,), value))


def test_versions_that_no_checkpoint_was_are_loaded_too(repo):
    state = {"w": torch.randn(3, 2), "opt": {0: {"m": torch.ones(2)}}, "pair": (torch.ones(1), 2)}
    repo.commit(state | {"array": np.arange(3), "lr": np.float64(0.5)})
    blank = {
        "w": torch.zeros(3, 2),
        "opt": {0: {"m": torch.zeros(2)}},
        "pair": 0,
        "array": 0,
        "lr": 0,
    }
    found = load(repo, blank, "model.safetensors")
    assert torch.equal(found["w"], state["w"]) and torch.equal(found["opt"][0]["m"], torch.ones(2))
    assert torch.equal(found["pair"][0], torch.ones(1)) and found["pair"][1] == 2
    assert np.array_equal(found["array"], np.arange(3)) and found["lr"] == 0.5
    from safetensors.torch import save_file

    save_file({"a.b": torch.ones(4)}, repo.root / "model.safetensors")
    repo.commit("model.safetensors", files=mvc.FileOptions(cwd=repo.root))
    found = load(repo, {"a": {"b": torch.zeros(4)}}, "model.safetensors")
    assert torch.equal(found["a"]["b"], torch.ones(4))


def test_big_tensors_are_read_in_windows(repo):
    """Above 32 MiB a content is never read as a whole; two chunks meet in a window."""
    tensor = torch.arange(3 * 3_000_000, dtype=torch.float32).reshape(3, 3_000_000)
    save(repo, {"w": tensor, "turned": tensor[:, :5].t()})
    found = load(repo, {"w": torch.zeros_like(tensor), "turned": torch.zeros(5, 3)})
    assert torch.equal(found["w"], tensor)
    assert torch.equal(found["turned"], tensor[:, :5].t())


# -- what is refused -----------------------------------------------------------------------------


def refused(repo, act):
    """What torch says; nothing was committed, and nothing is left."""
    before = repo.handle.store.snapshot.ref("heads/main")
    with pytest.raises((dcp.api.CheckpointException, mvc.MvcError)) as caught:
        act()
    assert repo.handle.store.snapshot.ref("heads/main") == before
    assert not list(Path(repo.root, ".mvc/staging").glob("*.shard"))
    return str(caught.value)


def test_paths_and_branches_that_cannot_be_written(repo):
    save(repo, {"w": torch.ones(2)}, "ck")
    assert "ck is a file" in refused(repo, lambda: save(repo, {"w": torch.ones(2)}))
    for wrong, said in (({"push": "there"}, "no remote there"), ({"deploy": "a..b"}, "a..b")):
        assert said in refused(repo, lambda w=wrong: save(repo, {"w": torch.ones(2)}, "other", **w))
    said = refused(repo, lambda: save(repo, {"w": torch.ones(2)}, "other", branch="none"))
    assert "there is no branch none" in said
    with pytest.raises(InvalidName):
        MvcWriter(repo, path="../model.safetensors")
    with pytest.raises(mvc.MvcError, match="not a repository"):
        MvcReader(repo.root.parent)
    assert sorted(repo.manifest().by_path) == ["ck"]


def test_a_checkpoint_without_a_coordinator_is_refused(repo):
    def act():
        writer = MvcWriter(repo)
        dcp.save({"w": torch.ones(2)}, storage_writer=writer, no_dist=True, use_collectives=False)

    assert "without collectives" in refused(repo, act)


def test_tensors_that_cannot_be_kept_exactly(repo):
    said = refused(repo, lambda: save(repo, {"w": torch.eye(2).to_sparse()}))
    assert "w is a sparse tensor" in said


def test_what_a_version_lacks(repo):
    save(repo, {"w": torch.ones(2)})
    for path, state, said in [
        ("none", {"w": torch.zeros(2)}, "has no file none"),
        (CK, {"v": torch.zeros(2)}, "Missing key"),
        (CK, {"w": torch.zeros(3)}, "Size mismatch"),
    ]:
        assert said in refused(repo, lambda s=state, p=path: load(repo, s, p))
    said = refused(repo, lambda: load(repo, {"w": torch.zeros(2)}, rev="none"))
    assert "no version, branch, tag or target none" in said


def test_ranks_that_read_different_versions(repo):
    plans = []
    for _ in range(2):
        repo.commit({"w": torch.ones(2)})
        reader = MvcReader(repo)
        reader.read_metadata()
        plans.append(reader.prepare_local_plan(dcp.LoadPlan([])))
    assert reader.prepare_global_plan(plans[1:] * 2)
    with pytest.raises(mvc.MvcError, match="is a different version on"):
        reader.prepare_global_plan(plans)


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda shard, m, r: shard.write_bytes(shard.read_bytes()[:-30]), "is truncated"),
        (lambda shard, m, r: shard.unlink(), "was not written to this repository"),
        (lambda shard, m, r: r[0].clear(), "no rank has written w"),
        (lambda shard, m, r: setattr(m, "size", torch.Size([200])), "do not cover"),
        (lambda shard, m, r: m.chunks.append(m.chunks[0]), "do not cover"),
        (
            lambda shard, m, r: setattr(m.chunks[0], "sizes", torch.Size([101])),
            "exceeds the tensor",
        ),
        (
            lambda shard, m, r: setattr(m.chunks[0], "sizes", torch.Size([1, 100])),
            "exceeds the tensor",
        ),
        (lambda shard, m, r: setattr(m.properties, "dtype", torch.float64), "number of bytes"),
    ],
)
def test_a_missing_or_damaged_shard(repo, spoil, said):
    class Writer(MvcWriter):
        def finish(self, metadata, results):
            shard = next(Path(repo.root, ".mvc/staging").glob("*.shard"))
            spoil(shard, metadata.state_dict_metadata["w"], results)
            super().finish(metadata, results)

    state = {"w": torch.arange(100.0)}
    assert said in refused(repo, lambda: dcp.save(state, storage_writer=Writer(repo), no_dist=True))
    save(repo, state)


def test_a_rank_cannot_name_another_file(repo):
    class Writer(MvcWriter):
        def finish(self, metadata, results):
            old = results[0][0]
            record = replace(old.storage_data, shard="../../config.yaml")
            results[0][0] = dataclasses.replace(old, storage_data=record)
            super().finish(metadata, results)

    said = refused(
        repo, lambda: dcp.save({"w": torch.ones(3)}, storage_writer=Writer(repo), no_dist=True)
    )
    assert "an invalid shard name" in said


def test_a_link_in_place_of_the_staging_folder(repo, tmp_path):
    """A foreign repository must not make us write into, or clear, somebody's folder."""
    (tmp_path / "victim").mkdir()
    (tmp_path / "victim/x.lock").write_text("mine")
    Path(repo.root, ".mvc/staging").symlink_to(tmp_path / "victim")
    assert "is not a folder" in refused(repo, lambda: save(repo, {"w": torch.ones(2)}))
    assert [p.name for p in (tmp_path / "victim").iterdir()] == ["x.lock"]


def test_a_planner_that_gives_something_else(repo):
    class Planner(dcp.DefaultSavePlanner):
        def resolve_data(self, item):
            return super().resolve_data(item).double()

    def act():
        writer = MvcWriter(repo)
        dcp.save({"w": torch.ones(3)}, storage_writer=writer, planner=Planner(), no_dist=True)

    assert "tensor of w differs" in refused(repo, act)


def test_two_values_in_one_place(repo):
    class Writer(MvcWriter):
        def finish(self, metadata, results):
            metadata.planner_data = dict.fromkeys(metadata.planner_data, self.place)
            super().finish(metadata, results)

    for place in (("a",), ("a", 0), ("a", "b", 3)):
        Writer.place = place

        def act():
            state = {"v": torch.ones(3), "w": 3}
            dcp.save(state, storage_writer=Writer(repo), no_dist=True)

        assert "have the same keys" in refused(repo, act)


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
    raw, places = b"", []
    for box in boxes:
        part = full[tuple(slice(a, z) for a, z in box)].numpy().tobytes()
        places.append((tuple(a for a, _ in box), tuple(z - a for a, z in box), len(raw), len(part)))
        raw += part
    source = MemorySource(raw)
    chunks = [
        Chunk(offsets=offsets, sizes=sizes, source=source, start=at, length=n)
        for offsets, sizes, at, n in places
    ]
    deferred = assembled("w", TensorSpec("int16", shape), chunks)
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
