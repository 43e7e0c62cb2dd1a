""".npy and .npz files: plain arrays become tensors, everything else stays bytes."""

import io
import zipfile

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mvc.adapters.files.detect import parse_file
from mvc.adapters.files.numpy_files import DESCRIPTIONS
from mvc.adapters.python.state import to_state, values
from mvc.model.hashing import blob_id
from tests.adapters.helpers import MemorySource, by_key, round_trip, to_entry


def npy(array, version=None) -> bytes:
    buffer = io.BytesIO()
    np.lib.format.write_array(buffer, array, version=version, allow_pickle=True)
    return buffer.getvalue()


def npz(save=np.savez, **arrays) -> bytes:
    buffer = io.BytesIO()
    save(buffer, **arrays)
    return buffer.getvalue()


@pytest.mark.parametrize("text", DESCRIPTIONS)
@pytest.mark.parametrize("shape", [(), (0,), (5,), (2, 3), (1, 0, 2)])
def test_every_dtype(text, shape):
    array = (np.arange(np.prod(shape, dtype=int)) % 2).astype(text).reshape(shape)
    for version in ((1, 0), (2, 0), (3, 0)):
        entry = round_trip(npy(array, version))
        assert entry.format == "npy"
        (tensor,) = entry.tensors
        assert (tensor.key, tensor.spec.shape) == ("array", shape)
        assert tensor.id == blob_id(tensor.spec, array.tobytes())
    entry, skeleton, blobs = to_entry(parse_file(MemorySource(npz(a=array, b=array)), "x"))
    assert entry.format == "npz" and set(by_key(entry)) == {"a", "b"}
    back = to_state(entry, skeleton, lambda i: blobs[i])["b"]
    assert isinstance(back, np.ndarray) and back.dtype == array.dtype
    assert np.array_equal(back, array)


OTHER = {
    "object": np.array([None, 1]),
    "fortran": np.asfortranarray(np.ones((2, 3))),
    "big-endian": np.ones(3, ">f4"),
    "text": np.array(["a", "b"]),
    "structured": np.zeros(2, [("a", "f4"), ("b", "i2")]),
    "time": np.zeros(2, "M8[s]"),
    "long double": np.zeros(2, np.longdouble),
    "sub-array": np.zeros(2, [("a", "f4", (2,))]),
}


@pytest.mark.parametrize("name", OTHER)
def test_other_arrays_stay_bytes(name):
    assert round_trip(npy(OTHER[name])).format == "opaque"
    entry = round_trip(npz(odd=OTHER[name], plain=np.ones(2)))
    assert entry.format == "npz" and set(by_key(entry)) == {"plain"}
    assert any(c.spec.dtype == "raw" for c in entry.contents)


def test_checksums_are_not_stored():
    entry, skeleton, _ = to_entry(parse_file(MemorySource(npz(a=np.ones(100))), "x"))
    assert len(entry.checks) == 2
    for check in entry.checks:
        assert check.length == 800 + 128
    other = to_entry(parse_file(MemorySource(npz(a=np.zeros(100))), "x"))[1]
    assert skeleton == other


def test_compressed_archives_and_those_without_arrays_are_opaque():
    assert round_trip(npz(np.savez_compressed, a=np.ones(9))).format == "opaque"
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("readme.txt", "no array")
    assert round_trip(buffer.getvalue()).format == "opaque"


def test_an_archive_of_no_array_is_one():
    entry = round_trip(npz())
    assert entry.format == "npz" and not entry.tensors


@pytest.mark.parametrize(
    "change",
    [
        lambda b: b + b"x",
        lambda b: b[:-1],
        lambda b: b.replace(b"(3,)", b"(4,)"),
        lambda b: b.replace(b"(3,)", b"(9999999999999999999999999,)"[:4]),
        lambda b: b.replace(b"'descr': '<f4'", b"'descr': 1+2*4"),
        lambda b: b.replace(b"\x01\x00v\x00", b"\x09\x00v\x00"),
        lambda b: b.replace(b"\x01\x00v\x00", b"\x01\x00\xff\xff"),
        lambda b: b[:10],
    ],
)
def test_malformed_headers_are_opaque(change):
    data = change(npy(np.ones(3, np.float32)))
    assert data != npy(np.ones(3, np.float32))
    assert round_trip(data).format == "opaque"


def test_values_as_torch():
    import torch

    entry, _, blobs = to_entry(parse_file(MemorySource(npz(a=np.ones(2))), "x"))
    got = values(entry, lambda i: blobs[i], None, "torch")
    assert torch.equal(got["a"], torch.ones(2, dtype=torch.float64))


@given(
    st.dictionaries(
        st.text("abc/._-é", min_size=1, max_size=6).filter(lambda t: not t.startswith(("/", "."))),
        st.tuples(st.sampled_from(list(DESCRIPTIONS)), st.lists(st.integers(0, 4), max_size=3)),
        max_size=5,
    )
)
def test_any_archive_comes_back(arrays):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, (text, shape) in arrays.items():
            archive.writestr(f"{name}.npy", npy(np.zeros(shape, text)))
    entry = round_trip(buffer.getvalue())
    assert set(by_key(entry)) == set(arrays)
