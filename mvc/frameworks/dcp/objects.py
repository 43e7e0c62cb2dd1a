"""Decodes the values of a checkpoint that are not tensors, without running code of the
checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Any

from mvc.errors import BadModelFile, UnsupportedTensor
from mvc.files import MemorySource, PickledDict, read_members, read_pickle
from mvc.frameworks.common.data import saved_bytes
from mvc.structure import MAX_DEPTH


def objects_path(path: str) -> str:
    """The path of the file for values that are not tensors. ``path``: the file with the tensors.

    For ``a.safetensors``, the result is ``a.objects.safetensors``.
    """
    name = PurePosixPath(path)
    return str(name.with_name(f"{name.stem}.objects{name.suffix}"))


def plain_value(data: bytes) -> Any:
    """The number, text, list, tuple or dictionary that ``torch.save`` has written to ``data``.

    The pickle is parsed, but not run. To detect errors of the parser, the value is saved again, and
    the bytes are compared. Raises MvcError, TypeError or ValueError for other types of values, or
    if the bytes differ.
    """
    members = {m.name.partition("/")[2]: m for m in read_members(MemorySource(data), "an object")}
    pickle = members.get("data.pkl")
    if pickle is None or not pickle.stored or any(n.startswith("data/") for n in members):
        raise BadModelFile("the object contains tensors")
    text = data[pickle.start : pickle.start + pickle.size]
    # A small pickle can repeat a container very often. So at most one value per byte is created.
    value = _plain(read_pickle(text), 0, iter(range(len(text))))
    encoded = saved_bytes(value)
    for member in read_members(MemorySource(encoded), "an object"):
        current = encoded[member.start : member.start + member.size]
        if member.name.endswith("/data.pkl") and current == text:
            return value
    raise UnsupportedTensor("the object's bytes differ when it is saved again")


def _plain(node: Any, depth: int, budget: Iterator[int]) -> Any:
    """The plain value of a node of the parsed pickle.

    Takes an item of ``budget`` for each value. Raises BadModelFile if ``budget`` is used up or the
    nesting is too deep, and UnsupportedTensor for values that are not plain data.
    """
    if depth > MAX_DEPTH or next(budget, None) is None:
        raise BadModelFile("the object is nested too deeply")
    if node is None or type(node) in {bool, int, float, str, bytes}:
        return node
    if isinstance(node, (list, tuple)):
        return type(node)(_plain(item, depth + 1, budget) for item in node)
    if isinstance(node, PickledDict):
        below = depth + 1
        return {_plain(k, below, budget): _plain(v, below, budget) for k, v in node.pairs}
    raise UnsupportedTensor("the object is of a class that is not plain data")
