"""Files of torch's old format: the same bytes back, and the tensors of its zip files."""

import io
import pickle
from collections import OrderedDict

import pytest
import torch

from mvc.adapters.files.detect import parse_file, why_opaque
from mvc.adapters.files.safetensors import CODES
from mvc.adapters.python.state import nested_state, to_state
from tests.adapters.helpers import MemorySource, by_key, round_trip, to_entry
from tests.adapters.test_torch_zip import Bomb, Net, Tagged, assert_holds, saved


def old(value, protocol: int = 2) -> bytes:
    return saved(value, _use_new_zipfile_serialization=False, pickle_protocol=protocol)


def optimizer_state() -> dict:
    net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
    optimizer = torch.optim.AdamW(net.parameters())
    net(torch.randn(5, 3)).sum().backward()
    optimizer.step()
    return {"net": net.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 3}


def states() -> dict[str, object]:
    x = torch.arange(20.0).reshape(4, 5)
    tagged = torch.nn.Parameter(torch.ones(2))
    tagged.note = "x"
    matrix = torch.tensor([[0.0, 2.0], [3.0, 0.0]])
    whole = torch.quantize_per_tensor(torch.randn(2, 3), 0.1, 3, torch.quint8)
    return {
        "empty": {},
        "numbers": {"lr": 0.1, "n": [1, 2, (None, True, "é")]},
        "tied": {"a": x, "b": x, "p": torch.nn.Parameter(x)},
        "tiles": {"a": x[:2], "b": x[2:]},
        "views": {"a": x[1:, 2:], "whole": x, "t": x.t(), "expanded": x[0, 0].expand(5, 5)},
        "empty tensors": {"a": torch.empty(0), "b": torch.empty(3, 0), "c": torch.ones(1)[:0]},
        "a tensor": torch.ones(3),
        "optimizer": optimizer_state(),
        "dtypes": OrderedDict(b=torch.ones(3).bfloat16(), c=torch.ones(2) * 1j, d=x > 3),
        "module": {"net": Net(), "t": torch.ones(2).as_subclass(Tagged)},
        "subclass": {"p": tagged, "b": torch.nn.Buffer(torch.ones(2))},
        "sparse": {"coo": matrix.to_sparse().coalesce(), "csr": matrix.to_sparse_csr()},
        "quantised": {"whole": whole},
        "lazy": {"conj": (torch.ones(2) * 1j).conj(), "a": torch.ones(3)},
        "storages": {"u": torch.ones(3).untyped_storage(), "a": torch.ones(4)},
        "bomb": {"a": torch.ones(2), "bomb": Bomb()},
    }


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("protocol", [2, 4])
@pytest.mark.parametrize("name", states())
def test_what_the_zip_format_gives(name, protocol, tmp_path, monkeypatch):
    """The same tensors by name, bytes and layout, the same state, whatever it is."""
    monkeypatch.chdir(tmp_path)
    state = states()[name]
    new, skeleton, _ = to_entry(parse_file(MemorySource(saved(state)), "x"))
    data = old(state, protocol)
    entry = round_trip(data)
    assert entry.format == "torch" and entry.state.root == new.state.root
    assert [(t.key, t.spec, t.id, t.view) for t in entry.tensors] == [
        (t.key, t.spec, t.id, t.view) for t in new.tensors
    ]
    assert sorted(c.id for c in entry.contents) == sorted(c.id for c in new.contents)
    assert len(data) - entry.skeleton_size == sum(c.spec.nbytes for c in new.contents)
    _, old_skeleton, _ = to_entry(parse_file(MemorySource(data), "x"))
    leaf = lambda _, key: key  # noqa: E731
    assert str(nested_state(entry, old_skeleton, leaf)) == str(nested_state(new, skeleton, leaf))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", [*CODES.values()])
def test_every_dtype(name):
    tensor = torch.arange(128, dtype=torch.uint8).clamp(max=1 if name == "bool" else 127)
    tensor = tensor.view(getattr(torch, name)).reshape(2, -1)
    state = {"a": tensor, "empty": tensor[:0].clone(), "view": tensor.clone()[1:, 1:]}
    state["turned"] = tensor.clone().t()
    assert_holds(round_trip(old(state)), state)


def test_tensors_come_back_as_torch_loads_them():
    data = old({"a": torch.randn(3, 4).t(), "n": {"b": torch.randn(2).bfloat16(), "k": 2}})
    loaded = torch.load(io.BytesIO(data))
    entry, skeleton, blobs = to_entry(parse_file(MemorySource(data), "x"))
    back = to_state(entry, skeleton, lambda i: bytearray(blobs[i]))
    assert torch.equal(back["a"], loaded["a"]) and torch.equal(back["n"]["b"], loaded["n"]["b"])
    assert back["n"]["k"] == 2


def test_a_file_in_a_stream_of_others():
    """torch.save may be called again on an open file; what follows stays literal."""
    one, two = old({"a": torch.ones(3)}), old({"b": torch.zeros(4)})
    assert set(by_key(round_trip(one + two))) == {"a"}
    assert set(by_key(round_trip(one + bytes(3 << 20)))) == {"a"}


def parts(data: bytes) -> list[object]:
    """The five pickles of a file that holds no tensors, and what follows them."""
    file = io.BytesIO(data)
    return [*(pickle.load(file) for _ in range(5)), file.read()]


@pytest.mark.parametrize(
    "change",
    [
        (1, 1002),
        (2, {"protocol_version": 1001, "little_endian": False, "type_sizes": {}}),
        (2, []),
        (4, ["7"]),
        (4, None),
    ],
)
def test_another_version_or_byte_order_is_opaque(change):
    values = parts(old({"lr": 0.1}))
    whole = b"".join(pickle.dumps(v, 2) for v in values[:5])
    assert round_trip(whole).format == "torch"
    values[change[0]] = change[1]
    changed = b"".join(pickle.dumps(v, 2) for v in values[:5])
    assert round_trip(changed).format == "opaque"
    assert "format" in why_opaque(MemorySource(changed), "a.pt")[0] or change[0] == 4


@pytest.mark.parametrize("at", [-1, -12, -13, -20])
def test_what_does_not_fit_is_opaque(at):
    data = bytearray(old({"a": torch.ones(3)}))
    assert round_trip(bytes(data)).format == "torch"
    assert round_trip(bytes(data[:at])).format == "opaque"
    data[-20] ^= 1  # the number of elements before the storage
    assert round_trip(bytes(data)).format == "opaque"


def test_a_long_pickle_is_read_to_its_end():
    state = {"a": torch.ones(3), "text": ["x" * 1000 + str(i) for i in range(3000)]}
    assert_holds(round_trip(old(state)), {"a": torch.ones(3)})


def test_its_pickles_have_one_limit_of_steps():
    head = old({})[:15]
    for steps, why in (1_200_000, "an unsupported version"), (1_300_000, "steps"):
        data = head + 4 * (b"\x80\x02" + (steps - 3) * b"N" + b"N.")
        assert why in why_opaque(MemorySource(data), "a.pt")[0]


def test_other_pickles_are_opaque():
    data = pickle.dumps({"a": 1})
    assert round_trip(data).format == "opaque"
    assert "torch.save did not write" in why_opaque(MemorySource(data), "a.pt")[0]
