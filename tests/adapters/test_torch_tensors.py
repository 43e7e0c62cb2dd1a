"""Tensors in pickle nodes: names in odd containers, and descriptions that cannot be."""

import pytest

from mvc.adapters.files.pickle_nodes import Global, Persistent, PickleCall, PickledDict
from mvc.adapters.files.torch_files import find_tensors
from mvc.errors import BadModelFile
from mvc.model.tensor import TensorSpec
from mvc.structure import Names, part_name

FLOATS = Global("torch", "FloatStorage")


def tensor(size=(2, 3), strides=(3, 1), offset=0, storage=None, name="_rebuild_tensor_v2", more=()):
    storage = Persistent(("storage", FLOATS, "0", "cpu", 6)) if storage is None else storage
    return PickleCall(Global("torch._utils", name), (storage, offset, size, strides, *more))


def keys(node) -> list[str]:
    return [t.key for t in find_tensors(node)]


def test_a_tensor_is_described_in_full():
    size = PickleCall(Global("torch", "Size"), ((2, 3),))
    (found,) = find_tensors(PickledDict([("w", tensor(size))]))
    assert found.spec == TensorSpec("float32", (2, 3))
    assert (found.key, found.storage, found.offset, found.strides) == ("w", "0", 0, (3, 1))
    assert found.storage_bytes == 24


def test_names_in_containers_of_every_kind():
    ordered = PickleCall(
        Global("collections", "OrderedDict"), ([["a", tensor()], ("b", tensor())],)
    )
    slots = PickleCall(Global("m", "Slots"), (), (None, PickledDict([("s", tensor())])))
    filled = PickleCall(Global("m", "Odd"), ("x", tensor()), None, [tensor()], [(3, tensor())])
    root = PickledDict([("o", ordered), ("slots", slots), ("f", filled), (("t", 1), tensor())])
    assert keys(root) == ["o.a", "o.b", "slots.s", "f.1", "f.0", "f.3", "t,1"]
    assert keys(PickleCall(Global("m", "Foreign"), None, PickledDict([("x", [tensor()])]))) == [
        "x.0"
    ]
    wrapped = PickleCall(Global("torch._utils", "_rebuild_parameter"), (tensor(), True, None))
    assert keys({}) == [] and keys([wrapped, wrapped]) == ["0", "1"]


def test_shared_and_cyclic_containers():
    shared = PickledDict([("w", tensor())])
    assert keys(PickledDict([("model", shared), ("ema", shared)])) == ["model.w", "ema.w"]
    cycle = [tensor()]
    cycle.append(cycle)
    assert keys(cycle) == ["0"]


@pytest.mark.parametrize(
    "node",
    [
        tensor(storage=Persistent("0")),
        tensor(storage=Persistent(("storage", FLOATS, 0, "cpu", 6))),
        tensor(storage=Persistent(("storage", FLOATS, "0", "cpu", -1))),
        tensor(storage=Persistent(("module", FLOATS, "0", "cpu", 1))),
        tensor(size=(2, -3)),
        tensor(size=(2,)),
        tensor(size=None),
        tensor(size=(True, 1)),
        tensor(strides=(1 << 62, 1)),
        tensor(offset=-1),
        tensor(offset="0"),
        tensor(size=PickleCall(Global("torch", "Size"), 5)),
        PickleCall(Global("torch._utils", "_rebuild_tensor_v2"), ()),
        PickleCall(Global("torch._utils", "_rebuild_tensor_v2"), 7),
    ],
)
def test_impossible_tensors_are_refused(node):
    with pytest.raises(BadModelFile):
        find_tensors([node])


def test_what_is_no_plain_tensor_is_left_alone():
    unknown = Persistent(("storage", Global("evil", "FloatStorage"), "0", "cpu", 6))
    assert keys([tensor(storage=unknown), tensor(storage=5)]) == []
    assert keys(tensor(name="_rebuild_tensor_v3", more=(False, None))) == []
    assert keys(PickleCall(Global("evil", "_rebuild_tensor_v2"), tensor().args)) == []
    assert keys(PickleCall(Global("torch._utils", "_rebuild_sparse_tensor"), (None, None))) == []
    assert keys(tensor(more=(False, None, PickledDict([("neg", True)])))) == []
    assert keys(tensor(more=(False, None, PickledDict([("neg", False)])))) == ["tensor"]


def test_names_of_parts():
    parts = ["a.b", 7, -1, True, None, 2.5, b"x", (1, "y", (2,)), object(), 1 << 300]
    wanted = ["a.b", "7", "-1", "True", "None", "2.5", "x", "1,y,()", "object", hex(1 << 300)]
    assert [part_name(p) for p in parts] == wanted
    names = Names()
    given = ["a", "a", "a#2", "a", "", None]
    assert [names.unique(n) for n in given] == ["a", "a#2", "a#2#2", "a#3", "tensor", "tensor#2"]
