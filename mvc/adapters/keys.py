"""Names of tensors from their place in nested containers: parts joined with '.'.

Torch files and Python states name tensors by the same rules, so that one state
has one Merkle root however it came in.
"""

from __future__ import annotations

__all__ = ["Names", "join", "part_name"]

_DECIMAL_BITS = 256


def part_name(key: object) -> str:
    """The text that stands for one dictionary key or position in a tensor's name."""
    if isinstance(key, str):
        return key
    if isinstance(key, bool) or key is None or isinstance(key, float):
        return repr(key)
    if isinstance(key, int):
        # Python refuses to write very long integers in decimal.
        return str(key) if key.bit_length() <= _DECIMAL_BITS else hex(key)
    if isinstance(key, bytes):
        return key.decode("latin-1")
    if isinstance(key, tuple):
        return ",".join("()" if isinstance(k, tuple) else part_name(k) for k in key)
    return "object"


def join(path: str | None, part: str) -> str:
    """The name of ``part`` inside ``path``; None is the outermost container."""
    return part if path is None else f"{path}.{part}"


class Names:
    """Makes names unique: the second tensor named ``a`` becomes ``a#2``."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}

    def unique(self, name: str | None) -> str:
        """``name`` or its next free variant; a tensor without a name is ``tensor``."""
        name = name or "tensor"
        if name not in self._counts:
            self._counts[name] = 1
            return name
        while True:
            self._counts[name] += 1
            candidate = f"{name}#{self._counts[name]}"
            if candidate not in self._counts:
                self._counts[candidate] = 1
                return candidate
