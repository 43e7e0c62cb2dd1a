"""Lines of stages: every preset, every stage that can be named, and random ones that fit."""

from __future__ import annotations

import random

from mvc.errors import InvalidPipeline
from mvc.pipelines.pipeline import Pipeline
from mvc.pipelines.table import PRESETS, STAGES

__all__ = ["LINES", "drawn"]

_PARAMETERS = {
    "every": ("1/2",),
    "drift": ("adwin",),
    "topk": ("0.1", "0.5,min=0.01", "0.3,loss=linear", "1,loss=-0.5", "0", "0.2,min=1"),
    "topk-all": ("0.1", "0.02,min=0.1"),
    "grid": ("0.25", "2", "16", "0.000001", "1,hold=1,fine=0"),
    "lsb": ("1", "8", "20", "23", "18,msb=4"),
    "dsed": ("0.01",),
    "guard": ("0.01",),
    "planes": ("", "all", "concat"),
    "blocks": ("18", "3"),
    "sparse": ("", "none", "values", "layers,indices", "values,diff", "indices"),
    "zstd": ("huff", "1", "3", "9"),
    "zlib": ("1", "9"),
    "bz2": ("1",),
    "lzma": ("0",),
    "brotli": ("1",),
    "expq": ("", "mean", "tensor", "mean,tensor"),
    "promote": ("1", "2", "3", "8", "budget=0.05", "budget=1", "error=0.1", "error=1"),
    "uniform": ("budget=0.05", "budget=1", "error=0.1", "error=0.0001", "error=1,tensor"),
}
"""Of each stage that takes some."""

LINES = (
    *PRESETS,
    *(f"sub | zigzag | planes:all | {method}" for method in ("zlib:1", "bz2:1", "lzma:0")),
    "xor | elide | planes | zstd:3",
    "xor | elide | brotli:1",
    "sub | zigzag | sparse | zstd:1",
    "xor | lsb:8 | sparse:none",
    "sub | planes:concat",
    "sub | zigzag | blocks:3 | zstd:huff",
    "topk-all:0.1,min=0.01 | xor | raw",
    "sub | zigzag | elide",
    "lattice | zlib:1",
    "every:1/2 | sub | zstd:1",
    "drift:adwin | xor | planes | zstd:1",
    *(f"expq{how} | {coder}" for how in ("", ":mean,tensor") for coder in ("huffman", "ans")),
    *(f"lc:x={x},{coder}" for x in (1, 3, 8) for coder in ("packed", "huffman")),
    "lc:budget=0.05",
    "lc:error=0.1,mean,tensor",
    "lc:uniform,budget=0.05",
    "lc:uniform,budget=1,huffman",
    "lc:uniform,error=0.1",
    "lc:uniform,error=0.0001,packed",
    "lc:uniform,error=0.5,tensor",
)
"""Every preset, and every stage at least once."""


def drawn(draw: random.Random) -> str:
    """A line of ``LINES``, or a random one that fits together."""
    while draw.random() < 0.4:
        chosen = [name for name in STAGES if draw.random() < 0.2]
        try:
            return Pipeline.parse(" | ".join(_written(name, draw) for name in chosen)).text
        except InvalidPipeline:
            continue
    return draw.choice(LINES)


def _written(name: str, draw: random.Random) -> str:
    parameter = draw.choice(_PARAMETERS.get(name, ("",)))
    return f"{name}:{parameter}" if parameter else name
