"""Lossless stages: they encode the bytes of tensors to stored bytes, and decode these exactly.

All functions take and return buffers, without I/O and threads. ``mvc.pipelines`` combines stages.
Stages that change weights are in ``mvc.lossy``.
"""
