"""Appends records (encoded tensors and other objects) to packs, the data files of a repository.

A writer locks a pack, appends records, writes a journal entry that names the records, and unlocks
the pack. The *committed end* of a pack is the end of the last record that a journal entry names.
If a pack is not locked, the bytes after its committed end come from a writer that failed. The next
writer of the pack removes these bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import NamedTuple, Protocol

from mvc.errors import IoFailed, MvcError
from mvc.io.files import FileLock, FileSystem, WriteFile
from mvc.limits import PACK_TARGET
from mvc.store.journal.entries import Region
from mvc.store.packs.reader import PACK_HEADER, pack_numbers, pack_path
from mvc.store.packs.records import codings_of
from mvc.store.recovery.decode import coding_features
from mvc.store.writing.pack_ends import PackEnds
from mvc.types import Bytes

_TRIES = 64


class _LockedPack(NamedTuple):
    """A pack that this writer has locked. ``start``: where its first new record begins."""

    lock: FileLock
    file: WriteFile
    number: int
    start: int


class RecordSink(Protocol):
    """Receives encoded records: the packs of a repository, or a transfer to another repository."""

    def append(self, head: bytes, body: Sequence[Bytes]) -> tuple[int, int]:
        """Appends one record; returns its pack and offset."""

    def push(self) -> None:
        """Starts to make appended records durable."""

    def sync(self) -> tuple[Region, ...]:
        """Makes all appended records durable; returns their regions (ranges of packs)."""


class PackWriter(AbstractContextManager["PackWriter"]):
    """Appends records to a locked pack. When this pack is full, continues in another pack.

    Use it as a context manager. ``ends``: the committed ends of packs. ``fresh``: write only to new
    packs. ``created``: numbers of the new packs. ``features``: format features that readers need
    for the appended records.
    """

    def __init__(
        self,
        fs: FileSystem,
        folder: Path,
        ends: PackEnds,
        *,
        fresh: bool = False,
        features: set[str] | None = None,
    ) -> None:
        self.features = set[str]() if features is None else features
        self._fresh = fresh
        self._fs = fs
        self._folder = folder
        self._ends = ends
        self._locked: list[_LockedPack] = []
        self._file: WriteFile | None = None
        self._regions: list[Region] = []
        self._number = 0
        self._start = 0
        self._created = False
        self._durable = False  # true after ``sync``, when an entry may name the records
        self.created: list[int] = []

    def __exit__(self, kind: type[BaseException] | None, *exc: object) -> None:
        try:
            if kind is not None and not self._durable:
                self._remove_appended()
        finally:
            self.close()

    def append(self, head: bytes, body: Sequence[Bytes]) -> tuple[int, int]:
        """Writes one record; returns (pack, offset). ``sync`` makes the record durable."""
        file = self._file
        if file is None or file.position >= PACK_TARGET:
            self._finish()
            file = self._acquire()
        for text in codings_of(head):
            self.features |= coding_features(text)
        at = file.position
        file.write([head, *body])
        return self._number, at

    def extend(self, body: Bytes) -> None:
        """Adds bytes to the newest record."""
        assert self._file is not None
        self._file.write(body)

    def push(self) -> None:
        """Flushes appended records, so that ``sync`` takes less time."""
        if self._file is not None:
            self._file.sync()

    def sync(self) -> tuple[Region, ...]:
        """Makes all appended records durable; returns their regions."""
        self._finish_region()
        if self._file is not None:
            self._file.sync()
        if self._created:
            self._fs.sync_dir(self._folder)
            self._created = False
        self._durable = True
        return tuple(self._regions)

    def cut(self) -> tuple[Region, ...]:
        """The regions appended since the previous ``cut``. ``sync`` makes these regions durable."""
        self._finish_region()
        regions, self._regions = self._regions, []
        return tuple(regions)

    def close(self) -> None:
        """Unlocks every pack; call it only after the journal entry is written."""
        self._file = None
        while self._locked:
            pack = self._locked.pop()
            pack.file.close()
            pack.lock.release()

    def _remove_appended(self) -> None:
        """Removes the appended records. No entry names them, because they are not durable.

        The packs are locked, so no other writer has appended bytes. If the removal fails,
        the next writer of the pack removes the records.
        """
        for pack in self._locked:
            with suppress(MvcError, MemoryError):
                if pack.number in self.created:
                    self._fs.unlink(pack.file.path)
                else:
                    pack.file.truncate(pack.start)

    def _finish_region(self) -> None:
        if self._file is not None and self._file.position > self._start:
            length = self._file.position - self._start
            self._regions.append(Region(self._number, self._start, length))
            self._start = self._file.position

    def _finish(self) -> None:
        """Ends writing to a full pack. The pack stays locked."""
        self._finish_region()
        if self._file is not None:
            self._file.sync()
            self._file = None

    def _acquire(self) -> WriteFile:
        numbers = pack_numbers(self._fs, self._folder)
        for number in reversed(numbers[-_TRIES:] if not self._fresh else []):
            if file := self._try(number):
                return file
        number = max(numbers[-1] if numbers else 0, self._ends.newest()) + 1
        for fresh in range(number, number + 10_000):
            path = pack_path(self._folder, fresh)
            if self._fs.stat(path) is not None:
                continue
            try:
                self._fs.open_write(path, create=True, exclusive=True).close()
            except FileExistsError:
                continue  # another process has created this pack
            self._created = True
            if file := self._try(fresh):
                self.created.append(fresh)  # otherwise, another process has locked it first
                return file
        raise IoFailed(f"no new pack can be created in {self._folder}")

    def _try(self, number: int) -> WriteFile | None:
        """Locks and opens a pack. None if the pack is full, or locked by another writer."""
        path = pack_path(self._folder, number)
        lock = self._fs.lock(path, block=False)
        if lock is None:
            return None
        try:
            file = self._opened(number, path)
        except BaseException:
            lock.release()
            raise
        if file is None:
            lock.release()
            return None
        self._locked.append(_LockedPack(lock, file, number, file.position))
        self._file, self._number = file, number
        self._start = file.position
        return file

    def _opened(self, number: int, path: Path) -> WriteFile | None:
        """Opens a locked pack, truncated to its committed end. None if nothing may be appended.

        Before bytes are truncated, the committed end is read from the journal, not only from the
        index.
        """
        end = self._ends.claimed(number)
        identity = self._fs.stat(path)
        if identity is not None and end is not None and identity.size > end:
            end = self._ends.proven(number)
        if end is None or end >= PACK_TARGET or identity is None or identity.size < end:
            return None
        if self._fresh and end:
            return None  # another process has already published records in this pack
        file = self._fs.open_write(path)
        try:
            if file.size() > end:
                file.truncate(end)
            if end == 0:
                file.write(PACK_HEADER)
                self._created = True
        except BaseException:
            file.close()
            raise
        return file
