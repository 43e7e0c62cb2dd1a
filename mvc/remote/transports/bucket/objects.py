"""Object stores: reading and writing the objects of a bucket, in a store such as S3 or in a folder.

A bucket is a remote without a server. Readers see a new object with all its bytes or not at all.
``swap`` replaces an object only if the object still has the version that the caller names. So if
several writers replace the same version, only one writer succeeds. An operation that raises
RemoteUnreachable may nevertheless have changed the store.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Protocol

from blake3 import blake3
from msgspec import Struct

from mvc.errors import IoFailed, MvcError, ReadOnly, RemoteRefused, RemoteUnreachable, StorageFull
from mvc.io.files import TEMPORARY, FileSystem, WriteFile
from mvc.io.os_errors import was_missing
from mvc.remote.remotes import Remote
from mvc.types import Bytes

_DIGITS = 20
_RECENT_SWAPS = 16
_RECENT_NS = 24 * 3600 * 10**9
_TRIES = 20
_LONGEST = 1 << 20  # maximum number of bytes of an object that ``swap`` changes


class StoredObject(Struct, frozen=True):
    """A stored object. ``time_ns``: the time of writing, by the clock of the store."""

    name: str
    size: int
    time_ns: int


class Versioned(Struct, frozen=True):
    """The content of an object that ``swap`` changes, and the id of this version of the object."""

    data: bytes
    version: str


class Objects(Protocol):
    """An object store. Names are relative paths in lower-case ASCII.

    All methods raise RemoteUnreachable and RemoteRefused.
    """

    url: str

    def read(self, name: str, limit: int) -> bytes | None:
        """All bytes of an object. None if the object is missing.

        Raises RemoteRefused if the object has more than ``limit`` bytes.
        """

    def read_range(self, name: str, start: int, length: int) -> bytes | None:
        """``length`` bytes of an object, or fewer at its end. None if the object is missing."""

    def write(self, name: str, parts: Iterable[Bytes], size: int) -> None:
        """Stores the parts as one object of ``size`` bytes."""

    def read_version(self, name: str, limit: int, known: str = "") -> Versioned | None:
        """Reads an object that ``swap`` changes. None if the object is missing.

        If the object still has the version ``known``, the returned content is empty.
        """

    def swap(self, name: str, data: bytes, known: str) -> str | None:
        """Replaces the version ``known`` of an object, and returns the id of the new version.

        If the object has another version, changes nothing and returns None. If ``known`` is empty,
        creates the object, or returns None if the object exists.
        """

    def list(self, prefix: str) -> Iterator[StoredObject]:
        """The objects whose names have this prefix, except objects that ``swap`` changes."""

    def delete(self, names: Sequence[str]) -> None:
        """Deletes objects with all their versions. Ignores missing objects."""

    def now_ns(self) -> int:
        """The time by the clock of the store. May write an object to read this clock."""


class FolderObjects(Objects):
    """Objects as files of a folder that several hosts may share.

    An object that ``swap`` changes is a folder with a numbered file for each version. The id of a
    version is the number and the hash of its file. The file of a new version is written under a
    temporary name, and gets its number by ``link``, which fails if the number is in use. Files of
    old versions are deleted in ascending order. So if the file of a version exists unchanged, the
    number after it was never deleted. The first file is emptied instead, so that no client can
    create the object again, or replace its first version.
    """

    def __init__(self, fs: FileSystem, folder: Path) -> None:
        self.url = f"bucket:{folder}"
        self._fs = fs
        self._folder = folder

    def check_folder(self) -> None:
        """Raises RemoteUnreachable if the folder is missing.

        A missing folder is not created, because its file system may not be mounted.
        """
        identity = self._fs.stat(self._folder)
        if identity is None or not identity.is_dir:
            raise RemoteUnreachable(
                f"there is no folder {self._folder}",
                hint="mount it; for a new bucket create an empty folder",
            )

    def read(self, name: str, limit: int) -> bytes | None:
        with _reaching(self.url):
            return self._read(self._folder / name, limit)

    def _read(self, path: Path, limit: int) -> bytes | None:
        data = self._part(path, 0, limit + 1)
        if data is not None and len(data) > limit:
            raise too_long(self.url, path.name, limit)
        return data

    def read_range(self, name: str, start: int, length: int) -> bytes | None:
        with _reaching(self.url):
            return self._part(self._folder / name, start, length)

    def _part(self, path: Path, start: int, length: int) -> bytes | None:
        try:
            with self._fs.open_read(path, follow=False) as file:
                return file.read(start, length)
        except IoFailed as error:
            if was_missing(error):
                return None
            raise

    def write(self, name: str, parts: Iterable[Bytes], size: int) -> None:  # noqa: ARG002
        self.check_folder()
        path = self._folder / name

        def fill(file: WriteFile) -> None:
            for part in parts:
                file.write(part)

        with _reaching(self.url):
            self._fs.make_dirs(path.parent, within=self._folder)
            self._fs.replace_file(path, fill, mode=None, durable=True, within=self._folder)

    def read_version(self, name: str, limit: int, known: str = "") -> Versioned | None:
        self.check_folder()
        with _reaching(self.url):
            for _ in range(_TRIES):
                numbers = self._numbers(name)
                if not numbers:
                    return None
                data = self._read(self._numbered(name, numbers[-1]), limit)
                if data is not None:  # None: the file was deleted meanwhile
                    version = _version(numbers[-1], data)
                    return Versioned(b"" if version == known else data, version)
        raise RemoteUnreachable(f"{self.url} changes continuously: {name} cannot be read")

    def swap(self, name: str, data: bytes, known: str) -> str | None:
        self.check_folder()
        before = int(known.partition("-")[0] or 0)
        folder = self._folder / name
        mine = self._numbered(name, before + 1)
        temporary = folder / f"{TEMPORARY}{os.urandom(8).hex()}"
        with _reaching(self.url):
            self._fs.make_dirs(folder, within=self._folder)
            try:
                self._fs.write_beside(
                    mine, temporary.name, lambda file: file.write(data), within=self._folder
                )
                if not self._link(temporary, mine):
                    return None
            finally:
                with suppress(MvcError):
                    self._fs.unlink(temporary, missing_ok=True)
            if before and self._version(name, before) != known:
                self._fs.unlink(mine, missing_ok=True)  # version ``known`` was deleted meanwhile
                return None
            self._fs.sync_dir(folder)
            self._tidy(name)
        return _version(before + 1, data)

    def _version(self, name: str, number: int) -> str:
        """The id of the version with this number; empty if its file is missing.

        Reads the file, because a network file system may cache the names in a folder.
        """
        data = self._read(self._numbered(name, number), _LONGEST)
        return "" if data is None else _version(number, data)

    def _link(self, temporary: Path, path: Path) -> bool:
        try:
            self._fs.link(temporary, path)
        except FileExistsError:
            return False
        except IoFailed as error:
            raise RemoteRefused(
                f"{self.url} cannot be a bucket: its file system has no hard links",
                hint="share a repository over ssh or 'mvc serve', or use an S3 bucket",
            ) from error
        return True

    def _tidy(self, name: str) -> None:
        """Deletes old versions, but only empties the file of the first. Ignores errors."""
        with suppress(MvcError):
            numbers = self._numbers(name)
            newest = self._fs.stat(self._numbered(name, numbers[-1]))
            for number in numbers[1:-_RECENT_SWAPS]:
                path = self._numbered(name, number)
                identity = self._fs.stat(path)
                if (
                    newest is None
                    or identity is None
                    or newest.mtime_ns - identity.mtime_ns < _RECENT_NS
                ):
                    return
                if number == 2:
                    first = self._numbered(name, 1)
                    self._fs.replace_file(first, lambda _: None, mode=None, durable=True)
                self._fs.unlink(path, missing_ok=True)

    def _numbers(self, name: str) -> list[int]:
        folder = self._folder / name
        if self._fs.stat(folder) is None:
            return []
        return [
            int(name)
            for name in self._fs.list(folder)
            if len(name) == _DIGITS and name.isascii() and name.isdigit()
        ]

    def _numbered(self, name: str, number: int) -> Path:
        return self._folder / name / f"{number:0{_DIGITS}d}"

    def list(self, prefix: str) -> Iterator[StoredObject]:
        folder, _, start = prefix.rpartition("/")
        with _reaching(self.url):
            path = self._folder / folder
            facts = self._fs.stat(path, follow=not folder)
            names = self._fs.list(path) if facts is not None and facts.is_dir else []
            for name in names:
                identity = self._fs.stat(path / name, follow=False)
                if name.startswith(start) and identity is not None and identity.is_file:
                    yield StoredObject(f"{folder}/{name}", identity.size, identity.mtime_ns)

    def delete(self, names: Sequence[str]) -> None:
        with _reaching(self.url):
            for name in names:
                path = self._folder / name
                identity = self._fs.stat(path, follow=False)
                if identity is not None and identity.is_dir:
                    self._fs.remove_tree(path)
                else:
                    self._fs.unlink(path, missing_ok=True, within=self._folder)

    def now_ns(self) -> int:
        self.write(CLOCK, [b""], 0)
        identity = self._fs.stat(self._folder / CLOCK)
        if identity is None:
            raise RemoteUnreachable(f"{self.url} lost a file that was just written")
        return identity.mtime_ns


def open_objects(remote: Remote) -> FolderObjects:
    """The object store in the folder of a ``bucket:`` URL."""
    return FolderObjects(FileSystem(), Path(remote.url.removeprefix("bucket:")))


CLOCK = "clock"
"""Name of an empty object that is written to read the store's clock."""


def too_long(url: str, name: str, limit: int) -> RemoteRefused:
    """The error for an object that exceeds its size limit."""
    return RemoteRefused(f"{url} is not an mvc bucket: {name} has more than {limit} bytes")


def _version(number: int, data: bytes) -> str:
    return f"{number}-{blake3(data).hexdigest(16)}"


@contextmanager
def _reaching(url: str) -> Iterator[None]:
    """Converts errors of the file system into RemoteRefused and RemoteUnreachable.

    StorageFull and ReadOnly are raised unchanged.
    """
    try:
        yield
    except (StorageFull, ReadOnly):
        raise
    except FileExistsError as error:
        raise RemoteRefused(
            f"{url} is not an mvc bucket: one of its folders is a link or a file",
            hint="replace the link or file by the original folder",
        ) from error
    except IoFailed as error:
        raise RemoteUnreachable(f"{url}: {error.message}", hint=error.hint) from error


def check_conditions(objects: Objects) -> None:
    """Raises RemoteRefused if the store ignores the conditions of ``swap``.

    With such a store, one of two concurrent pushes could be lost.
    """
    name = f"probe-{os.urandom(8).hex()}"
    try:
        first = objects.swap(name, b"first", "")
        recreated = objects.swap(name, b"second", "")
        second = first and objects.swap(name, b"third", first)
        stale = first and objects.swap(name, b"fourth", first)
        final = objects.read_version(name, 100)
    finally:
        with suppress(MvcError):
            objects.delete([name])
    if recreated or stale or not second or final is None or final.data != b"third":
        raise RemoteRefused(
            f"{objects.url} cannot be a remote: its store does not support conditional writes",
            hint="a store must honour If-Match and If-None-Match on PUT; see "
            "docs/guides/buckets.md",
        )
