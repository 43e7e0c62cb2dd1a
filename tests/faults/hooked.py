"""A file system that tells of each call before it happens, and one that dies at a call."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from mvc.io.files import FileSystem
from tests.faults.wrapped import WrappedFS

T = TypeVar("T")

Hook = Callable[[int, str, Path], object]
"""Number of the call (from 1), its name, the path."""


class HookedFS(WrappedFS):
    """Calls ``hook`` before every call on names and open files; ``calls`` counts them."""

    def __init__(self, hook: Hook, inner: FileSystem | None = None) -> None:
        super().__init__(inner)
        self.hook = hook
        self.calls = 0
        self._counting = threading.Lock()

    def call(self, op: str, path: Path, act: Callable[[], T], *detail: Any) -> T:
        with self._counting:
            self.calls += 1
            number = self.calls
        self.hook(number, op, path)
        return act()


class Killed(BaseException):
    """What a process sees that was killed: nothing. It ends here."""


class KilledFS(HookedFS):
    """From the first call on for which ``when`` is true, nothing happens any more.

    As if the process had been killed there: whatever its clean-up tries raises Killed, too.
    (Locks are let go of by that, as the kernel would do.)
    """

    def __init__(self, when: Hook, inner: FileSystem | None = None) -> None:
        super().__init__(self._die, inner)
        self._when = when
        self._done: list[tuple[str, str]] = []
        self.dead = False

    def seen(self, op: str, name: str) -> bool:
        """Whether this call was made before."""
        return (op, name) in self._done

    def _die(self, number: int, op: str, path: Path) -> None:
        self.dead = self.dead or bool(self._when(number, op, path))
        if self.dead:
            raise Killed
        self._done.append((op, path.name))
