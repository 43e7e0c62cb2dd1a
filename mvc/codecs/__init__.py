"""Lossless codings: how words and bytes become stored bytes and come back, exactly.

Layer 1, pure: buffers in, buffers out. No I/O, no threads. ``mvc.pipelines`` puts the stages in
order; what changes weights is in ``mvc.lossy``.
"""
