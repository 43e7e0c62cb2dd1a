"""Writing a new file with holes: where a megabyte of zeros would stand, nothing is written."""

from __future__ import annotations

import numpy as np

from mvc.io.files import WriteFile
from mvc.limits import CHUNK
from mvc.types import Bytes

__all__ = ["SparseWriter"]

_PROBE = 64  # bytes that tell weights from zeros at once


class SparseWriter:
    """Writes to a file that is new and empty, so that what is left out reads as zeros."""

    def __init__(self, file: WriteFile) -> None:
        self._file = file

    def write_at(self, offset: int, data: Bytes) -> None:
        """Writes ``data`` at ``offset``, without the whole chunks of it that are zero."""
        view = memoryview(data)
        written = 0
        for start in range(0, len(view) - CHUNK + 1, CHUNK):
            if _is_zero(view[start : start + CHUNK]):
                self._write(offset, view, written, start)
                written = start + CHUNK
        self._write(offset, view, written, len(view))

    def finish(self, size: int) -> None:
        """Gives the file its length in bytes where it ends with a hole."""
        if self._file.size() < size:
            self._file.truncate(size)

    def _write(self, offset: int, view: memoryview, start: int, stop: int) -> None:
        if stop > start:
            self._file.write_at(offset + start, view[start:stop])


def _is_zero(chunk: memoryview) -> bool:
    return not any(chunk[:_PROBE]) and not np.frombuffer(chunk, np.uint64).any()
