"""Type aliases shared by all layers (layer 0)."""

from __future__ import annotations

from typing import TypeAlias

__all__ = ["Bytes"]

Bytes: TypeAlias = bytes | bytearray | memoryview
"""Anything with contiguous bytes; ``collections.abc.Buffer`` needs Python 3.12."""
