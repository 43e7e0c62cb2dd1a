"""Pipelines: lines of text that name stages, and what such a line does to tensors.

The stages themselves are below: lossless ones in ``mvc.codecs``, all others in ``mvc.lossy``. No
I/O, no threads; callers run chunks on a pool, and scratch buffers and zstd contexts belong to the
thread that uses them.
"""
