"""The stages of a pipeline: a closed table of small classes, one module a family.

A stage is typed by what it takes and gives and by scope (one tensor, or all of a record), so
that a wrong order is refused when a pipeline is built. What a stage of the second family does to
bytes is in ``mvc.codecs``, what one of the first does to weights in ``mvc.codecs.lossy``.

    lossy        topk, topk-all, lsb, grid       production weights out of training weights
    codings      sub, xor, zigzag, elide         deltas between a tensor and its base
                 planes, planes:all|concat       byte planes
                 sparse[:...]                    positions and values of what changed
                 steps, gaps, lattice            deltas in whole steps of a grid
                 zstd, zlib, bz2, lzma, brotli   and raw: nothing
    lc           expq, promote, uniform          lossy deltas that are added to a state
                 huffman, packed, ans            their symbols
    decisions    every, drift, dsed              whether a version is saved
"""
