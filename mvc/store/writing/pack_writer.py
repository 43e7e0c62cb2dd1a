"""Appending to packs, under a lock that is a running commit's lease.

A writer holds the pack's lock from its first byte until its journal entry is written. So once
the lock is free, bytes after the committed end belong to no commit. The next writer of that
pack cuts them off, after it has proven from the journal where the committed bytes end. A writer
that fails before anything is durable cuts off itself what it has written.
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


class _HeldPack(NamedTuple):
    """A pack that is written to, and where it ended before."""

    lock: FileLock
    file: WriteFile
    number: int
    start: int


class RecordSink(Protocol):
    """What takes encoded records: the packs of a repository, or what only passes them on."""

    def append(self, head: bytes, body: Sequence[Bytes]) -> tuple[int, int]:
        """Takes one record; returns where it lies."""

    def push(self) -> None:
        """Begins to make durable what was appended."""

    def sync(self) -> tuple[Region, ...]:
        """Makes everything durable; returns where it lies."""


class PackWriter(AbstractContextManager["PackWriter"]):
    """One locked pack, being appended to. Use as a context manager.

    ``ends`` is asked where a pack's committed bytes end, once the pack's lock is held. With
    ``fresh`` it writes only to packs that it has made; ``made`` are the numbers of these. What a
    reader of the repository's format must know for the records is added to ``features``.
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
        self._held: list[_HeldPack] = []
        self._file: WriteFile | None = None
        self._regions: list[Region] = []
        self._number = 0
        self._start = 0
        self._created = False
        self._durable = False  # then an entry may name what was written
        self.made: list[int] = []

    def __exit__(self, kind: type[BaseException] | None, *exc: object) -> None:
        try:
            if kind is not None and not self._durable:
                self._take_back()
        finally:
            self.close()

    def append(self, head: bytes, body: Sequence[Bytes]) -> tuple[int, int]:
        """Writes one record; returns (pack, offset). Not durable before ``sync``."""
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
        """Writes more of the record that was appended last."""
        assert self._file is not None
        self._file.write(body)

    def push(self) -> None:
        """Flushes what was appended so far, so that ``sync`` has less to wait for."""
        if self._file is not None:
            self._file.sync()

    def sync(self) -> tuple[Region, ...]:
        """Makes everything appended durable and returns where it lies."""
        self._finish_region()
        if self._file is not None:
            self._file.sync()
        if self._created:
            self._fs.sync_dir(self._folder)
            self._created = False
        self._durable = True
        return tuple(self._regions)

    def cut(self) -> tuple[Region, ...]:
        """Where what was appended since the last cut lies; not durable before ``sync``."""
        self._finish_region()
        regions, self._regions = self._regions, []
        return tuple(regions)

    def close(self) -> None:
        """Unlocks every pack; call it only after the journal entry is written."""
        self._file = None
        while self._held:
            held = self._held.pop()
            held.file.close()
            held.lock.release()

    def _take_back(self) -> None:
        """Gives the disk back what was appended. No entry can name it, as it is not durable.

        The lock is held since the pack was opened, so all that lies behind is this writer's. If it
        fails, the next writer of the pack cuts it off.
        """
        for held in self._held:
            with suppress(MvcError, MemoryError):
                if held.number in self.made:
                    self._fs.unlink(held.file.path)
                else:
                    held.file.truncate(held.start)

    def _finish_region(self) -> None:
        if self._file is not None and self._file.position > self._start:
            length = self._file.position - self._start
            self._regions.append(Region(self._number, self._start, length))
            self._start = self._file.position

    def _finish(self) -> None:
        """Leaves a full pack for a new one, keeping its lock."""
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
                continue  # another process was faster
            self._created = True
            if file := self._try(fresh):
                self.made.append(fresh)  # else another process has taken it over
                return file
        raise IoFailed(f"no new pack can be made in {self._folder}")

    def _try(self, number: int) -> WriteFile | None:
        """The pack opened for appending, or None if it is full or another writer holds it."""
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
        self._held.append(_HeldPack(lock, file, number, file.position))
        self._file, self._number = file, number
        self._start = file.position
        return file

    def _opened(self, number: int, path: Path) -> WriteFile | None:
        """The pack, which is locked, cut to what is committed; None if it is full.

        If the file ends where the index says, appending to it destroys nothing. Bytes are cut
        off only after the end that the journal proves.
        """
        end = self._ends.claimed(number)
        identity = self._fs.stat(path)
        if identity is not None and end is not None and identity.size > end:
            end = self._ends.proven(number)
        if end is None or end >= PACK_TARGET or identity is None or identity.size < end:
            return None
        if self._fresh and end:
            return None  # another process was faster, and has published already
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
