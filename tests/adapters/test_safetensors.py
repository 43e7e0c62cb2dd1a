"""safetensors files: exact tiling, strict headers, every dtype, the same bytes back."""

import json
import struct

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save

from mvc.adapters.files.safetensors import CODES
from mvc.model.hashing import blob_id
from tests.adapters.helpers import round_trip

SAVED = [name for code, name in CODES.items() if code not in {"C32", "C128"}]


def build(header: bytes, data: bytes = b"") -> bytes:
    return struct.pack("<Q", len(header)) + header + data


def one(dtype="F32", shape=(1,), offsets=(0, 4), **more) -> dict:
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets), **more}


@pytest.mark.parametrize("name", SAVED)
def test_every_dtype_comes_back(name):
    dtype = getattr(torch, name)
    tensor = torch.arange(128, dtype=torch.uint8).clamp(max=1 if name == "bool" else 127)
    tensor = tensor.view(dtype).reshape(2, -1)
    entry = round_trip(save({"a.weight": tensor, "b": tensor[:1].clone()}, {"k": "v"}))
    assert entry.format == "safetensors"
    found = entry.tensors[0]
    assert found.key == "a.weight"
    assert (found.spec.dtype, found.spec.shape) == (name, tuple(tensor.shape))
    assert found.id == blob_id(found.spec, tensor.view(torch.uint8).numpy().tobytes())


def test_tensors_are_in_file_order_and_scalars_and_empty_ones_are_kept():
    state = {
        "z": torch.zeros(2, dtype=torch.float64),
        "empty": torch.empty(0, 3),
        "scalar": torch.tensor(2.0),
        "a": torch.ones(3, dtype=torch.int8),
    }
    entry = round_trip(save(state))
    assert {t.key for t in entry.tensors} == set(state)
    assert [c.offset for c in entry.contents] == sorted(c.offset for c in entry.contents)
    by_key = {t.key: t for t in entry.tensors}
    assert by_key["scalar"].spec.shape == ()
    assert by_key["empty"].spec.shape == (0, 3)


GOOD = build(json.dumps({"a": one()}).encode(), bytes(4))

BAD = {
    "duplicate": build(b'{"a":%b,"a":%b}' % ((json.dumps(one()).encode(),) * 2), bytes(4)),
    "hole": build(json.dumps({"a": one(offsets=(4, 8))}).encode(), bytes(8)),
    "overlap": build(json.dumps({"a": one(), "b": one()}).encode(), bytes(4)),
    "trailing": GOOD + b"x",
    "truncated": GOOD[:-1],
    "negative": build(json.dumps({"a": one(shape=(-1,))}).encode(), bytes(4)),
    "boolean shape": build(json.dumps({"a": one(shape=(True,))}).encode(), bytes(4)),
    "float shape": build(json.dumps({"a": one(shape=(1.0,))}).encode(), bytes(4)),
    "overflow": build(json.dumps({"a": one(shape=(1 << 62, 1 << 62))}).encode(), bytes(4)),
    "dimensions": build(json.dumps({"a": one(shape=[1] * 65)}).encode(), bytes(4)),
    "unknown dtype": build(json.dumps({"a": one(dtype="F99")}).encode(), bytes(4)),
    "wrong size": build(json.dumps({"a": one(dtype="F64")}).encode(), bytes(4)),
    "infinite offset": build(
        b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,1e999]}}', bytes(4)
    ),
    "nan": build(b'{"a":NaN}', bytes(4)),
    "deep": build(b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}"),
    "not utf-8": build(b'{"\xff":1}'),
    "huge integer": build(b'{"a":' + b"9" * 5000 + b"}"),
    "list": build(b"[]"),
    "control character": build(json.dumps({"a\n": one()}).encode(), bytes(4)),
    "long name": build(json.dumps({"a" * 1025: one()}).encode(), bytes(4)),
    "metadata": build(b'{"__metadata__":{"a":1}}'),
    "header length": struct.pack("<Q", 1 << 63) + b"{}",
    "odd F4": build(json.dumps({"a": one("F4", (3,), (0, 2))}).encode(), bytes(2)),
    "surrogate": build(b'{"\\ud800":' + json.dumps(one()).encode() + b"}", bytes(4)),
}


def test_the_smallest_files_parse():
    assert round_trip(GOOD).format == "safetensors"
    assert round_trip(build(b"{}")).format == "safetensors"


def test_what_other_readers_pass_over_is_no_obstacle():
    header = {"__metadata__": None, "a": one(note="x")}
    entry = round_trip(build(json.dumps(header).encode(), bytes(4)))
    assert entry.format == "safetensors" and [t.key for t in entry.tensors] == ["a"]


@pytest.mark.parametrize("name", BAD)
def test_what_is_not_strict_is_opaque(name):
    entry = round_trip(BAD[name])
    assert entry.format == "opaque" and not entry.tensors


@given(
    st.dictionaries(
        st.text("abcdef.01", min_size=1, max_size=8),
        st.tuples(
            st.sampled_from(["F32", "I8", "F64", "BOOL"]), st.lists(st.integers(0, 3), max_size=3)
        ),
        max_size=6,
    ),
    st.binary(max_size=20),
)
def test_any_layout_comes_back(entries, tail):
    sizes = {"F32": 4, "I8": 1, "F64": 8, "BOOL": 1}
    header, end = {}, 0
    for key, (code, shape) in entries.items():
        size = sizes[code]
        for n in shape:
            size *= n
        header[key] = one(code, shape, (end, end + size))
        end += size
    data = build(json.dumps(header).encode(), bytes(i % 251 for i in range(end)))
    assert len(round_trip(data).tensors) == len(entries)
    round_trip(data + tail)
