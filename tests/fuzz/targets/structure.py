"""The nested structure of a state, as JSON."""

import json

from mvc.structure import decode, encode


def run(data: bytes) -> None:
    decode(data.decode("utf-8", "replace"), lambda tag, name: (tag, name))


def seeds() -> list[bytes]:
    value = {"a": [1, 2.5, None, True], "b": (b"x", 1 << 80, 1j, float("inf")), 3: {"c": {}}}
    node = {"version": 1, "state": {"dict": {"w": {}, "n": {"numpy": "n"}}}}
    return [encode(value, lambda place, x: None).encode(), json.dumps(node).encode()]
