"""A read-only repository folder whose files are in memory, where a test damages them.

Everything else goes to the real file system. The folder is said not to be writable, and
there is no index: what is read is format, journal, packs and the witness.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from mvc.errors import IoFailed
from mvc.io.files import FileIdentity, FileSystem, ReadFile

__all__ = ["MemoryFS"]

_NAMES = ("format", "journal", "witness")


class _MemoryFile(ReadFile):
    """Reads whatever its file system holds under the path by then."""

    def __init__(self, fs: MemoryFS, path: Path) -> None:
        super().__init__(path, -1)
        self._fs = fs

    def _read(self, offset: int, length: int) -> bytes:
        return bytes(self._fs.files[self.path][offset : offset + length])

    def _read_into(self, offset: int, view: memoryview) -> int:
        data = memoryview(self._fs.files[self.path])[offset : offset + len(view)]
        view[: len(data)] = data
        return len(data)

    def _stat(self) -> FileIdentity:
        return self._fs.identity(self.path)


class MemoryFS(FileSystem):
    """``files``: the content by path; put others there to damage them."""

    def __init__(self, folder: Path) -> None:
        """Takes format, journal, packs and witness of the folder ``folder`` (``.mvc``)."""
        self.folder = folder
        paths = [*map(folder.joinpath, _NAMES), *sorted((folder / "packs").glob("*.pack"))]
        self.files: dict[Path, bytes | bytearray] = {p: p.read_bytes() for p in paths}

    def identity(self, path: Path) -> FileIdentity:
        return FileIdentity(
            len(self.files[path]), 0, 0, hash(path), 1, stat.S_IFREG | 0o444, os.geteuid()
        )

    def open_read(self, path: Path, *, follow: bool = True) -> ReadFile:
        if not path.is_relative_to(self.folder):
            return super().open_read(path, follow=follow)
        if path not in self.files:
            raise IoFailed(f"cannot read {path}: it does not exist")
        return _MemoryFile(self, path)

    def stat(self, path: Path, *, follow: bool = True) -> FileIdentity | None:
        if not path.is_relative_to(self.folder) or path == self.folder:
            return super().stat(path, follow=follow)
        if path in self.files:
            return self.identity(path)
        if any(str(file).startswith(f"{path}/") for file in self.files):
            return FileIdentity(0, 0, 0, hash(path), 1, stat.S_IFDIR | 0o555, os.geteuid())
        return None

    def is_writable_dir(self, path: Path) -> bool:
        return not path.is_relative_to(self.folder) and super().is_writable_dir(path)

    # Last, because inside the class the name hides the type.
    def list(self, path: Path) -> list[str]:
        if not path.is_relative_to(self.folder):
            return super().list(path)
        return sorted(file.name for file in self.files if file.parent == path)
