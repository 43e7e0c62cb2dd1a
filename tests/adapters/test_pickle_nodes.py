"""The opcode reader against pickle itself, on plain values, and on hostile streams."""

import contextlib
import pickle
import pickletools
import time
from collections import OrderedDict, defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mvc.adapters.files.pickle_nodes import Global, Persistent, PickleCall, PickledDict, read_pickle
from mvc.adapters.files.torch_files import find_tensors
from mvc.errors import BadModelFile

PLAIN = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(-(1 << 3000), 1 << 3000)
    | st.floats(allow_nan=False)
    | st.text(max_size=300)
    | st.binary(max_size=300)
)
VALUES = st.recursive(
    PLAIN,
    lambda inner: (
        st.lists(inner, max_size=5)
        | st.lists(inner, max_size=5).map(tuple)
        | st.dictionaries(st.text(max_size=3), inner, max_size=5)
    ),
    max_leaves=20,
)


def as_values(node):
    if isinstance(node, PickledDict):
        return {k: as_values(v) for k, v in node.pairs}
    if isinstance(node, (list, tuple)):
        return type(node)(map(as_values, node))
    if isinstance(node, PickleCall) and node.func.name == "encode":
        return node.args[0].encode(node.args[1])
    if isinstance(node, PickleCall) and node.func.name == "bytes":
        return b""
    return node


@given(VALUES, st.sampled_from([2, 3, 4, 5]))
def test_plain_values_are_what_pickle_reads(value, protocol):
    data = pickle.dumps(value, protocol)
    assert as_values(read_pickle(data)) == value
    assert as_values(read_pickle(pickletools.optimize(data))) == value


@given(
    st.recursive(
        st.integers(-(1 << 70), 1 << 70)
        | st.booleans()
        | st.floats(allow_nan=False)
        | st.text("abé€😀 ", max_size=5),
        lambda x: st.lists(x, max_size=3),
        max_leaves=9,
    ),
    st.sampled_from([0, 1]),
)
def test_text_protocols(value, protocol):
    assert read_pickle(pickle.dumps(value, protocol)) == value


class Point:
    def __init__(self):
        self.x = [1]


def test_objects_are_their_calls():
    for protocol in (2, 4):
        node = read_pickle(pickle.dumps(Point(), protocol))
        assert isinstance(node, PickleCall) and node.func.name == "Point"
        assert node.state.pairs == [("x", [1])]
    node = read_pickle(pickle.dumps(OrderedDict(a=1), 2))
    assert node.func.module == "collections" and node.pairs == [("a", 1)]
    node = read_pickle(pickle.dumps(defaultdict(list, a=1), 2))
    assert isinstance(node.args[0], Global) and node.pairs == [("a", 1)]
    for kind in (set, frozenset):  # no lists: what holds one is no plain data
        node = read_pickle(pickle.dumps(kind([1, 2]), 4))
        assert (node.func.module, node.func.name) == ("builtins", kind.__name__)
        assert sorted(node.items) == [1, 2]
    node = read_pickle(pickle.dumps(bytearray(b"ab"), 5))
    assert (node.func.name, node.args) == ("bytearray", (b"ab",))


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (b"cos\nsystem\n.", Global),
        (b"(S'echo'\nios\nsystem\n.", PickleCall),
        (b"(cos\nsystem\nS'echo'\no.", PickleCall),
        (b"cos\nsystem\n(S'echo'\ntR.", PickleCall),
        (b"\x8c\x02os\x8c\x06system\x93)\x81.", PickleCall),
        (b"\x8c\x02os\x8c\x06system\x93)}\x92.", PickleCall),
        (b"\x82\x01.", Global),
        (b"\x83\x01\x00.", Global),
        (b"\x84\x01\x00\x00\x00.", Global),
        (b"Pstorage\n.", Persistent),
        (b"]\x94h\x00Q.", Persistent),
        (b"(1N0N.", type(None)),
        (b"N(0.", type(None)),
        (b"]p3\n0g3\n.", list),
        (b"](I1\nI01\ne2a.", list),
        (b"(I1\nI2\nd.", PickledDict),
    ],
)
def test_single_opcodes_stay_inert(data, kind):
    assert isinstance(read_pickle(data), kind)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b".",
        b"N",
        b"a.",
        b"t.",
        b"(a.",
        b"Na.",
        b"NNs.",
        b"(NNN",
        b"}(Nu.",
        b"h\x00.",
        b"\xff.",
        b"X\xff\xff\xff\xffabc.",
        b"T\xff\xff\xff\xffabc.",
        b"X\x01\x00\x00\x00\xff.",
        b"Ixyz\n.",
        b"I" + b"9" * 5000 + b"\n.",
        b"Sabc\n.",
        b"Fabc\n.",
        b"\x97.",
        b"\x98.",
        b"NN\x93.",
        b"(d0.",
        b"\x8d" + b"\xff" * 8 + b".",
        b"I1",
        b"](NNNs.",
        b"o.",
        b"(o.",
    ],
)
def test_malformed_streams_are_refused(data):
    with pytest.raises(BadModelFile):
        read_pickle(data)


@given(st.binary(max_size=60))
def test_any_bytes_are_read_or_refused(data):
    with contextlib.suppress(BadModelFile):
        find_tensors(read_pickle(data))


def test_hostile_shapes_end_soon():
    began = time.monotonic()
    deep = read_pickle(b"]" * 300_000 + b"a" * 299_999 + b".")
    with pytest.raises(BadModelFile, match="deeper"):
        find_tensors(deep)
    doubled = read_pickle(b"]" + b"2\x86" * 64 + b".")
    with pytest.raises(BadModelFile, match="nested values"):
        find_tensors(doubled)
    assert find_tensors(read_pickle(b"]2a.")) == []
    with pytest.raises(BadModelFile, match="steps"):
        read_pickle(b"N0" * 2_600_000 + b".")
    assert time.monotonic() - began < 60
