"""torch files: the same bytes back, the tensors torch.load would give, nothing executed."""

import io
import os
import struct
import zipfile
from collections import OrderedDict
from pathlib import Path

import pytest
import torch
from safetensors.torch import save as save_safetensors

from mvc.adapters.files.detect import parse_file
from mvc.adapters.files.safetensors import CODES
from mvc.adapters.python.state import from_state, to_state
from mvc.model.hashing import blob_id
from mvc.model.tensor import TensorSpec
from tests.adapters.helpers import MemorySource, by_key, rebuild, round_trip, to_entry

DATA = Path(__file__).resolve().parents[2].parent / "shared" / "data" / "chgnet"


def saved(value, **options) -> bytes:
    buffer = io.BytesIO()
    torch.save(value, buffer, **options)
    return buffer.getvalue()


def raw(tensor) -> bytes:
    tensor = tensor.detach().resolve_conj().contiguous().reshape(-1)
    return tensor.view(torch.uint8).numpy().tobytes() if tensor.numel() else b""


def assert_holds(entry, tensors: dict) -> None:
    """The entry's tensors are exactly these, by name, dtype, shape and bits."""
    assert entry.format == "torch"
    assert set(by_key(entry)) == set(tensors)
    for key, tensor in tensors.items():
        spec = TensorSpec(str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape))
        assert by_key(entry)[key].spec == spec
        assert by_key(entry)[key].id == blob_id(spec, raw(tensor)), key


@pytest.mark.parametrize("name", list(CODES.values()))
def test_every_dtype(name):
    tensor = torch.arange(128, dtype=torch.uint8).clamp(max=1 if name == "bool" else 127)
    tensor = tensor.view(getattr(torch, name)).reshape(2, -1)
    state = {"a": tensor, "empty": tensor[:0].clone(), "view": tensor.clone()[1:, 1:]}
    state["turned"] = tensor.clone().t()
    assert_holds(round_trip(saved(state)), state)


def test_tied_weights_are_one_content():
    weight = torch.randn(3, 4)
    entry = round_trip(saved({"a": weight, "b": weight, "p": torch.nn.Parameter(weight)}))
    assert_holds(entry, {"a": weight, "b": weight, "p": weight})
    assert len(entry.contents) == 1 and entry.contents[0].spec == TensorSpec("float32", (3, 4))
    assert entry.checks and all(t.view is None for t in entry.tensors)


def test_tensors_that_tile_a_storage_are_contents_of_their_own():
    flat = torch.arange(24.0)
    state = {"a": flat[:6].view(2, 3), "b": flat[6:], "a2": flat[:6].view(2, 3)}
    entry = round_trip(saved(state))
    assert_holds(entry, state)
    assert [c.spec.shape for c in entry.contents] == [(2, 3), (18,)]


@pytest.mark.parametrize(
    "make",
    [
        lambda x: {"a": x[1:, 2:], "whole": x},
        lambda x: {"a": x.t()},
        lambda x: {"a": x[0], "gap": x[2]},
        lambda x: {"a": x.view(-1), "b": x},
        lambda x: {"a": x[0, 0].expand(5, 5)},
        lambda x: {"a": x.as_strided((3, 3), (1, 1))},
        lambda x: {"a": x[:, ::2], "z": x[0, 0]},
        lambda x: {"a": x[:, 1]},
    ],
)
def test_views_of_one_storage(make):
    state = make(torch.arange(20.0).reshape(4, 5))
    entry = round_trip(saved(state))
    assert_holds(entry, state)
    assert all(c.spec.dtype == "raw" for c in entry.contents)


def test_nested_checkpoints_and_their_names():
    model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3))
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(4, 2)).sum().backward()
    optimizer.step()
    state = {
        "epoch": 3,
        "state_dict": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "history": [{"loss": 0.5, "confusion": torch.eye(2)}, [torch.zeros(1)] * 2],
        "tuple": (torch.ones(1), {-1: torch.ones(2), None: torch.ones(3)}),
        "a": {"b": torch.zeros(2)},
        "a.b": torch.zeros(3),
    }
    entry = round_trip(saved(state))
    assert entry.state.root == to_entry(from_state(state))[0].state.root
    keys = set(by_key(entry))
    assert {"state_dict.0.weight", "optimizer.state.0.exp_avg", "history.0.confusion"} <= keys
    assert {"history.1.1", "tuple.1.-1", "tuple.1.None", "a.b", "a.b#2"} <= keys


def test_the_same_state_has_one_root_in_every_format():
    state = OrderedDict(
        b=torch.randn(3, 2), a=torch.zeros(2, dtype=torch.int64), s=torch.tensor(1.0)
    )
    roots = {
        round_trip(saved(state)).state.root,
        round_trip(save_safetensors(dict(state))).state.root,
        to_entry(from_state(state))[0].state.root,
    }
    assert len(roots) == 1


def test_a_tensor_by_itself():
    assert_holds(round_trip(saved(torch.ones(3))), {"tensor": torch.ones(3)})


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(2, 2)
        self.register_buffer("seen", torch.zeros(1))


class Tagged(torch.Tensor):
    pass


def test_whole_modules_subclasses_and_buffers_stay_inert():
    net = Net()
    entry = round_trip(saved({"net": net, "t": torch.ones(2).as_subclass(Tagged)}))
    assert "net._modules.layer._parameters.weight" in by_key(entry)
    assert {"net._buffers.seen", "t"} <= set(by_key(entry))
    tagged = torch.nn.Parameter(torch.ones(2))
    tagged.note = "x"
    assert_holds(round_trip(saved({"p": tagged})), {"p": tagged})
    buffer = torch.nn.Buffer(torch.ones(2))
    assert_holds(round_trip(saved({"b": buffer})), {"b": buffer.data})


def test_sparse_and_quantised_tensors():
    matrix = torch.tensor([[0.0, 2.0], [3.0, 0.0]])
    coo, csr = matrix.to_sparse().coalesce(), matrix.to_sparse_csr()
    assert_holds(
        round_trip(saved({"coo": coo, "csr": csr})),
        {
            "coo.indices": coo.indices(),
            "coo.values": coo.values(),
            "csr.crow_indices": csr.crow_indices(),
            "csr.col_indices": csr.col_indices(),
            "csr.values": csr.values(),
        },
    )
    scales, zeros = torch.tensor([0.1, 0.2]).double(), torch.zeros(2, dtype=torch.int64)
    whole = torch.quantize_per_tensor(torch.randn(2, 3), 0.1, 3, torch.quint8)
    rows = torch.quantize_per_channel(torch.randn(2, 3), scales, zeros, 0, torch.qint8)
    entry = round_trip(saved({"whole": whole, "rows": rows}))
    tensors = by_key(entry)
    assert set(tensors) == {"whole", "rows", "rows.quantizer.1", "rows.quantizer.2"}
    spec = TensorSpec("quint8", (2, 3))
    assert tensors["whole"].id == blob_id(spec, whole.int_repr().numpy().tobytes())
    packed = torch.quantize_per_tensor(torch.randn(4), 0.1, 3, torch.quint4x2)
    entry = round_trip(saved({"a": packed}))
    assert entry.format == "torch" and entry.contents and not entry.tensors


def test_conjugate_views_are_not_mistaken_for_their_storage():
    entry = round_trip(saved({"z": torch.tensor([1 + 2j]).conj(), "a": torch.ones(1)}))
    assert set(by_key(entry)) == {"a"} and len(entry.contents) == 2


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_pickle_protocols(protocol):
    state = {
        "a": torch.ones(3),
        "s": {1, "x"},
        "f": frozenset([2]),
        "b": b"x" * 300,
        "big": 1 << 2000,
    }
    state |= {"bytearray": bytearray(9), "text": "é" * 300, "c": 1j}
    entry = round_trip(saved(state, pickle_protocol=protocol))
    assert_holds(entry, {"a": torch.ones(3)})


def test_script_files():
    buffer = io.BytesIO()
    torch.jit.save(torch.jit.script(torch.nn.Linear(2, 2)), buffer)
    entry = round_trip(buffer.getvalue())
    assert entry.format == "torch" and {"weight", "bias"} <= set(by_key(entry))


def test_a_new_step_changes_only_contents_and_few_skeleton_bytes():
    first, second = (saved({"w": torch.full((5000,), x)}) for x in (1.0, 2.0))
    one, two = (parse_file(MemorySource(d), "x").skeleton() for d in (first, second))
    assert len(one) == len(two) < 2000
    # What is left is torch's own hash of the content, and the checksums of that.
    assert sum(a != b for a, b in zip(one, two, strict=True)) <= 60


class Bomb:
    def __reduce__(self):
        return os.system, ("touch executed",)


def test_a_pickle_bomb_stays_inert(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    entry = round_trip(saved({"a": torch.ones(2), "bomb": Bomb()}))
    assert_holds(entry, {"a": torch.ones(2)})
    assert not (tmp_path / "executed").exists()


def repacked(data: bytes, change, compress=zipfile.ZIP_STORED) -> bytes:
    """The archive written again by zipfile with ``change(name, bytes)`` applied to members."""
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(out, "w", compress) as new:
        for item in old.infolist():
            changed = change(item.filename, old.read(item))
            if changed is not None:
                new.writestr(item.filename, changed)
    return out.getvalue()


def test_archives_by_other_writers():
    state = {"a": torch.ones(3)}
    data = saved(state)
    assert_holds(round_trip(repacked(data, lambda n, b: b)), state)
    assert round_trip(repacked(data, lambda n, b: b, zipfile.ZIP_DEFLATED)).format == "opaque"
    old = repacked(data, lambda n, b: None if "byteorder" in n or "/." in n else b)
    assert_holds(round_trip(old), state)
    commented = bytearray(old)
    commented[-2:] = struct.pack("<H", 4)
    assert_holds(round_trip(bytes(commented) + b"PK\x05\x06"), state)
    big = repacked(data, lambda n, b: b"big" if "byteorder" in n else b)
    entry = round_trip(big)
    assert entry.format == "torch" and not entry.tensors and entry.contents
    large = repacked(data, lambda n, b: bytes(3 << 20) if n.endswith("version") else b)
    assert to_entry(parse_file(MemorySource(large), "x"))[0].skeleton_size < 10_000


@pytest.mark.parametrize(
    "change",
    [
        lambda n, b: b[:-1] if "data/0" in n else b,
        lambda n, b: b + b"x" if "data/0" in n else b,
        lambda n, b: None if "data/0" in n else b,
        lambda n, b: None if "data.pkl" in n else b,
        lambda n, b: b[:-5] if "data.pkl" in n else b,
        lambda n, b: b.replace(b"K\x03\x85", b"K\x04\x85") if "data.pkl" in n else b,
        lambda n, b: b.replace(b"K\x03\x85", b"J\xff\xff\xff\xff\x85") if "data.pkl" in n else b,
        lambda n, b: (
            b.replace(b"\x01\x00\x00\x00a", b"\x01\x00\x00\x00\n") if "data.pkl" in n else b
        ),
    ],
)
def test_what_torch_would_not_write_is_opaque(change):
    data = saved({"a": torch.ones(3)})
    assert repacked(data, change) != repacked(data, lambda n, b: b)
    assert round_trip(repacked(data, change)).format == "opaque"


def test_wrong_checksums_stay_as_they_are():
    data = bytearray(saved({"a": torch.ones(3)}))
    at = data.index(struct.pack("<3f", 1, 1, 1))
    data[at] ^= 1
    entry = round_trip(bytes(data))
    assert entry.format == "torch" and not entry.checks


def test_tensors_come_back_from_a_file():
    state = {"a": torch.ones(2), "t": torch.arange(6.0).reshape(2, 3).t(), "e": torch.empty(0, 2)}
    entry, skeleton, blobs = to_entry(parse_file(MemorySource(saved(state)), "x"))
    back = to_state(entry, skeleton, lambda i: bytearray(blobs[i]))
    assert set(back) == set(state) and all(torch.equal(back[k], state[k]) for k in state)


def test_another_byte_order_has_no_tensors():
    data = saved({"a": torch.ones(3), "epoch": 3})
    swapped = repacked(data, lambda n, b: b"big" if "byteorder" in n else b)
    assert swapped != data
    entry, skeleton, blobs = to_entry(parse_file(MemorySource(swapped), "x"))
    assert to_state(entry, skeleton, lambda i: bytearray(blobs[i])) == {}


@pytest.mark.skipif(not DATA.is_dir(), reason="the real models are not here")
@pytest.mark.parametrize("name", ["chgnet_0.3.0.pth.tar", "chgnet_r2scan.pth.tar"])
def test_real_checkpoints(name):
    data = (DATA / name).read_bytes()
    entry, skeleton, blobs = to_entry(parse_file(MemorySource(data), name))
    assert rebuild(entry, skeleton, blobs, 1 << 16) == data
    assert entry.format == "torch" and len(entry.tensors) > 100
    loaded = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    assert entry.state.root == to_entry(from_state(loaded))[0].state.root
