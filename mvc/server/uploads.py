"""Stores uploads of clients that push to this server, until each upload is complete.

A client sends a push in parts, called *slices*. Each slice is one upload, a file in
``.mvc/uploads``. When an upload is complete, a second file stores the server's answer. So a client
whose connection broke can ask for the answer again. Uploads without progress for ten minutes are
deleted.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from mvc.errors import DamagedData, MvcError, RemoteRefused
from mvc.system import FileLock, FileSystem
from mvc.transport import NodeReport, Received, Sent, Slice, decode_entries, slices, wire
from mvc.types import Bytes

RETAINED = 600.0
"""Seconds for which an unfinished upload is retained."""
_FOLDER = "uploads"
_ANSWER = ".answer"
_ID = re.compile(r"[0-9a-f]{32}")
_LONGEST = 1 << 24
_LONGEST_REPORT = 1 << 18
_SECOND = 1_000_000_000


class InUse(Exception):
    """Another request writes this upload."""


class Uploads:
    """The uploads of one repository."""

    def __init__(self, fs: FileSystem, folder: Path) -> None:
        self._fs, self._folder = fs, folder / _FOLDER

    def find(self, id_: str) -> Upload:
        """The upload with this id. Raises RemoteRefused for an invalid id."""
        if _ID.fullmatch(id_) is None:
            raise RemoteRefused("this is not an upload id")
        return Upload(self._fs, self._folder / id_)

    def clear(self, now: Callable[[], float] = time.time) -> None:
        if self._fs.stat(self._folder) is None:
            return
        oldest = (now() - RETAINED) * _SECOND
        for name in self._fs.list(self._folder):
            if _ID.fullmatch(name.removesuffix(_ANSWER)) is None:
                continue
            path = self._folder / name
            with suppress(MvcError):
                facts = self._fs.stat(path, follow=False)
                if facts is not None and facts.mtime_ns < oldest:
                    lock = self._fs.lock(path, block=False)
                    if lock is not None:
                        with lock:
                            self._fs.unlink(path, missing_ok=True)


class Upload:
    """One slice that is being uploaded."""

    def __init__(self, fs: FileSystem, path: Path) -> None:
        self.id = path.name
        self._fs, self._path = fs, path
        self._answer = path.with_name(path.name + _ANSWER)

    @property
    def size(self) -> int:
        facts = self._fs.stat(self._path, follow=False)
        return 0 if facts is None else facts.size

    def left(self) -> int:
        """The number of missing bytes. Raises DamagedData if the upload has too many bytes.

        The first bytes of a slice contain the size of the whole slice.
        """
        with self._fs.open_read(self._path, follow=False) as file:
            size, whole = file.size(), slices.whole_size(file.read(0, 64))
        if whole is not None and size > whole:
            raise DamagedData("an upload has bytes after its end")
        return 0 if whole is None else whole - size

    def settled_size(self) -> int:
        """The number of stored bytes. Raises InUse if a running request may store more bytes."""
        if self._fs.stat(self._path, follow=False) is not None:
            self.lock().release()
        return self.size

    def lock(self) -> FileLock:
        """Locks the upload for this request. Raises InUse if another request has the lock."""
        self._fs.make_dirs(self._path.parent)
        lock = self._fs.lock(self._path, block=False)
        if lock is None:
            raise InUse
        return lock

    def answer(self) -> Received | None:
        if self._fs.stat(self._answer) is None:
            return None
        return wire.decode(Received, self._fs.read_bytes(self._answer, _LONGEST))

    @contextmanager
    def appending(self, at: int) -> Iterator[Callable[[Bytes], None]]:
        """Yields a function that writes bytes from ``at`` on.

        If the ``with`` block fails, the written bytes are not deleted.

        Raises InUse if the file does not end at ``at``, because another request has written bytes
        meanwhile. The client then asks for the size again.
        """
        with self._fs.open_write(self._path, create=True) as file:
            if file.position != at:
                raise InUse
            yield lambda data: file.write((data,))

    def publish(self, receive: Callable[[Slice], Received]) -> Received:
        """Passes the uploaded slice to ``receive``. Stores and returns the answer."""
        with self._opened() as uploaded:
            received = receive(uploaded)
        self._fs.write_atomic(self._answer, wire.encode(received), mode=0o600)
        return received

    def reports(self) -> tuple[NodeReport, ...] | None:
        """The reports of nodes (machines that serve a model) in the upload.

        None if the upload contains anything else.
        """
        if self.size > _LONGEST_REPORT:
            return None
        with self._opened() as uploaded:
            for _ in uploaded.records:  # reading to the end compares the checksum
                pass
            if uploaded.size or uploaded.moves or uploaded.features:
                return None
            entries = decode_entries(uploaded.head)
        reports = tuple(report for entry in entries for report in entry.reports)
        is_all = all(entry == Sent(reports=entry.reports) for entry in entries)
        return reports if reports and is_all else None

    @contextmanager
    def _opened(self) -> Iterator[Slice]:
        with self._fs.open_read(self._path, follow=False) as file:
            at = 0

            def source(size: int) -> Bytes:
                nonlocal at
                data = file.read(at, size)
                at += len(data)
                return data

            uploaded = slices.read(source)
            if uploaded is None:
                raise RemoteRefused("an upload is empty")
            yield uploaded

    def delete(self) -> None:
        with suppress(MvcError):
            self._fs.unlink(self._path, missing_ok=True)
