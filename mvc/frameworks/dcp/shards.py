"""Shards: one file per rank and save, in ``.mvc/staging``, until the coordinator commits them.

A shard holds the row-major bytes of chunks of tensors and the bytes of objects, one after the
other. The process that wrote it holds a shared lock on a file beside it, which ends with the
process: a shard whose lock nobody holds was left by a crash, and the next save removes it.
"""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from mvc.errors import BadModelFile
from mvc.frameworks.common.staging import staging_folder
from mvc.io.files import TEMPORARY, FileSystem, ReadFile
from mvc.repo.context import Context
from mvc.store.store import FOLDER
from mvc.types import Bytes

__all__ = ["Record", "Shard", "open_shard", "remove_shards"]

_TOKEN = re.compile(r"[0-9a-f]{32}")
_SHARD = ".shard"
_LOCK = ".lock"


@dataclass(frozen=True, slots=True)
class Record:
    """Bytes [offset, offset + length) of a shard."""

    shard: str
    offset: int
    length: int


class Shard:
    """A new shard of this process, open for writing until its ``with`` block ends.

    The lock stays until ``release``. An exception that leaves the block removes the shard.
    """

    def __init__(self, context: Context) -> None:
        self._fs, self._within = context.store.fs, context.root / FOLDER
        self.name = secrets.token_hex(16)
        folder = staging_folder(context)
        self._path = folder / f"{self.name}{_SHARD}"
        self._lock = self._fs.lock(folder / f"{self.name}{_LOCK}", shared=True)
        _sweep(self._fs, folder, self._within)
        self._file = self._fs.open_write(
            self._path, create=True, exclusive=True, within=self._within
        )

    def write(self, data: Bytes) -> Record:
        """Appends bytes."""
        start = self._file.position
        self._file.write(data)
        return Record(self.name, start, self._file.position - start)

    def release(self) -> None:
        """Releases the lock: the coordinator does not need the shard any more."""
        self._lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._file.close()
        if kind is not None:
            self._fs.unlink(self._path, missing_ok=True, within=self._within)
            self.release()


def open_shard(context: Context, name: str) -> ReadFile:
    """The shard that a rank has written.

    Raises BadModelFile if it is not in this repository: the ranks do not use the same one.
    """
    path = _path(context, name)
    if context.store.fs.stat(path) is None:
        raise BadModelFile(
            "the shard of a rank was not written to this repository",
            hint="all ranks need the same repository: on several machines, a folder that "
            "they share",
        )
    return context.store.fs.open_read(path, follow=False)


def remove_shards(context: Context, names: set[str]) -> None:
    """Removes shards of a save that is complete or has failed."""
    for name in filter(_TOKEN.fullmatch, names):
        path = _path(context, name)
        context.store.fs.unlink(path, missing_ok=True, within=context.root / FOLDER)


def _path(context: Context, name: str) -> Path:
    if not _TOKEN.fullmatch(name):
        raise BadModelFile(f"a rank names something that is no shard: {name[:100]!r}")
    return staging_folder(context) / f"{name}{_SHARD}"


def _sweep(fs: FileSystem, folder: Path, within: Path) -> None:
    """Removes shards and scratch files whose process has ended, and other files' old locks."""
    for name in fs.list(folder):
        if name.startswith(TEMPORARY):
            fs.unlink(folder / name, missing_ok=True, within=within)
        if not name.endswith(_LOCK):
            continue
        lock = fs.lock(folder / name, block=False)
        if lock is not None:
            with lock:
                shard = folder / f"{name.removesuffix(_LOCK)}{_SHARD}"
                fs.unlink(shard, missing_ok=True, within=within)
                fs.unlink(folder / name, missing_ok=True, within=within)
