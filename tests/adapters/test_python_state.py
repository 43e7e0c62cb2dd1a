"""Python states: exact bits and nesting back, readers take the file, refusals name places."""

import math
import struct
from collections import Counter, OrderedDict

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import load, save

from mvc.adapters.files.detect import parse_file
from mvc.adapters.files.safetensors import CODES
from mvc.adapters.python.state import from_state, to_state, values
from mvc.errors import (
    DamagedData,
    InvalidName,
    MvcError,
    UnknownPath,
    UnsupportedTensor,
    WrongUsage,
)
from mvc.model.manifest import FileEntry
from tests.adapters.helpers import MemorySource, by_key, rebuild, round_trip, to_entry


def bits(value) -> bytes:
    if isinstance(value, torch.Tensor):
        value = value.detach().resolve_conj().resolve_neg().contiguous()
        return value.reshape(-1).view(torch.uint8).numpy().tobytes() if value.numel() else b""
    return np.asarray(value).tobytes()


def same(a, b) -> bool:
    """Equal in type, nesting, order of keys and every bit."""
    if isinstance(a, torch.Tensor) or isinstance(b, torch.Tensor):
        alike = isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor)
        return alike and a.dtype == b.dtype and a.shape == b.shape and bits(a) == bits(b)
    if isinstance(a, (np.ndarray, np.generic)):
        return (
            type(a) is type(b) and a.dtype == b.dtype and a.shape == b.shape and bits(a) == bits(b)
        )
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[k], b[k]) for k in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, float):
        return struct.pack("d", a) == struct.pack("d", b)
    if isinstance(a, complex):
        return same(a.real, b.real) and same(a.imag, b.imag)
    return a == b


def there_and_back(state):
    """from_state, through bytes on disk, to_state; the file parses as the same entry."""
    entry, skeleton, blobs = to_entry(from_state(state))
    data = rebuild(entry, skeleton, blobs)
    again, skeleton_again, blobs_again = to_entry(parse_file(MemorySource(data), "model"))
    assert (again, skeleton_again, blobs_again) == (entry, skeleton, blobs)
    return to_state(entry, skeleton, lambda i: memoryview(bytearray(blobs[i]))), data


@pytest.mark.parametrize("name", list(CODES.values()))
def test_every_torch_dtype(name):
    dtype = getattr(torch, name)
    tensor = torch.arange(128, dtype=torch.uint8).clamp(max=1 if name == "bool" else 127)
    tensor = tensor.view(dtype).reshape(2, -1)
    state = {"a": tensor, "e": tensor[:0]}
    if name != "float4_e2m1fn_x2":
        state |= {"t": tensor.t(), "s": tensor[0, 0]}
    back, data = there_and_back(state)
    assert same(back, state)
    if name not in {"complex32", "complex128"}:
        # `load` refuses some dtypes that `safe_open` knows, hence a file only where needed.
        try:
            loaded = load(data)
        except KeyError:
            return
        assert all(same(loaded[k], state[k].contiguous()) for k in state)


@pytest.mark.parametrize(
    "name", ["bool", "int8", "uint16", "int64", "float16", "float64", "complex128"]
)
def test_numpy_arrays_and_scalars(name):
    array = np.arange(12).astype(name).reshape(3, 4)
    state = {
        "a": array,
        "t": array.T,
        "v": array[::2, 1:3],
        "s": array[1, 1],
        "0": array[0, 0, None],
    }
    state |= {"zero-d": np.array(1, name), "empty": array[:0], "fortran": np.asfortranarray(array)}
    back, _ = there_and_back(state)
    assert same(back, state)


def test_special_bits_survive():
    nan = np.array([0x7FC00001, 0xFFC12345, 0x80000000, 1, 0x7F800000], np.uint32).view(np.float32)
    state = {"a": torch.from_numpy(nan.copy()), "b": nan}
    assert same(there_and_back(state)[0], state)


def test_training_state_with_its_nesting():
    model = torch.nn.Sequential(
        torch.nn.Conv2d(1, 2, 3), torch.nn.BatchNorm2d(2), torch.nn.Linear(3, 3)
    )
    optimizer = torch.optim.Adam(model.parameters())
    model[2](torch.ones(3)).sum().backward()
    optimizer.step()
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)
    state = {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "scheduler": scheduler.state_dict(),
        "history": [{"loss": 0.1, "bad": math.nan}, {"loss": -0.0, "bad": -math.inf}],
        "rng": torch.get_rng_state(),
        "epoch": 3,
        "huge": [1 << 70, -(1 << 5000), 1 << 63],
        "tuple": (1, (2.5, None), [], {}),
        1: {(1, "x", None): b"\0\xff", 2.5: True, None: "\ud800\n", False: 1j},
    }
    back, _ = there_and_back(state)
    assert same(back, state)
    optimizer.load_state_dict(back["optimizer"])
    entry = to_entry(from_state(state))[0]
    keys = set(by_key(entry))
    assert {
        "model.0.weight",
        "model.1.num_batches_tracked",
        "optimizer.state.4.exp_avg",
        "rng",
    } <= keys


def test_tied_parameters_keep_both_names():
    weight = torch.nn.Parameter(torch.randn(3, 3))
    entry, _, _ = to_entry(from_state({"a": weight, "b": weight, "c": weight.t()}))
    tensors = by_key(entry)
    assert tensors["a"].id == tensors["b"].id != tensors["c"].id


def test_names_that_collide_or_hold_dots():
    one = {
        "a.b": torch.zeros(1),
        "a": {"b": torch.ones(1), "b#2": torch.full((1,), 2.0)},
        "": torch.ones(2),
    }
    one["tensor"] = torch.zeros(2)
    one["__metadata__"] = torch.zeros(4)
    back, data = there_and_back(one)
    assert same(back, one)
    assert sorted(load(data)) == [
        "__metadata__#2",
        "a.b",
        "a.b#2",
        "a.b#2#2",
        "tensor",
        "tensor#2",
    ]


def test_plain_state_has_the_root_of_its_safetensors_file():
    state = OrderedDict(b=torch.randn(3, 2), a=torch.zeros(2, dtype=torch.int64))
    entry = to_entry(from_state(state))[0]
    assert entry.format == "state"
    assert entry.state.root == round_trip(save(dict(state))).state.root


def test_contiguous_tensors_are_borrowed_and_others_copied():
    tensor = torch.zeros(4, 5)
    parsed = from_state(
        {"a": tensor, "b": np.zeros((4, 5)), "c": tensor.t(), "d": torch.zeros(1).conj()}
    )
    views = {t.key: parsed.borrow(t.content) for t in parsed.tensors}
    assert views["c"] is None and views["a"].nbytes == 80 and views["b"].nbytes == 160
    tensor[0, 1] = 1.0
    assert bytes(views["a"][4:8]) == struct.pack("<f", 1.0)
    at = next(t.content for t in parsed.tensors if t.key == "c")
    out = bytearray(12)
    parsed.read(at, 8, memoryview(out))
    assert bytes(out) == tensor.t().contiguous().numpy().tobytes()[8:20]


def test_values_come_back_over_the_given_buffer():
    entry, skeleton, blobs = to_entry(from_state({"a": torch.zeros(2), "b": np.zeros(2)}))
    buffers = [bytearray(b) for b in blobs]
    back = to_state(entry, skeleton, lambda i: buffers[i])
    back["a"][1] = 1.0
    back["b"][1] = 1.0
    assert buffers[1][4:] == struct.pack("<f", 1.0) and buffers[0][8:] == struct.pack("<d", 1.0)


def test_conjugate_and_negative_views_are_resolved():
    z = torch.tensor([1 + 2j, 3 - 4j])
    state = {"conj": z.conj(), "neg": z.conj().imag}
    back, _ = there_and_back(state)
    assert torch.equal(back["conj"], z.conj()) and torch.equal(back["neg"], z.conj().imag)


class Odd:
    pass


NESTED: dict = {}
NESTED["x"] = NESTED
REFUSED = {
    "meta": ({"m": {"w": torch.empty(2, device="meta")}}, r"m\.w"),
    "sparse": ({"w": torch.eye(2).to_sparse()}, "sparse"),
    "csr": ({"w": torch.eye(2).to_sparse_csr()}, "sparse"),
    "quantised": (
        {"w": torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8)},
        "quantised",
    ),
    "lazy": ({"w": torch.nn.LazyLinear(2).weight}, "without values"),
    "nested tensor": ({"w": torch.nested.nested_tensor([torch.ones(2)])}, "nested"),
    "object": ({"a": [1, Odd()]}, r"a\.1 is of type .*Odd"),
    "object array": ({"w": np.array([None])}, "dtype"),
    "big-endian": ({"w": np.zeros(2, ">f4")}, "dtype"),
    "masked": ({"w": np.ma.zeros(2)}, "MaskedArray"),
    "set": ({"w": {1}}, "set"),
    "key": ({"w": {Odd(): 1}}, "key of type Odd"),
    "cycle": (NESTED, "contains itself"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals_name_place_and_reason(name):
    state, reason = REFUSED[name]
    with pytest.raises(UnsupportedTensor, match=reason):
        from_state(state)


def test_dispatching_subclasses_are_refused():
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode() as mode:
        fake = mode.from_tensor(torch.ones(2))
    with pytest.raises(UnsupportedTensor, match="w is a"):
        from_state({"w": fake})


class Tagged(torch.Tensor):
    pass


def test_plain_subclasses_and_sizes_come_back_plain():
    back, _ = there_and_back({"w": torch.ones(2).as_subclass(Tagged), "size": torch.Size([2])})
    assert type(back["w"]) is torch.Tensor and back["size"] == (2,)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no such device")
def test_tensors_on_another_device():
    tensor = torch.randn(5, 7)
    back, _ = there_and_back({"a": tensor.cuda(), "t": tensor.cuda().t(), "s": tensor.cuda()[0, 0]})
    assert same(back, {"a": tensor, "t": tensor.t(), "s": tensor[0, 0]})


def test_only_mappings_are_states_and_names_are_checked():
    with pytest.raises(WrongUsage):
        from_state([torch.ones(1)])
    with pytest.raises(InvalidName):
        from_state({"a\n": torch.ones(1)})
    back, _ = there_and_back({"c": Counter({1: 2})})
    assert back == {"c": {1: 2}}


def test_single_values_by_name_and_library():
    state = {"a": torch.ones(2), "b": torch.ones(2, dtype=torch.bfloat16)}
    entry, _, blobs = to_entry(from_state(state))
    got = values(entry, lambda i: blobs[i], ["a", "b"], "numpy")
    assert isinstance(got["a"], np.ndarray) and got["b"].dtype == ml_dtypes.bfloat16
    assert set(values(entry, lambda i: blobs[i], None, "torch")) == {"a", "b"}
    with pytest.raises(UnknownPath):
        values(entry, lambda i: blobs[i], ["x"], "torch")


def test_a_file_that_only_looks_like_a_state_is_a_safetensors_file():
    for text in ("{}", "[", '{"version":1,"state":{"dict":{"b":{}}}}', '{"version":1,"state":[]}'):
        entry = round_trip(save({"a": torch.ones(2)}, {"mvc": text}))
        assert entry.format == "safetensors" and by_key(entry)["a"]


def test_other_formats_come_back_flat(tmp_path):
    data = save({"a": torch.ones(2)})
    entry, skeleton, blobs = to_entry(parse_file(MemorySource(data), "x"))
    assert same(to_state(entry, skeleton, lambda i: blobs[i]), {"a": torch.ones(2)})
    (tmp_path / "s").write_bytes(there_and_back({"a": torch.ones(2)})[1])
    with safe_open(tmp_path / "s", "np") as file:
        assert file.metadata()["format"] == "pt"


@pytest.mark.parametrize(
    "text",
    [
        '{"version":2,"state":1}',
        '{"version":1,"state":{"x":1}}',
        '{"version":1,"state":{"complex":[{},1]}}',
        '{"version":1,"state":{"bytes":"?"}}',
        '{"version":1,"state":{"dict":[[[],1]]}}',
        '{"version":1,"state":{"dict":{"b":{}}}}',
        '{"version":1,"state":{"float":"00"}}',
        '{"version":1,"state":{"dict":[[{"numpy":"a"},1]]}}',
        "[" * 100_000,
        '{"version":1,"state":' + "[" * 300 + "]" * 300 + "}",
        "",
    ],
)
def test_damaged_structures_are_refused(text):
    import json

    from mvc.model.hashing import raw_blob_id

    header = json.dumps({"__metadata__": {"mvc": text}}).encode()
    skeleton = len(header).to_bytes(8, "little") + header
    entry = FileEntry("m", "state", len(skeleton), (), raw_blob_id(skeleton))
    with pytest.raises(DamagedData):
        to_state(entry, skeleton, lambda i: b"")


def arrays():
    dtypes = st.sampled_from(["float32", "int64", "bool", "uint8", "float16"])
    shapes = st.lists(st.integers(0, 3), max_size=3)
    numpy = st.builds(
        lambda d, s: np.arange(np.prod(s, dtype=int)).astype(d).reshape(s), dtypes, shapes
    )
    return numpy | numpy.map(torch.from_numpy) | numpy.map(lambda a: torch.from_numpy(a).bfloat16())


PLAIN = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=5)
    | st.binary(max_size=5)
)
NESTING = st.recursive(
    PLAIN | st.complex_numbers() | arrays(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text("ab.#2", max_size=3), inner, max_size=3)
        | st.dictionaries(st.integers() | st.text(max_size=2) | st.booleans(), inner, max_size=3)
        | st.dictionaries(st.text("ab", max_size=2), inner, max_size=3).map(OrderedDict)
    ),
    max_leaves=12,
)


@settings(max_examples=150, deadline=None)
@given(st.dictionaries(st.text("ab.#", max_size=3) | st.integers(0, 3), NESTING, max_size=4))
def test_any_state_comes_back(state):
    try:
        from_state(state)
    except MvcError as error:
        assert isinstance(error, InvalidName)
        return
    back, _ = there_and_back(state)
    assert same(back, state)
