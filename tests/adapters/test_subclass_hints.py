"""A tensor subclass that cannot be kept exactly: the hint names a way that it has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import mvc
from mvc.errors import UnsupportedTensor

torch = pytest.importorskip("torch")


class Quantised(torch.Tensor):
    """As weights of torchao: integers and a scale behind the interface of a tensor."""

    @staticmethod
    def __new__(cls, values: Any, scale: float) -> Any:
        return torch.Tensor._make_wrapper_subclass(cls, values.shape, dtype=torch.float32)

    def __init__(self, values: Any, scale: float) -> None:
        self.values, self.scale = values, scale

    def dequantize(self) -> Any:
        return self.values.to(torch.float32) * self.scale

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.detach.default:
            return cls(args[0].values, args[0].scale)
        raise NotImplementedError(func)


class Plain(Quantised):
    dequantize = torch.Tensor.dequantize


class Shard(Plain):
    def full_tensor(self) -> Any:
        return self.values


@pytest.mark.parametrize(
    ("kind", "ways", "not_ways"),
    [
        (Quantised, ["torch.save", "dequantize()"], ["full_tensor", "MvcWriter"]),
        (Plain, ["torch.save"], ["dequantize", "full_tensor", "MvcWriter"]),
        (Shard, ["full_tensor()", "MvcWriter"], ["dequantize"]),
    ],
)
def test_the_hint_names_what_the_tensor_has(
    tmp_path: Path, kind: Any, ways: list[str], not_ways: list[str]
) -> None:
    weight = kind(torch.ones(4, 4, dtype=torch.int8), 0.5)
    with mvc.Repository.init(tmp_path) as repo:
        with pytest.raises(UnsupportedTensor, match=f"w is a {kind.__name__}") as error:
            repo.commit({"w": weight})
        hint = str(error.value.hint)
        assert all(way in hint for way in ways) and not any(way in hint for way in not_ways)
        if kind is Quantised:
            repo.commit({"w": weight.dequantize()})
