"""Reads packs (files with stored data) from a bucket.

A pack consists of records. A record has a header, and a body with encoded data. A *mirror* is a
local copy of the repository in the bucket, without bodies: the pack files of the mirror have only
the headers. The bodies are read from the bucket.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

from mvc.errors import DamagedData, MvcError, RemoteUnreachable
from mvc.io.files import FileIdentity, FileSystem, ReadFile, WriteFile
from mvc.io.handles import ReadAhead
from mvc.remote.transports.bucket.layout import PackObject, decode_headers
from mvc.remote.transports.bucket.objects import Objects
from mvc.store.packs.reader import PACK_HEADER, PACKS, pack_path
from mvc.store.packs.records import (
    CHECK_SIZE,
    PREFIX_SIZE,
    RecordHeader,
    decode_header,
    read_prefix,
)
from mvc.store.store import Store

_RECORDS_AHEAD = 3  # how many records are read ahead
_SMALL_PACK = 1 << 20  # bytes; a pack that is not larger is read in one request
_HEADERS = 4 << 20  # maximum number of bytes of headers in one request
_CACHED_BODIES = 48  # maximum number of small packs whose bodies are cached
_AHEAD_PACKS = 24
_LOADED_TOGETHER = 256

Fetch = Callable[[int, int], bytes]


def read_record(store: Store, header: RecordHeader, skip: int, length: int) -> bytes | None:
    """Reads ``length`` bytes of the record with this header from ``store``, after ``skip`` bytes.

    None if ``store`` lacks the record.
    """
    with suppress(MvcError):  # after an error, the record is read from the bucket
        for step in store.graph.codings(header.members[0].id, header.members[0].start):
            if step.header == header:
                with store.fs.open_read(pack_path(store.folder / PACKS, step.pack)) as file:
                    data = file.read(step.offset + skip, length)
                return data if len(data) == length else None
    return None


class RemotePack(ReadFile):
    """A pack in a bucket. The local file has the headers of its records.

    When complete records are read in sequence, the next records are read ahead.
    """

    def __init__(
        self, headers: ReadFile, fetch: Fetch, ahead: Executor | None, own: Store | None
    ) -> None:
        """``ahead``: executor for reading ahead, or None.

        ``own``: a local repository. Records that it has are not read from the bucket.
        """
        self.path = headers.path
        self.headers = headers
        self._fetch = fetch
        self._pool = ahead
        self._own = own
        self._begins: list[int] = []  # offsets of records, and the end of the last record
        self._ahead: dict[int, Future[bytes]] = {}  # maps offsets to records that are read ahead
        self._last = -2  # number of the record that was read last

    def close(self) -> None:
        self.headers.close()

    def identity(self) -> FileIdentity:
        return self.headers.identity()

    def fileno(self) -> int:
        return self.headers.fileno()

    def read_header(self, offset: int, length: int) -> bytes:
        return self.headers.read(offset, length)

    def ahead(self) -> ReadAhead:
        return _HeadersAhead(self)

    def is_hole(self, offset: int, length: int) -> bool:  # noqa: ARG002
        return False

    def read(self, offset: int, length: int) -> bytes:
        length = max(0, min(length, self.size() - offset))
        if offset + length <= len(PACK_HEADER):
            return self.headers.read(offset, length)
        number = self._number(offset, length)
        if number is None:
            return self._fetch(offset, length)
        begin, end = self._begins[number : number + 2]
        own = self._read_own(begin, offset - begin, length)
        if own is not None:
            return own
        if (offset, offset + length) != (begin, end):
            return self._fetch(offset, length)
        prefetched = self._ahead.pop(begin, None)
        if number != self._last + 1:
            self._ahead.clear()
        elif self._pool is not None:
            for start, stop in pairwise(self._begins[number + 1 : number + 2 + _RECORDS_AHEAD]):
                if start not in self._ahead:
                    self._ahead[start] = self._pool.submit(self._fetch, start, stop - start)
        self._last = number
        return self._fetch(offset, length) if prefetched is None else prefetched.result()

    def read_into(self, offset: int, buffer: memoryview) -> int:
        data = self.read(offset, len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def _number(self, offset: int, length: int) -> int | None:
        """The number of the record that contains ``length`` bytes from ``offset`` on, or None."""
        with suppress(DamagedData):
            if not self._begins:
                self._begins = list(self._find_begins())
            number = bisect_right(self._begins, offset) - 1
            inside = 0 <= number < len(self._begins) - 1
            return number if inside and offset + length <= self._begins[number + 1] else None
        return None

    def _find_begins(self) -> Iterator[int]:
        """The offsets of the records, and the end of the last record."""
        at, size = len(PACK_HEADER), self.size()
        while at + PREFIX_SIZE < size:
            header_size, body_size = self._sizes(at)
            yield at
            at += PREFIX_SIZE + header_size + CHECK_SIZE + body_size
        yield at

    def _sizes(self, begin: int) -> tuple[int, int]:
        prefix = self.headers.read(begin, PREFIX_SIZE)
        return read_prefix(prefix, self.size() - begin, self.path.name)

    def _read_own(self, begin: int, skip: int, length: int) -> bytes | None:
        if self._own is None:
            return None
        with suppress(DamagedData):
            size = PREFIX_SIZE + self._sizes(begin)[0] + CHECK_SIZE
            header = decode_header(self.headers.read(begin, size), self.path.name)
            return read_record(self._own, header, skip, length)
        return None


class _HeadersAhead(ReadAhead):
    """Reads headers in large blocks. Reads bodies as ``RemotePack`` does."""

    def __init__(self, pack: RemotePack) -> None:
        super().__init__(pack.headers)
        self._pack = pack

    def read(self, offset: int, length: int) -> bytes:
        return self._pack.read(offset, length)

    def read_header(self, offset: int, length: int) -> bytes:
        return super().read(offset, length)


class MirrorPacks(FileSystem):
    """The file system of a mirror. The bodies of records in packs are read from the bucket.

    ``known``: maps numbers to packs of the bucket. When a pack is opened, its headers and the
    headers of the next packs are loaded. Small packs are read completely, and are cached. When
    packs are read in sequence, the next packs are read ahead.
    """

    def __init__(
        self, folder: Path, objects: Objects, pool: Executor, own: Store | None = None
    ) -> None:
        """``own``: a local repository. Records that it has are not read from the bucket."""
        self._folder = folder
        self._objects = objects
        self._pool = pool
        self._bodies: OrderedDict[int, Future[bytes]] = OrderedDict()
        self._last, self._run = 0, 0  # the previous pack; how many packs were read in sequence
        self._lock = threading.Lock()
        self.own = own
        self.known: dict[int, PackObject] = {}
        self.lingering = False
        """Whether the bucket has packs that its head does not name.

        These packs may have the data of forgotten states.
        """

    def open_read(self, path: Path, *, follow: bool = True) -> ReadFile:
        pack = self._pack_at(path)
        if pack is None:
            return super().open_read(path, follow=follow)
        if self.stat(path) is None:
            self.load(range(pack.number, pack.number + _LOADED_TOGETHER))
        headers = super().open_read(path, follow=follow)
        ahead = self._pool if pack.size > _SMALL_PACK else None
        return RemotePack(
            headers, lambda at, length: self._fetch(pack, at, length), ahead, self.own
        )

    def _pack_at(self, path: Path) -> PackObject | None:
        stem = path.name.partition(".")[0]
        if path.parent != self._folder or not (stem.isascii() and stem.isdigit()):
            return None
        return self.known.get(int(stem))

    # -- headers -------------------------------------------------------------------------

    def load(self, numbers: Iterable[int]) -> None:
        """Creates the missing local files of packs.

        If few are missing, the bodies of small packs are read in the same request.
        """
        packs = (self.known[number] for number in numbers if number in self.known)
        absent = [p for p in packs if self.stat(pack_path(self._folder, p.number)) is None]
        few = len(absent) <= _CACHED_BODIES
        for _ in self._pool.map(lambda pack: self._load(pack, body=few), absent):
            pass

    def _load(self, pack: PackObject, *, body: bool) -> None:
        if body and pack.size <= _SMALL_PACK:
            data = self._read(pack, 0, pack.size + pack.headers)
            self._cache(pack.number, _done(data[: pack.size]))
            parts = iter((data[pack.size :],))
        else:
            parts = self._headers(pack)
        self.write_headers(pack, decode_headers(parts, pack, self._objects.url))

    def _headers(self, pack: PackObject) -> Iterator[bytes]:
        """Reads the headers of a pack in parts. In the bucket, the headers follow the records."""
        for at in range(0, pack.headers, _HEADERS):
            yield self._read(pack, pack.size + at, min(_HEADERS, pack.headers - at))

    def write_headers(self, pack: PackObject, headers: Iterable[tuple[int, bytes]]) -> None:
        """Creates the local file of a pack: headers at their offsets, holes instead of bodies."""

        def fill(file: WriteFile) -> None:
            file.write_at(0, PACK_HEADER)
            for offset, header in headers:
                file.write_at(offset, header)
            file.truncate(pack.size)

        path = pack_path(self._folder, pack.number)
        self.replace_file(path, fill, mode=None, durable=False)

    # -- bodies --------------------------------------------------------------------------

    def _fetch(self, pack: PackObject, start: int, length: int) -> bytes:
        if pack.size > _SMALL_PACK:
            return self._read(pack, start, length)
        for number in self._ahead(pack):
            if number in self.known and self.known[number].size <= _SMALL_PACK:
                self._body(self.known[number])
        return self._body(pack).result()[start : start + length]

    def _ahead(self, pack: PackObject) -> range:
        """The numbers of the packs to read ahead: more, the more packs were read in sequence."""
        with self._lock:
            if pack.number != self._last:
                self._run = self._run + 1 if pack.number == self._last + 1 else 0
                self._last = pack.number
            return range(pack.number + 1, pack.number + 1 + min(2 * self._run, _AHEAD_PACKS))

    def _body(self, pack: PackObject) -> Future[bytes]:
        with self._lock:
            body = self._bodies.get(pack.number)
        if body is None:
            body = self._pool.submit(self._read, pack, 0, pack.size)
            self._cache(pack.number, body)
        return body

    def _cache(self, number: int, body: Future[bytes]) -> None:
        with self._lock:
            self._bodies[number] = body
            while len(self._bodies) > _CACHED_BODIES:
                self._bodies.popitem(last=False)

    def _read(self, pack: PackObject, start: int, length: int) -> bytes:
        data = self._objects.read_range(pack.name, start, length)
        if data is None:
            raise RemoteUnreachable(
                f"{pack.name} was deleted from {self._objects.url}",
                hint="gc may have deleted the pack during this command: repeat the command",
            )
        if len(data) != length:
            raise DamagedData(f"{pack.name} of {self._objects.url} is truncated")
        return data

    def forget(self) -> None:
        with self._lock:
            self._bodies.clear()
        self.known.clear()


def _done(data: bytes) -> Future[bytes]:
    future: Future[bytes] = Future()
    future.set_result(data)
    return future
