"""Names for pipelines that are worth having.

``vsol`` and ``vsol-BOUND-SPEED`` are the thesis's presets (§4.8.5, §5.1), by accuracy lost
in per cent and by speed; ``lossless`` was found by measurement and is the default.
"""

from __future__ import annotations

__all__ = ["PRESETS"]

_STEPS = "steps | gaps | zstd:huff"
_TOP_LINEAR = "topk:0.075,min=0.001,loss=linear"
_TOP_ABOVE = "topk:0.075,min=0.001,loss=-0.5"

PRESETS = {
    "lossless": "sub | zigzag | elide | planes | zstd:huff",
    "vsol": "xor | planes:all | zstd:1",
    "vsol-0-fast": "xor | lsb:20 | planes:all | zstd:1",
    "vsol-0-slow": "xor | lsb:20 | dsed:0 | planes:all | zstd:1",
    "vsol-0.1-fast": f"{_TOP_LINEAR} | xor | lsb:18 | sparse | zstd:1",
    "vsol-0.1-slow": "xor | lsb:20 | dsed:0.01 | planes:all | zstd:1",
    "vsol-1-fast": f"{_TOP_ABOVE} | xor | lsb:20 | sparse | zstd:1",
    "vsol-1-slow": f"{_TOP_ABOVE} | xor | lsb:20 | dsed:0.01 | sparse | zstd:1",
    "frontier-0": f"grid:0.25 | {_STEPS}",
    "frontier-0.1": f"grid:1 | {_STEPS}",
    "frontier-1": f"grid:2,fine=0.3 | {_STEPS}",
    "frontier-1-slow": "grid:2,fine=0.3 | steps | dsed:0 | gaps | zstd:huff",
    "none": "raw",
}
