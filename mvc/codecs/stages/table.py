"""The closed table of stages: data names a stage by its text, and nothing else can be named."""

from __future__ import annotations

from mvc.codecs.stages.base import Stage
from mvc.codecs.stages.compress import Brotli, Bz2, Lzma, Raw, Zlib, Zstd
from mvc.codecs.stages.decisions import Drift, Dsed, Every
from mvc.codecs.stages.deltas import Elide, Sub, Xor, Zigzag
from mvc.codecs.stages.grid import Gaps, Grid, Lattice, Steps
from mvc.codecs.stages.lossy import ResetBits, TopK, TopKOfAll
from mvc.codecs.stages.rearrange import Planes
from mvc.codecs.stages.sparse import Sparse

__all__ = ["STAGES"]

STAGES: dict[str, type[Stage]] = {
    "every": Every,
    "drift": Drift,
    "topk": TopK,
    "topk-all": TopKOfAll,
    "grid": Grid,
    "sub": Sub,
    "xor": Xor,
    "steps": Steps,
    "lsb": ResetBits,
    "dsed": Dsed,
    "zigzag": Zigzag,
    "elide": Elide,
    "planes": Planes,
    "sparse": Sparse,
    "gaps": Gaps,
    "lattice": Lattice,
    "zstd": Zstd,
    "zlib": Zlib,
    "bz2": Bz2,
    "lzma": Lzma,
    "brotli": Brotli,
    "raw": Raw,
}
"""By name, in the order in which they may stand."""
