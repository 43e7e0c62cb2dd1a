"""Strided views out of raw bytes, against torch's own strides."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mvc.adapters.views import c_strides, extract, is_contiguous
from mvc.errors import DamagedData
from mvc.model.manifest import View
from mvc.model.tensor import TensorSpec


@given(
    st.lists(st.integers(0, 4), max_size=4),
    st.data(),
    st.sampled_from([torch.int8, torch.bfloat16, torch.float32, torch.complex128]),
)
def test_equals_torch(shape, data, dtype):
    offset = data.draw(st.integers(0, 3))
    strides = [data.draw(st.integers(0, 5)) for _ in shape]
    storage = torch.arange(offset + 128).to(dtype)
    view = torch.as_strided(storage, shape, strides, offset)
    raw = memoryview(storage.view(torch.uint8).numpy())
    spec = TensorSpec(str(dtype).removeprefix("torch."), tuple(shape))
    got = extract(raw, spec, View(offset, tuple(strides)))
    wanted = view.clone(memory_format=torch.contiguous_format).view(-1)
    assert bytes(got) == (bytes(wanted.view(torch.uint8).numpy()) if view.numel() else b"")
    assert is_contiguous(tuple(shape), tuple(strides)) == view.is_contiguous()


def test_c_strides_are_torchs():
    assert c_strides((2, 3, 4)) == torch.empty(2, 3, 4).stride()
    assert c_strides((2, 0, 4)) == torch.empty(2, 0, 4).stride()
    assert c_strides(()) == ()


def test_a_contiguous_view_is_not_copied():
    raw = bytearray(16)
    view = extract(memoryview(raw), TensorSpec("float32", (2,)), View(1, (1,)))
    raw[4] = 7
    assert view[0] == 7


@pytest.mark.parametrize(
    "view", [View(3, (1,)), View(0, (2, 1)), View(-1, (1,)), View(0, (-1,)), View(1 << 61, (1,))]
)
def test_what_leaves_the_storage_is_refused(view):
    with pytest.raises(DamagedData):
        extract(memoryview(bytes(16)), TensorSpec("float32", (2,)), view)
