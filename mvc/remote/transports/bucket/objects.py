"""A store of objects by name: what a bucket asks of S3 and the like, or of a folder.

Every operation either has its effect or raises RemoteUnreachable, after which it may have had it
or not. An object that was written is read by everybody from then on, whole. Only ``swap`` decides
between writers: of several that saw one version, one succeeds.
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
_KEPT_SWAPS = 16
_KEPT_NS = 24 * 3600 * 10**9
_TRIES = 20
_LONGEST = 1 << 20  # bytes of an object that is swapped


class StoredObject(Struct, frozen=True):
    """An object of the store. ``time_ns``: when it was written, by the store's clock."""

    name: str
    size: int
    time_ns: int


class Versioned(Struct, frozen=True):
    """The content of an object that is swapped, and the store's name for this version of it."""

    data: bytes
    version: str


class Objects(Protocol):
    """Names are relative paths of lower-case ASCII. Raises RemoteUnreachable, RemoteRefused."""

    url: str

    def read(self, name: str, limit: int) -> bytes | None:
        """All of an object; None if there is none. RemoteRefused if it is longer than ``limit``."""

    def read_range(self, name: str, start: int, length: int) -> bytes | None:
        """So many bytes of an object, fewer where it ends; None if there is none."""

    def write(self, name: str, parts: Iterable[Bytes], size: int) -> None:
        """Makes the parts, ``size`` bytes together, the content of an object."""

    def look(self, name: str, limit: int, known: str = "") -> Versioned | None:
        """An object that is swapped; ``known`` again, without content, if it is still that."""

    def swap(self, name: str, data: bytes, known: str) -> str | None:
        """Replaces the version ``known`` ("": there is none) and names the new one.

        None if another version is there by now.
        """

    def list(self, prefix: str) -> Iterator[StoredObject]:
        """The objects whose names begin so; none that are swapped."""

    def delete(self, names: Sequence[str]) -> None:
        """Deletes objects, swapped ones with all versions; one that is gone does no harm."""

    def now_ns(self) -> int:
        """The store's own clock, which gives objects their times; it may write an object."""

    def close(self) -> None:
        """Lets go of the store, where there is anything to let go of."""
        return


class FolderObjects(Objects):
    """Objects as files of a folder that several hosts may share.

    A swapped object is a folder of numbered files. A version is the number of the newest and the
    hash of its content: neither time, inode nor size of a file tells two apart everywhere. The
    next one is written under another name and gets its number by ``link``, which fails where the
    number is taken. Old numbers are deleted from the lowest up, but the first; so a number is free
    only if nobody ever had it, provided that the one before it is still there.
    """

    def __init__(self, fs: FileSystem, folder: Path) -> None:
        self.url = f"bucket:{folder}"
        self._fs = fs
        self._folder = folder

    def check_there(self) -> None:
        """RemoteUnreachable if there is no folder: it is never made, a mount may be missing."""
        identity = self._fs.stat(self._folder)
        if identity is None or not identity.is_dir:
            raise RemoteUnreachable(
                f"there is no folder {self._folder}",
                hint="mount it; a new bucket begins with an empty folder that you make",
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
        self.check_there()
        path = self._folder / name

        def fill(file: WriteFile) -> None:
            for part in parts:
                file.write(part)

        with _reaching(self.url):
            self._fs.make_dirs(path.parent, within=self._folder)
            self._fs.replace_file(path, fill, mode=None, durable=True, within=self._folder)

    def look(self, name: str, limit: int, known: str = "") -> Versioned | None:
        self.check_there()
        with _reaching(self.url):
            for _ in range(_TRIES):
                numbers = self._numbers(name)
                if not numbers:
                    return None
                data = self._read(self._numbered(name, numbers[-1]), limit)
                if data is not None:  # else many newer ones were made meanwhile
                    version = _version(numbers[-1], data)
                    return Versioned(b"" if version == known else data, version)
        raise RemoteUnreachable(f"{self.url} changes all the time: {name} cannot be read")

    def swap(self, name: str, data: bytes, known: str) -> str | None:
        self.check_there()
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
                self._fs.unlink(mine, missing_ok=True)  # it was deleted, and so was what followed
                return None
            self._fs.sync_dir(folder)
            self._tidy(name)
        return _version(before + 1, data)

    def _version(self, name: str, number: int) -> str:
        """What has this number now; by its content, since a network folder remembers names."""
        data = self._read(self._numbered(name, number), _LONGEST)
        return "" if data is None else _version(number, data)

    def _link(self, temporary: Path, path: Path) -> bool:
        try:
            self._fs.link(temporary, path)
        except FileExistsError:
            return False
        except IoFailed as error:
            raise RemoteRefused(
                f"{self.url} cannot be a bucket: its file system makes no hard links",
                hint="share the folder by ssh or 'mvc serve', or use a bucket of S3",
            ) from error
        return True

    def _tidy(self, name: str) -> None:
        """Deletes versions that are neither recent nor the first; a failure is left for later."""
        with suppress(MvcError):
            numbers = self._numbers(name)
            newest = self._fs.stat(self._numbered(name, numbers[-1]))
            for number in numbers[1:-_KEPT_SWAPS]:
                path = self._numbered(name, number)
                identity = self._fs.stat(path)
                if (
                    newest is None
                    or identity is None
                    or newest.mtime_ns - identity.mtime_ns < _KEPT_NS
                ):
                    return
                self._fs.unlink(path, missing_ok=True)

    def _numbers(self, name: str) -> list[int]:
        folder = self._folder / name
        if self._fs.stat(folder) is None:
            return []
        names = self._fs.list(folder)
        return [int(n) for n in names if len(n) == _DIGITS and n.isascii() and n.isdigit()]

    def _numbered(self, name: str, number: int) -> Path:
        return self._folder / name / f"{number:0{_DIGITS}d}"

    def list(self, prefix: str) -> Iterator[StoredObject]:
        folder, _, start = prefix.rpartition("/")
        with _reaching(self.url):
            path = self._folder / folder
            there = self._fs.stat(path, follow=not folder)
            names = self._fs.list(path) if there is not None and there.is_dir else []
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
            raise RemoteUnreachable(f"{self.url} lost what was just written")
        return identity.mtime_ns


def open_objects(remote: Remote) -> FolderObjects:
    """The store in the folder of a ``bucket:`` URL."""
    return FolderObjects(FileSystem(), Path(remote.url.removeprefix("bucket:")))


CLOCK = "clock"
"""An empty object whose time is the store's present one."""


def too_long(url: str, name: str, limit: int) -> RemoteRefused:
    """An object of the bucket is longer than any of its kind."""
    return RemoteRefused(f"{url} is no bucket of mvc: {name} has more than {limit} bytes")


def _version(number: int, data: bytes) -> str:
    return f"{number}-{blake3(data).hexdigest(16)}"


@contextmanager
def _reaching(url: str) -> Iterator[None]:
    """The system's errors as what they are for a remote: it cannot be reached now."""
    try:
        yield
    except (StorageFull, ReadOnly):
        raise
    except FileExistsError as error:
        raise RemoteRefused(
            f"{url} is no bucket of mvc: one of its folders is a link or a file",
            hint="look at it, and put the folder back in its place",
        ) from error
    except IoFailed as error:
        raise RemoteUnreachable(f"{url}: {error.message}", hint=error.hint) from error


def check_conditions(objects: Objects) -> None:
    """Raises RemoteRefused unless a second creation and a stale swap of an object fail.

    Some stores take such conditions and do not keep them; two pushes at once would lose one.
    """
    name = f"probe-{os.urandom(8).hex()}"
    try:
        first = objects.swap(name, b"first", "")
        again = objects.swap(name, b"second", "")
        second = first and objects.swap(name, b"third", first)
        stale = first and objects.swap(name, b"fourth", first)
        found = objects.look(name, 100)
    finally:
        with suppress(MvcError):
            objects.delete([name])
    if again or stale or not second or found is None or found.data != b"third":
        raise RemoteRefused(
            f"{objects.url} cannot be a remote: what is written on a condition is written without "
            "it, or not at all",
            hint="a store must keep If-Match and If-None-Match on PUT; see docs/guides/buckets.md",
        )
