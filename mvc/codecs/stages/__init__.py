"""The stages of a pipeline: a closed table of small classes, one module a family.

A stage is typed by what it takes and gives, by scope (one tensor, or all of a record) and by
direction, so that a wrong order is refused when a pipeline is built.

    decisions    every, drift, dsed              whether a version is saved
    lossy        topk, topk-all, lsb             production weights out of training weights
    deltas       sub, xor; zigzag, elide         undirected
    rearrange    planes, planes:all|concat       byte planes
    sparse       sparse[:...]                    positions and values of what changed
    grid         grid; steps, gaps, lattice      weights on a grid, deltas in whole steps of it
    compress     zstd, zlib, bz2, lzma, brotli   and raw: nothing
"""

from mvc.codecs.stages.base import Kind, Stage
from mvc.codecs.stages.compress import Compressor, Raw, Zstd
from mvc.codecs.stages.decisions import Drift, Dsed, Every
from mvc.codecs.stages.deltas import Elide, Operator, Sub, Xor, Zigzag
from mvc.codecs.stages.grid import Gaps, Grid, Lattice, OnGrid, Steps
from mvc.codecs.stages.lossy import LossyStage, ResetBits, TopK, TopKOfAll
from mvc.codecs.stages.rearrange import Planes, PlanesOfAll, PlanesOfJoined
from mvc.codecs.stages.sparse import Positions, Sparse, SparseOfAll
from mvc.codecs.stages.table import STAGES, check_order, read_stages

__all__ = [
    "STAGES",
    "Compressor",
    "Drift",
    "Dsed",
    "Elide",
    "Every",
    "Gaps",
    "Grid",
    "Kind",
    "Lattice",
    "LossyStage",
    "OnGrid",
    "Operator",
    "Planes",
    "PlanesOfAll",
    "PlanesOfJoined",
    "Positions",
    "Raw",
    "ResetBits",
    "Sparse",
    "SparseOfAll",
    "Stage",
    "Steps",
    "Sub",
    "TopK",
    "TopKOfAll",
    "Xor",
    "Zigzag",
    "Zstd",
    "check_order",
    "read_stages",
]
