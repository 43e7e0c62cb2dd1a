"""A file system that remembers enough to build what a power loss would have left.

It works on a real folder, so that things which do not pass the seam (LMDB) can stand
beside it; those are not part of the images, and neither are modes and times. Flushes
are recorded but not carried out: the images come from the record, not from the disk.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from mvc.io.files import FileLock, FileSystem, WriteFile
from mvc.testing import WrappedFS
from mvc.testing.files import Handle, WrappedWriteFile
from tests.faults.disk import ROOT, Adopt, Disk, Op, Rename, Sync, SyncDir, Truncate, Write

T = TypeVar("T")


class CrashFS(WrappedFS):
    """Records every change below ``root``; what stands there at the start is durable.

    ``ignore(op, path)`` true for an op "sync" or "sync_dir" makes that flush have no
    effect on the images: to prove that a suite would notice a missing one.
    """

    def __init__(
        self,
        root: Path,
        inner: FileSystem | None = None,
        ignore: Callable[[str, Path], bool] | None = None,
    ) -> None:
        super().__init__(inner)
        self._root = self.inner.realpath(root)
        self._ignore = ignore or (lambda op, path: False)
        self._guard = threading.RLock()
        self._names: dict[int, dict[str, int]] = {ROOT: {}}  # the live folders
        self._nodes = ROOT
        self._log: list[Op] = []
        self._marks: list[tuple[int, Any]] = []
        self._adopt_below(self._root)
        self._start, self._log = self._log, []
        self._replay, self._replayed = self._fresh(), 0

    # -- what a test asks --------------------------------------------------------------

    def crash_points(self) -> int:
        """How many changes there were: a crash may come after 0, 1, ... that many."""
        return len(self._log)

    def image(self, point: int, rng: random.Random, dest: Path) -> None:
        """Builds in ``dest`` (absent or empty) what a crash after ``point`` changes may leave.

        Fastest when points come in rising order.
        """
        if dest.exists() and any(dest.iterdir()):
            raise ValueError(f"{dest} is not empty")
        with self._guard:
            if not 0 <= point <= len(self._log):
                raise ValueError(f"crash points are 0 to {len(self._log)}, not {point}")
            if point < self._replayed:
                self._replay, self._replayed = self._fresh(), 0
            for op in self._log[self._replayed : point]:
                self._replay.apply(op)
            self._replayed = point
            self._replay.image(rng, dest)

    def _fresh(self) -> Disk:
        disk = Disk()
        for op in self._start:
            disk.apply(op)
        return disk

    def mark(self, label: Any) -> None:
        """Notes that ``label`` was acknowledged: it survives a crash at any later point."""
        with self._guard:
            self._marks.append((len(self._log), label))

    def marks_before(self, point: int) -> list[Any]:
        """The labels that a crash after ``point`` changes must not take away."""
        return [label for at, label in self._marks if at <= point]

    # -- open files --------------------------------------------------------------------

    def open_write(
        self,
        path: Path,
        *,
        create: bool = False,
        exclusive: bool = False,
        mode: int = 0o666,
        within: Path | None = None,
    ) -> WriteFile:
        with self._guard:
            existed = self.inner.stat(path) is not None
            file = super().open_write(
                path, create=create, exclusive=exclusive, mode=mode, within=within
            )
            assert isinstance(file, WrappedWriteFile)
            file.node = self._opened(path, existed)
            return file

    def lock(
        self,
        path: Path,
        *,
        shared: bool = False,
        timeout: float | None = None,
        block: bool = True,
    ) -> FileLock | None:
        # Not under the guard: who holds the lock must be able to write meanwhile.
        existed = self.inner.stat(path) is not None
        lock = super().lock(path, shared=shared, timeout=timeout, block=block)
        if not existed:
            with self._guard:
                self._opened(path, existed)
        return lock

    def handle_call(self, file: Handle, op: str, act: Callable[[], T], *detail: Any) -> T:
        if op not in ("write", "truncate", "sync"):
            return act()
        assert isinstance(file, WrappedWriteFile)
        with self._guard:
            if file.node < 0:
                return act()
            if op == "sync":
                if not self._ignore(op, file.path):
                    self._log.append(Sync(file.node))
                return None  # type: ignore[return-value]
            result = act()
            if op == "truncate":
                self._log.append(Truncate(file.node, detail[0]))
            else:
                self._log.append(Write(file.node, detail[0], b"".join(detail[2])))
            return result

    # -- names -------------------------------------------------------------------------

    def call(self, op: str, path: Path, act: Callable[[], T], *detail: Any) -> T:
        if op in ("make_dir", "replace", "link", "unlink", "remove_dir", "sync_dir"):
            with self._guard:
                return self._change(op, path, act, *detail)
        return act()

    def _change(self, op: str, path: Path, act: Callable[[], T], *detail: Any) -> T:
        if op == "sync_dir":
            folder = self._find(path)
            if folder is None:
                return act()
            if not self._ignore(op, path):
                self._log.append(SyncDir(folder))
            return None  # type: ignore[return-value]
        if op in ("replace", "link"):
            self._adopt(detail[0])
        if op in ("replace", "make_dir"):
            self._adopt(path)
        known = self._find(path)
        result = act()
        place = self._place(path)
        if place is None:
            if op == "replace":
                self._record(self._removal(detail[0]))
            return result
        if op in ("unlink", "remove_dir"):
            self._record(self._removal(path))
        elif op == "make_dir":
            if known is None:
                self._record(((*place, self._new(folder=True)),), is_folder=True)
        else:
            node = self._find(detail[0])
            if node is None:  # from outside: whatever it holds, somebody else answers for it
                self._forget(path)
                self._adopt(path)
            elif node != known:
                removal = self._removal(detail[0]) if op == "replace" else ()
                self._record(((*place, node), *removal))
        return result

    def _record(
        self, changes: Sequence[tuple[int, str, int | None]], *, is_folder: bool = False
    ) -> None:
        if not changes:
            return
        self._log.append(Rename(tuple(changes), is_folder))
        for folder, name, node in changes:
            if node is None:
                self._names[folder].pop(name, None)
            else:
                self._names[folder][name] = node

    def _removal(self, path: Path) -> tuple[tuple[int, str, None], ...]:
        """The change that takes a name away; none for a name that is not watched."""
        place = self._place(path)
        if place is None or place[1] not in self._names[place[0]]:
            return ()
        return ((*place, None),)

    # -- which file is where -----------------------------------------------------------

    def _opened(self, path: Path, existed: bool) -> int:
        """The node of a file that was just opened or created; -1 outside ``root``."""
        if existed:
            self._adopt(path)
        elif (place := self._place(path)) and self._find(path) is None:
            self._record(((*place, self._new()),))
        node = self._find(path)
        return -1 if node is None else node

    def _new(self, *, folder: bool = False) -> int:
        self._nodes += 1
        if folder:
            self._names[self._nodes] = {}
        return self._nodes

    def _parts(self, path: Path) -> tuple[str, ...] | None:
        """The path's names below the root; None outside of it."""
        real = self.inner.realpath(path.parent) / path.name
        if real == self._root or self.inner.realpath(path) == self._root:
            return ()
        return real.relative_to(self._root).parts if self._root in real.parents else None

    def _walk(self, parts: Sequence[str]) -> int | None:
        node: int | None = ROOT
        for part in parts:
            node = self._names.get(node, {}).get(part) if node is not None else None
        return node

    def _find(self, path: Path) -> int | None:
        parts = self._parts(path)
        return None if parts is None else self._walk(parts)

    def _place(self, path: Path) -> tuple[int, str] | None:
        """The folder and name of a path, whether something is there or not."""
        parts = self._parts(path)
        if not parts:
            return None
        folder = self._walk(parts[:-1])
        if folder not in self._names:
            self._adopt(path.parent)
            folder = self._walk(parts[:-1])
        return None if folder is None else (folder, parts[-1])

    def _adopt(self, path: Path) -> None:
        """Begins to watch what came below the root without passing here."""
        parts = self._parts(path)
        if parts is None or self._walk(parts) is not None:
            return
        for i in range(1, len(parts) + 1):
            if self._walk(parts[:i]) is None and not self._adopt_one(parts[:i]):
                return

    def _adopt_one(self, parts: Sequence[str]) -> bool:
        path, folder = self._root.joinpath(*parts), self._walk(parts[:-1])
        status = self.inner.stat(path, follow=False)
        if folder is None or status is None or not (status.is_dir or status.is_file):
            return False
        node = self._new(folder=status.is_dir)
        content = None
        if status.is_file:
            with self.inner.open_read(path) as file:
                content = file.read(0, status.size)
        self._names[folder][parts[-1]] = node
        self._log.append(Adopt(folder, parts[-1], node, content))
        return True

    def _adopt_below(self, folder: Path) -> None:
        for name in self.inner.list(folder):
            path = folder / name
            self._adopt(path)
            status = self.inner.stat(path, follow=False)
            if status is not None and status.is_dir:
                self._adopt_below(path)

    def _forget(self, path: Path) -> None:
        if place := self._place(path):
            self._names[place[0]].pop(place[1], None)
