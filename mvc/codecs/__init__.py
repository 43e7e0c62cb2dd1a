"""Pipelines: how tensors become stored bytes and come back, exactly.

Layer 1, pure: buffers in, buffers out. No I/O, no threads; callers run chunks on
a pool, and scratch buffers and zstd contexts belong to the thread that uses them.
"""
