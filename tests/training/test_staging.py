"""Copies share nothing with what was copied, use their memory again, and name what they refuse."""

from __future__ import annotations

from collections import Counter, OrderedDict, namedtuple
from typing import Any

import numpy as np
import pytest
import torch

from mvc.errors import UnsupportedTensor
from mvc.training.staging import Slot, measure
from tests.training.runs import bits_of


def stage(live: dict[str, Any]) -> dict[str, Any]:
    slot = Slot()
    assert measure(live) >= 0
    slot.fill(live)
    slot.ready()
    return slot.state


def test_tensors_numbers_and_containers_are_copied() -> None:
    live = {
        "t": torch.arange(4.0),
        "a": np.arange(3),
        "n": {"lr": [0.1, 0.2], "betas": (0.9, torch.ones(2)), "size": torch.Size([2, 3])},
        "o": OrderedDict(
            step=torch.tensor(3), plain=None, text="x", raw=b"y", c=1j, f=np.float32(2)
        ),
    }
    staged = stage(live)
    live["t"].add_(1)
    live["a"] += 1
    live["n"]["lr"][0] = 5.0
    live["n"]["betas"][1].zero_()
    live["o"]["step"].fill_(4)
    assert staged["t"].tolist() == [0, 1, 2, 3]
    assert staged["a"].tolist() == [0, 1, 2]
    assert staged["n"]["lr"] == [0.1, 0.2]
    assert staged["n"]["betas"][1].tolist() == [1, 1]
    assert staged["n"]["size"] == (2, 3)
    assert type(staged["o"]) is OrderedDict
    assert staged["o"]["step"].item() == 3
    assert [staged["o"][k] for k in ("plain", "text", "raw", "c", "f")] == [None, "x", b"y", 1j, 2]


def test_buffers_are_used_again_until_the_tensor_is_another() -> None:
    slot = Slot()
    weight = torch.randn(8, 8)
    slot.fill({"w": weight, "b": torch.zeros(3)})
    first = slot.state["w"].data_ptr()
    for _ in range(3):
        weight.add_(1)
        slot.fill({"w": weight})
        assert slot.state["w"].data_ptr() == first
        assert bits_of(slot.state["w"]) == bits_of(weight)
    assert slot.nbytes == 8 * 8 * 4  # the buffer of b is gone
    slot.fill({"w": weight.double()})
    assert slot.state["w"].dtype == torch.float64
    assert slot.nbytes == 8 * 8 * 8


def test_shared_memory_is_copied_once() -> None:
    weight = torch.randn(16, 16)
    live = {"a": weight, "b": weight.detach(), "t": weight.t()}
    assert measure(live) == 2 * 16 * 16 * 4  # the transposed one lies otherwise
    staged = stage(live)
    assert staged["a"] is staged["b"]
    assert torch.equal(staged["t"], weight.t())


def test_names_that_look_alike_do_not_share_a_buffer() -> None:
    staged = stage({"a.b": torch.ones(2), "a": {"b": torch.zeros(2)}})
    assert staged["a.b"].tolist() == [1, 1]
    assert staged["a"]["b"].tolist() == [0, 0]


@pytest.mark.parametrize(
    "tensor",
    [
        torch.tensor([1.0, -0.0, float("nan"), 1e-45]),
        torch.randn(4).to(torch.bfloat16),
        torch.randn(4).to(torch.float16),
        torch.randn(4).to(torch.float8_e4m3fn),
        torch.randn(4).to(torch.float8_e5m2),
        torch.tensor(5),
        torch.empty(0, 3),
        torch.randn(3, 4).t(),
        torch.randn(2, dtype=torch.complex64).conj(),
        torch.randn(3, requires_grad=True),
        torch.randn(8)[::2],
        torch.tensor([True, False]),
    ],
    ids=lambda tensor: f"{tensor.dtype} {tuple(tensor.shape)}",
)
def test_bits_are_those_of_the_tensor(tensor: torch.Tensor) -> None:
    staged = stage({"x": tensor})["x"]
    assert staged.dtype == tensor.dtype
    assert not staged.requires_grad
    assert bits_of(staged) == bits_of(tensor.detach().resolve_conj())


def sharded() -> torch.Tensor:
    from torch.distributed.tensor import DTensor

    made = torch.Tensor._make_wrapper_subclass(DTensor, (2, 2))
    assert isinstance(made, DTensor)
    return made


@pytest.mark.filterwarnings("ignore:torch.quantize:UserWarning")
@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: torch.empty(2, device="meta"), r"layer\.w is a tensor without data \(device meta"),
        (sharded, r"layer\.w is a DTensor"),
        (lambda: torch.eye(2).to_sparse(), r"layer\.w is a sparse tensor"),
        (torch.nn.parameter.UninitializedParameter, r"layer\.w is a parameter without values"),
        (lambda: torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8), "quantised"),
        (object, r"layer\.w is of type builtins\.object"),
        (lambda: namedtuple("Pair", "a b")(1, 2), r"layer\.w is of type .*Pair"),
        (lambda: {1, 2}, r"layer\.w is of type builtins\.set"),
    ],
)
def test_what_cannot_be_kept_is_named(make: Any, reason: str) -> None:
    with pytest.raises(UnsupportedTensor, match=reason):
        measure({"layer": {"w": make()}})


def test_a_state_inside_itself_ends() -> None:
    loop: dict[str, Any] = {}
    loop["x"] = loop
    with pytest.raises(UnsupportedTensor, match="nested deeper"):
        measure(loop)


def test_a_counter_becomes_a_dictionary() -> None:
    assert stage({"milestones": Counter({3: 1})}) == {"milestones": {3: 1}}
