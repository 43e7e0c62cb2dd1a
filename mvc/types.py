"""Type aliases shared by all layers (layer 0)."""

from __future__ import annotations

from collections.abc import Callable
from os import PathLike
from typing import TypeAlias

Bytes: TypeAlias = bytes | bytearray | memoryview
"""Anything with contiguous bytes; ``collections.abc.Buffer`` needs Python 3.12."""

Progress: TypeAlias = Callable[[int, int, str], None]
"""Called with bytes done, bytes in total, and a description of the current step."""

PathName: TypeAlias = str | PathLike[str]

Reason: TypeAlias = str
"""Why an operation is done, in a person's words."""
