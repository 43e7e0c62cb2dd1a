"""GGUF files made byte by byte, so that tests need no package that writes them."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import numpy as np

TYPES = {
    "F32": 0,
    "F16": 1,
    "Q4_0": 2,
    "Q4_1": 3,
    "Q4_K": 12,
    "I8": 24,
    "F64": 28,
    "BF16": 30,
    "UNKNOWN": 77,
}
_CODES = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}

Tensor = tuple[str, str, tuple[int, ...], bytes]
"""Name, type, shape in numbers with the longest stride first, bytes."""


def text(value: str | bytes, order: str = "<") -> bytes:
    data = value if isinstance(value, bytes) else value.encode()
    return struct.pack(f"{order}Q", len(data)) + data


def setting(name: str, kind: int, value: Any, order: str = "<") -> bytes:
    """Kind 8 is a text, 9 a pair of a kind and a list, any other a number."""
    head = text(name, order) + struct.pack(f"{order}I", kind)
    if kind != 9:
        return head + _value(kind, value, order)
    inner, values = value
    head += struct.pack(f"{order}IQ", inner, len(values))
    return head + b"".join(_value(inner, each, order) for each in values)


def _value(kind: int, value: Any, order: str) -> bytes:
    return text(value, order) if kind == 8 else struct.pack(order + _CODES[kind], value)


def gguf(
    tensors: Sequence[Tensor],
    settings: Sequence[bytes] = (),
    *,
    alignment: int = 32,
    version: int = 3,
    order: str = "<",
) -> bytes:
    """A file of these tensors, one after the other; ``settings`` as ``setting`` gives them."""
    head = b"GGUF" + struct.pack(f"{order}IQQ", version, len(tensors), len(settings))
    head += b"".join(settings)
    body = b""
    for name, kind, shape, data in tensors:
        body += bytes(-len(body) % alignment)
        head += text(name, order) + struct.pack(f"{order}I", len(shape))
        head += struct.pack(f"{order}{len(shape)}Q", *shape[::-1])
        head += struct.pack(f"{order}IQ", TYPES[kind], len(body))
        body += data
    return head + bytes(-len(head) % alignment) + body


def small(alignment: int = 32) -> bytes:
    """One file with every kind of setting and tensors of several types."""
    settings = [
        setting("general.architecture", 8, "llama"),
        setting("general.alignment", 4, alignment),
        setting("llama.context_length", 4, 8192),
        setting("llama.rope.freq_base", 6, 0.5),
        setting("tokenizer.ggml.tokens", 9, (8, ["<s>", "</s>", "ä"])),
        setting("tokenizer.ggml.scores", 9, (6, [0.0, -1.0])),
        setting("tokenizer.ggml.add_bos_token", 7, True),
    ]
    numbers = np.arange(12, dtype="<f4").reshape(3, 4)
    tensors: list[Tensor] = [
        ("token_embd.weight", "F32", (3, 4), numbers.tobytes()),
        ("output.weight", "F16", (4, 3), numbers.astype("<f2").tobytes()),
        ("blk.0.attn_q.weight", "Q4_0", (2, 64), bytes(range(72))),
        ("blk.0.ffn_up.weight", "Q4_K", (1, 256), bytes(144)),
        ("empty", "F32", (0, 4), b""),
        ("positions", "I8", (5,), b"\1\2\3\4\5"),
    ]
    return gguf(tensors, settings, alignment=alignment)
