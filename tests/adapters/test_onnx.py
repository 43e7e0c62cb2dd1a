"""ONNX files: tensors by the lengths of fields, one content with other formats."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file

import mvc
from mvc.adapters.files.detect import why_opaque
from mvc.model.hashing import blob_id
from mvc.model.tensor import TensorSpec
from tests.adapters.helpers import MemorySource, by_key, round_trip
from tests.adapters.onnx_files import (
    CODES,
    GRAPH,
    TENSOR,
    attribute,
    field,
    graph,
    model,
    node,
    small,
    tensor,
    varint,
)

ROWS = np.arange(12, dtype="<f4").reshape(3, 4)


def test_initializers_large_constants_and_subgraphs_have_names():
    entry = round_trip(small())
    assert entry.format == "onnx"
    found = by_key(entry)
    assert {key: str(each.spec) for key, each in found.items()} == {
        "weight": "float32[3, 4]",
        "half": "float16[3, 4]",
        "bias": "float32[4]",
        "double": "float64[3, 4]",
        "empty": "float32[0, 3]",
        "scalar": "int64[]",
        "constant": "float32[2000]",
        "inner": "float32[4]",
        "sparse": "float32[3, 4]",
    }
    assert found["weight"].id == blob_id(TensorSpec("float32", (3, 4)), ROWS.tobytes())
    unnamed = [c.spec for i, c in enumerate(entry.contents) if i not in
               {each.content for each in entry.tensors}]  # fmt: skip
    assert [*map(str, unnamed)] == ["float32[3]", "int64[12]"]  # another bias, and indices


@pytest.mark.parametrize("dtype", CODES)
@pytest.mark.parametrize("packed", [False, True])
def test_every_dtype(dtype: str, packed: bool):
    array = np.arange(6).reshape(2, 3).astype(dtype)
    found = by_key(round_trip(model(tensor("w", array, packed=packed))))["w"]
    assert found.id == blob_id(TensorSpec(dtype, (2, 3)), array.tobytes())


def test_what_dtype_and_shape_do_not_explain_is_bytes():
    packed = field(1, 5) + field(2, 22) + field(8, "int4") + field(9, b"abc")
    short = tensor("short", ROWS).replace(field(1, 3), field(1, 2), 1)
    endless = field(1, (1 << 64) - 1) + field(2, 1) + field(8, "endless") + field(9, b"abcd")
    varints = field(1, 3) + field(2, 7) + field(7, b"\1\2\3") + field(8, "varints")
    entry = round_trip(model(packed, short, endless, varints))
    found = {key: str(each.spec) for key, each in by_key(entry).items()}
    assert found == {"int4": "uint8[3]", "short": "uint8[48]", "endless": "uint8[4]"}


def test_a_tensor_in_two_formats_is_one_content_and_either_file_identifies_it(tmp_path: Path):
    random_ = np.random.default_rng(0)
    weights = {f"l{i}": random_.standard_normal((100, 200)).astype("<f4") for i in range(3)}
    save_file(weights, tmp_path / "m.safetensors")
    (tmp_path / "m.onnx").write_bytes(model(*(tensor(k, w) for k, w in weights.items())))
    with mvc.Repository.init(tmp_path) as repo:
        first = repo.commit(tmp_path / "m.safetensors")
        second = repo.commit(tmp_path / "m.onnx")
        assert second.stored_bytes < 5000  # the contents are there
        for name in ("m.onnx", "m.safetensors"):
            found = {each.commit for each in repo.identify(tmp_path / name)}
            assert found == {first.id, second.id}


def test_what_a_model_says_about_itself(tmp_path: Path):
    heads = {
        "full": field(2, "ada") + field(3, "1.0") + field(4, "net") + field(5, 7),
        "few": field(2, ""),
        "none": b"",
        "odd": b"\x15\xff\xff\xff\x7f",
    }
    with mvc.Repository.init(tmp_path) as repo:
        for name, head in heads.items():
            (tmp_path / name).write_bytes(field(1, 10) + head + field(7, graph(tensor("w", ROWS))))
        repo.commit([tmp_path / name for name in heads])
        found = {name: repo.open_file("HEAD", name).facts.metadata for name in heads}
    assert found == {
        "full": {
            "ir_version": 10,
            "producer_name": "ada",
            "producer_version": "1.0",
            "domain": "net",
            "model_version": 7,
        },
        "few": {"ir_version": 10, "producer_name": ""},
        "none": {"ir_version": 10},
        "odd": {},
    }


def test_a_repository_without_such_files_needs_no_new_reader(tmp_path: Path):
    with mvc.Repository.init(tmp_path) as repo:
        save_file({"w": ROWS}, tmp_path / "m.safetensors")
        repo.commit(tmp_path / "m.safetensors")
        assert b"onnx" not in (tmp_path / ".mvc/format").read_bytes()
        (tmp_path / "m.onnx").write_bytes(small())
        repo.commit(tmp_path / "m.onnx")
        assert b"features=onnx " in (tmp_path / ".mvc/format").read_bytes()


def test_a_header_of_safetensors_may_begin_as_a_graph(tmp_path: Path):
    for length in range(1, 300):
        save_file({"w": ROWS}, tmp_path / "m", {"m": "x" * length})
        data = (tmp_path / "m").read_bytes()
        if data[0] == 8:
            assert round_trip(data).format == "safetensors"
            return
    raise AssertionError("no header had such a length")


NONE = {
    "no tensors": (model(), "no tensors"),
    "only varints": (model(field(1, 1) + field(2, 7) + field(7, b"\1")), "no tensors"),
    "truncated": (small()[:-1], "truncated"),
    "a group": (field(1, 8) + b"\x3b", "not a valid ONNX file"),
    "beyond the graph": (field(1, 8) + field(7, b"\x2a\x05") + bytes(99), "not a valid ONNX file"),
    "a long number": (field(1, 8) + b"\x3a" + b"\xff" * 11, "not a valid ONNX file"),
    "two names": (model(tensor("a\nb", ROWS)), "control character"),
    "long name": (model(tensor("n" * 70_000, ROWS)), "longer than 1024 bytes"),
}


@pytest.mark.parametrize("name", NONE)
def test_what_is_not_read_is_opaque_with_a_reason(name: str):
    data, reason = NONE[name]
    assert round_trip(data).format == "opaque"
    why, hint = why_opaque(MemorySource(data), "m.onnx")
    assert reason in why and hint


def test_nested_graphs_end():
    inner = graph(tensor("w", ROWS))
    for _ in range(100):
        inner = graph(nodes=(node("if", attribute(6, inner, GRAPH)),))
    assert by_key(round_trip(field(1, 8) + field(7, inner))).keys() == {"w"}
    for _ in range(100):
        inner = graph(nodes=(node("if", attribute(6, inner, GRAPH)),))
    assert round_trip(field(1, 8) + field(7, inner)).format == "opaque"


def test_a_long_walk_ends():
    data = field(1, 8) + field(7, b"\x10\x00" * 3_000_000)
    began = time.process_time()
    assert "too many parts" in why_opaque(MemorySource(data), "m.onnx")[0]
    assert time.process_time() - began < 30


def test_many_nodes_are_passed_over():
    pads = attribute(8, b"\1\1\1\1", 7)
    nodes = tuple(
        node(f"/layers.{i}/out", pads)
        if i % 2
        else node(f"/layers.{i}/c", attribute(5, tensor("", ROWS[0]), TENSOR))
        for i in range(100_000)
    )
    data = model(tensor("w", ROWS), nodes=nodes)
    began = time.process_time()
    entry = round_trip(data)
    assert time.process_time() - began < 5
    assert by_key(entry).keys() == {"w"}


@given(
    st.lists(
        st.tuples(
            st.sampled_from(sorted(CODES)),
            st.lists(st.integers(0, 5), max_size=4),
            st.booleans(),
            st.booleans(),
            st.sampled_from(["initializer", "constant", "subgraph"]),
        ),
        max_size=6,
    ),
    st.randoms(),
)
@settings(deadline=None)
def test_any_file_comes_back(tensors, random_):
    made, names, initializers, nodes = {}, iter("abcdefgh"), [], []
    for dtype, shape, packed, last, where in tensors:
        size = int(np.prod(shape)) * np.dtype(dtype).itemsize
        made[name := next(names)] = array = np.frombuffer(random_.randbytes(size), dtype)
        array.shape = shape
        one = tensor("" if where == "constant" else name, array, packed=packed, last=last)
        if where == "initializer":
            initializers.append(one)
        elif where == "subgraph":
            nodes.append(node("if", attribute(6, graph(one), GRAPH)))
        else:
            nodes.append(node(name, attribute(5, one, TENSOR), attribute(4, bytes(5000), 3)))
    entry = round_trip(model(*initializers, nodes=tuple(nodes)))
    assert entry.format == ("onnx" if made else "opaque")
    if made:
        assert {k: (each.spec, each.id) for k, each in by_key(entry).items()} == {
            k: (spec := TensorSpec(a.dtype.name, a.shape), blob_id(spec, a.tobytes()))
            for k, a in made.items()
        }


def test_numbers_of_many_bytes_are_read():
    long = field(1, 10) + field(
        7, graph(varint(1 << 3) + b"\x83\x80\x00" + tensor("w", ROWS[:, 0].copy())[2:])
    )
    assert by_key(round_trip(long))["w"].spec == TensorSpec("float32", (3,))
