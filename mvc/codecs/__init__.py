"""Lossless codings: words and bytes are encoded to stored bytes, and decoded exactly.

Layer 1, pure: buffers in, buffers out. No I/O, no threads. ``mvc.pipelines`` combines the stages;
stages that change weights are in ``mvc.lossy``.
"""
