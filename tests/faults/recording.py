"""A file system that tells which calls changed something."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from mvc.system import FileSystem
from mvc.testing import WrappedFS

T = TypeVar("T")

_READING = frozenset({"open_read", "read", "stat", "list", "lock"})


@dataclass(frozen=True)
class RecordedCall:
    """One mutating call. ``detail``: (offset, size) of a write, the size of a truncate, the
    source of a replace or link, the mode of a set_mode, whether an open_write may create.
    """

    op: str
    path: Path
    detail: tuple[Any, ...] = ()


class RecordingFS(WrappedFS):
    """Passes everything on, and keeps the mutating calls that succeeded in ``calls``."""

    def __init__(self, inner: FileSystem | None = None) -> None:
        super().__init__(inner)
        self.calls: list[RecordedCall] = []

    def call(self, op: str, path: Path, act: Callable[[], T], *detail: Any) -> T:
        result = act()
        if op not in _READING:
            self.calls.append(RecordedCall(op, path, detail[:2] if op == "write" else detail))
        return result

    def ops(self) -> list[str]:
        """The names of the calls, in order."""
        return [call.op for call in self.calls]
