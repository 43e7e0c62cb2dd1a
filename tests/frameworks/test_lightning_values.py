"""Values of Lightning's checkpoints: exactly back, by a closed table of kinds."""

from __future__ import annotations

import argparse
import datetime
import json
from collections import Counter, OrderedDict, defaultdict
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.frameworks.need import need

need("lightning", "lightning.pytorch")

from lightning.fabric.utilities.data import AttributeDict  # noqa: E402

from mvc.adapters.python.state import from_state  # noqa: E402
from mvc.errors import DamagedData, UnsupportedTensor  # noqa: E402
from mvc.frameworks.lightning.values import original, plain  # noqa: E402
from tests.frameworks.lightning_runs import same  # noqa: E402

VALUES = {
    "attributes": AttributeDict(lr=0.1, inner=AttributeDict(path=Path("/a/b"))),
    "counter": Counter({3: 2, 8: 1}),
    "date": datetime.date(2026, 11, 21),
    "datetime": datetime.datetime(2026, 11, 21, 1, 2, 3, 4, tzinfo=datetime.UTC),
    "default": defaultdict(list, {"a": [1, Path("x")]}),
    "default-none": defaultdict(None, {1: 2}),
    "device": torch.device("cuda:1"),
    "dtype": torch.bfloat16,
    "frozenset": frozenset({"a", "b"}),
    "namespace": argparse.Namespace(a=1, b={"c": Counter("aab")}),
    "nested": [{"a": ({1, 2}, (3, OrderedDict(z=1, y=Path("q"))))}],
    "none": None,
    "path": Path("/some/where"),
    "pure-path": PurePosixPath("some/where"),
    "set": {1, "two", (3, 4)},
    "size": torch.Size([2, 3]),
    "timedelta": datetime.timedelta(days=-1, seconds=5, microseconds=7),
    "keys": {1: "a", (2, "b"): {True: 0.5}, b"c": {"d"}, None: -0.0},
}


@pytest.mark.parametrize("name", VALUES)
def test_back_with_its_type(name: str) -> None:
    value = VALUES[name]
    kept = plain({"here": value}, "checkpoint")
    from_state(kept)  # a state can hold it
    found = original(kept)["here"]
    assert same(found, value)
    if isinstance(value, defaultdict):
        assert found.default_factory is value.default_factory


def test_tensors_are_the_same_objects() -> None:
    tensor, array = torch.arange(3), np.arange(4)
    made = original(plain({"a": [tensor, (array, np.float32(1.5))]}, "checkpoint"))
    assert made["a"][0] is tensor
    assert made["a"][1][0] is array
    parameter = torch.nn.Parameter(torch.ones(2), requires_grad=False)
    found = original(plain([parameter], "checkpoint"))[0]
    assert type(found) is torch.nn.Parameter
    assert not found.requires_grad
    assert torch.equal(found, parameter)


def test_what_torch_notes_about_modules_is_kept() -> None:
    state = torch.nn.BatchNorm1d(2).state_dict()
    found = original(plain({"state": state}, "checkpoint"))["state"]
    assert type(found) is OrderedDict
    del found["num_batches_tracked"]
    with pytest.raises(RuntimeError, match="num_batches_tracked"):  # only old states lack it
        torch.nn.BatchNorm1d(2).load_state_dict(found)


class Point(NamedTuple):
    x: int


class MyDict(dict[str, int]):
    pass


@pytest.mark.parametrize(
    "value",
    [
        object(), Point(1), MyDict(a=1), torch.nn.Linear(1, 1), len, int,
        defaultdict(lambda: 0), range(3),
    ],
    ids=["object", "tuple", "dict", "module", "function", "class", "factory", "range"],
)  # fmt: skip
def test_other_types_are_refused_by_their_place(value: Any) -> None:
    with pytest.raises(UnsupportedTensor, match=r"hyper\.list\.1 is of type"):
        plain({"list": [0, value]}, "hyper")


def test_a_value_that_holds_itself_is_refused() -> None:
    ring: list[Any] = []
    ring.append(ring)
    with pytest.raises(UnsupportedTensor, match="nested too deeply"):
        plain({"ring": ring}, "checkpoint")


@pytest.mark.parametrize(
    "kept",
    [
        {},
        {"value": 1, "kinds": [[[], "no-such-kind"]]},
        {"value": "save", "kinds": [[[], "dtype"]]},
        {"value": 3, "kinds": [[[], "namespace"]]}, {"value": [], "kinds": 5},
        {"value": {"factory": "eval", "items": {}}, "kinds": [[[], "default"]]},
    ],
    ids=["empty", "kind", "dtype", "namespace", "kinds", "factory"],
)  # fmt: skip
def test_malformed(kept: Any) -> None:
    with pytest.raises(DamagedData):
        original(kept)


scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
keys = st.text() | st.integers()
values = st.recursive(
    scalars | st.sets(st.text()) | st.dates() | st.timedeltas(),
    lambda inner: (
        st.lists(inner)
        | st.lists(inner).map(tuple)
        | st.dictionaries(keys, inner)
        | st.dictionaries(keys, inner).map(OrderedDict)
        | st.dictionaries(st.text(), inner).map(AttributeDict)
        | st.dictionaries(keys, st.integers()).map(Counter)
    ),
    max_leaves=12,
)


@given(values)
def test_any_nesting(value: Any) -> None:
    kept = plain(value, "checkpoint")
    assert same(original(kept), value)
    if isinstance(kept["value"], dict):
        json.dumps(kept["kinds"])  # nothing but places and names
