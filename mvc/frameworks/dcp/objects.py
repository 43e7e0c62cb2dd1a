"""Values of a checkpoint that are no tensors: what ``torch.save`` makes of them, read safely."""

from __future__ import annotations

import io
from pathlib import PurePosixPath
from typing import Any

from mvc.adapters.files.pickle_nodes import Dict, read_pickle
from mvc.adapters.files.zip_layout import read_members
from mvc.adapters.structure import MAX_DEPTH
from mvc.errors import BadModelFile, UnsupportedTensor

__all__ = ["objects_path", "plain_value", "saved_bytes"]


def objects_path(path: str) -> str:
    """The path beside a state for objects that are no plain values, as their saved bytes.

    ``run/model.objects.safetensors`` for ``run/model.safetensors``.
    """
    name = PurePosixPath(path)
    return str(name.with_name(f"{name.stem}.objects{name.suffix}"))


def plain_value(data: bytes) -> Any:
    """The number, text, list, tuple or dictionary that ``torch.save`` wrote.

    The pickle is read without running it, and the value is saved again and compared byte for
    byte. Raises MvcError, TypeError or ValueError if ``data`` is anything else.
    """
    source = _Bytes(data)
    members = {m.name.partition("/")[2]: m for m in read_members(source, "an object")}
    pickle = members.get("data.pkl")
    if pickle is None or not pickle.stored or any(n.startswith("data/") for n in members):
        raise BadModelFile("an object that holds tensors")
    text = data[pickle.start : pickle.start + pickle.size]
    value = _Plain(len(text)).value(read_pickle(text))
    again = saved_bytes(value)
    for member in read_members(_Bytes(again), "an object"):
        here = again[member.start : member.start + member.size]
        if member.name.endswith("/data.pkl") and here == text:
            return value
    raise UnsupportedTensor("an object that is not what it seems to be")


def saved_bytes(value: Any) -> bytes:
    """What ``torch.save`` makes of a value."""
    import torch

    out = io.BytesIO()
    torch.save(value, out)
    return out.getvalue()


class _Plain:
    """Nodes of a pickle as plain values; ``budget`` bounds the growth by shared containers."""

    def __init__(self, budget: int) -> None:
        self._budget = budget

    def value(self, node: Any, depth: int = 0) -> Any:
        self._budget -= 1
        if depth > MAX_DEPTH or self._budget < 0:
            raise BadModelFile("an object that is nested too deeply")
        if node is None or type(node) in {bool, int, float, str, bytes}:
            return node
        if isinstance(node, (list, tuple)):
            return type(node)(self.value(n, depth + 1) for n in node)
        if isinstance(node, Dict):
            pairs = [(self.value(k, depth + 1), self.value(v, depth + 1)) for k, v in node.pairs]
            return dict(pairs)
        raise UnsupportedTensor("an object of a class")


class _Bytes:
    """Bytes as a source."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def size(self) -> int:
        return len(self._data)

    def read(self, offset: int, length: int) -> bytes:
        return self._data[offset : offset + length]

    def read_into(self, offset: int, buffer: memoryview) -> int:
        data = self.read(offset, len(buffer))
        buffer[: len(data)] = data
        return len(data)
