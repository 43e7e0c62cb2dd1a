"""Slices that are on their way in: kept in ``.mvc/uploads`` until they are whole.

Each is a file; its answer stands beside it for those who did not get it. What nobody went on with
for ten minutes is deleted.
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

HELD = 600.0
"""Seconds for which an unfinished upload is kept."""
_FOLDER = "uploads"
_ANSWER = ".answer"
_ID = re.compile(r"[0-9a-f]{32}")
_LONGEST = 1 << 24
_LONGEST_REPORT = 1 << 18
_SECOND = 1_000_000_000


class InUse(Exception):
    """Another request brings bytes of this upload."""


class Uploads:
    """Those of one repository."""

    def __init__(self, fs: FileSystem, folder: Path) -> None:
        self._fs, self._folder = fs, folder / _FOLDER

    def find(self, id_: str) -> Upload:
        """The upload of this id. Raises RemoteRefused for what is none."""
        if _ID.fullmatch(id_) is None:
            raise RemoteRefused("this is no name of an upload")
        return Upload(self._fs, self._folder / id_)

    def clear(self, now: Callable[[], float] = time.time) -> None:
        if self._fs.stat(self._folder) is None:
            return
        oldest = (now() - HELD) * _SECOND
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
    """One slice on its way in."""

    def __init__(self, fs: FileSystem, path: Path) -> None:
        self.id = path.name
        self._fs, self._path = fs, path
        self._answer = path.with_name(path.name + _ANSWER)

    @property
    def size(self) -> int:
        facts = self._fs.stat(self._path, follow=False)
        return 0 if facts is None else facts.size

    def left(self) -> int:
        """Bytes that are still to come, by what it begins with. Raises DamagedData."""
        with self._fs.open_read(self._path, follow=False) as file:
            size, whole = file.size(), slices.whole_size(file.read(0, 64))
        if whole is not None and size > whole:
            raise DamagedData("an upload goes on after its end")
        return 0 if whole is None else whole - size

    def settled_size(self) -> int:
        """``size``. Raises InUse where a request may still bring some: its bytes are in memory."""
        if self._fs.stat(self._path, follow=False) is not None:
            self.lock().release()
        return self.size

    def lock(self) -> FileLock:
        """Keeps other requests away until it is released. Raises InUse."""
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
        """Takes bytes from ``at`` on; what arrived stays whatever happens.

        Raises InUse where a request whose connection broke has brought some since the client
        asked: it asks again.
        """
        with self._fs.open_write(self._path, create=True) as file:
            if file.position != at:
                raise InUse
            yield lambda data: file.write((data,))

    def publish(self, receive: Callable[[Slice], Received]) -> Received:
        """Hands over the slice that was uploaded; the upload goes, its answer stays a while."""
        with self._opened() as given:
            received = receive(given)
        self._fs.write_atomic(self._answer, wire.encode(received), mode=0o600)
        return received

    def reports(self) -> tuple[NodeReport, ...] | None:
        """What nodes report with it, in as few words as they use; None if it brings more."""
        if self.size > _LONGEST_REPORT:
            return None
        with self._opened() as given:
            for _ in given.records:  # compares the checksum
                pass
            if given.size or given.moves or given.features:
                return None
            entries = decode_entries(given.head)
        found = tuple(report for each in entries for report in each.reports)
        is_all = all(each == Sent(reports=each.reports) for each in entries)
        return found if found and is_all else None

    @contextmanager
    def _opened(self) -> Iterator[Slice]:
        with self._fs.open_read(self._path, follow=False) as file:
            at = 0

            def source(size: int) -> Bytes:
                nonlocal at
                data = file.read(at, size)
                at += len(data)
                return data

            given = slices.read(source)
            if given is None:
                raise RemoteRefused("an upload is empty")
            yield given

    def delete(self) -> None:
        with suppress(MvcError):
            self._fs.unlink(self._path, missing_ok=True)
