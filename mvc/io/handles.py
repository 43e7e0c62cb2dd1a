"""Open files, for reading and for writing, with complete transfers and mvc's errors.

A write transfers all bytes or raises an error. A read transfers fewer bytes than requested only at
the end of the file. Every read states its offset, so several threads can read one open file. Each
system call has its own small method, such as ``_read``. Tests replace these methods.
"""

from __future__ import annotations

import errno
import mmap
import os
import stat
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Self

from msgspec import Struct
from msgspec.structs import replace

from mvc.errors import WrongUsage
from mvc.io import mounts
from mvc.io.os_errors import sync_failure, translate
from mvc.types import Bytes, Closing

MOST = 1 << 30
"""Maximum number of bytes of one read or write call. The limit of the systems is nearly 2 GiB."""

VECTORS = 1024
"""Maximum number of buffers in one write call: IOV_MAX on Linux and macOS."""

PAGE = 4096
"""File offset, memory address and length of a direct write must be multiples of this number."""

LARGE = 1 << 20
"""Minimum size of a direct write (a write that bypasses the page cache).

Also the minimum size of a read that skips holes (unwritten ranges of a sparse file).
"""

_SMALL = 1 << 16
_BEHIND = 8 << 20  # written bytes after which write-back is started
_BLOCK = 512  # bytes that st_blocks counts
_DATA, _HOLE = getattr(os, "SEEK_DATA", -1), getattr(os, "SEEK_HOLE", -1)  # -1 causes EINVAL
_NAMES_HOLES = frozenset({"ext4", "xfs", "btrfs", "tmpfs", "f2fs"})
_ZEROS = memoryview(bytes(LARGE))
O_DIRECT = getattr(os, "O_DIRECT", 0)  # not on macOS
_REFUSED = frozenset({errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP})


def aligned(size: int) -> memoryview:
    """New memory of zeros, aligned to PAGE."""
    # Private, because shared memory gets no huge pages.
    room = mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):  # a kernel without huge pages
            room.madvise(mmap.MADV_HUGEPAGE)
    return memoryview(room)


class FileIdentity(Struct, frozen=True):
    """Properties of a file that show whether it has changed. Times are in ns since 1970."""

    size: int
    mtime_ns: int
    ctime_ns: int
    inode: int
    device: int
    mode: int
    owner: int
    links: int = 1

    @classmethod
    def of(cls, s: os.stat_result) -> Self:
        return cls(
            s.st_size,
            s.st_mtime_ns,
            s.st_ctime_ns,
            s.st_ino,
            device=s.st_dev,
            mode=s.st_mode,
            owner=s.st_uid,
            links=s.st_nlink,
        )

    @property
    def is_dir(self) -> bool:
        return stat.S_ISDIR(self.mode)

    @property
    def is_file(self) -> bool:
        return stat.S_ISREG(self.mode)

    @property
    def is_symlink(self) -> bool:
        return stat.S_ISLNK(self.mode)

    @property
    def permissions(self) -> int:
        """Read, write and execute bits of owner, group and others; no set-uid bits."""
        return self.mode & 0o777


class _Handle(Closing):
    """The common base of ``ReadFile`` and ``WriteFile``; usable as a context manager."""

    _fd = -1

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self._fd = descriptor

    def __del__(self) -> None:
        self.close()

    def close(self) -> None:
        """Closes the file without flushing it. A second call has no effect."""
        descriptor, self._fd = self._fd, -1
        if descriptor >= 0:
            with translate(self.path, "close"):
                os.close(descriptor)

    def size(self) -> int:
        """The current size of the file in bytes."""
        return self.identity().size

    def fileno(self) -> int:
        """The descriptor, for callers that flush the file themselves; -1 after ``close``."""
        return self._fd

    def identity(self) -> FileIdentity:
        """The identity of the open file, even if the file was renamed or replaced at its path."""
        with translate(self.path, "inspect"):
            return self._stat()

    def read(self, offset: int, length: int) -> bytes:
        """``length`` bytes at ``offset``, or fewer at the end of the file."""
        if length > _SMALL:  # a wrong length from damaged data must not allocate much memory
            length = max(0, min(length, self.size() - offset))
        with translate(self.path, "read"):
            data = self._call_read(offset, length)
            if len(data) == length or not data:
                return data
            parts = [data]
            done = len(data)
            while done < length and (data := self._call_read(offset + done, length - done)):
                parts.append(data)
                done += len(data)
        return b"".join(parts)

    def _call_read(self, offset: int, length: int) -> bytes:
        while True:
            try:
                return self._read(offset, min(length, MOST))
            except InterruptedError:
                continue

    def _read(self, offset: int, length: int) -> bytes:
        return os.pread(self._fd, length, offset)

    def _stat(self) -> FileIdentity:
        return FileIdentity.of(os.fstat(self._fd))


class ReadFile(_Handle):
    """A regular file open for reading at any offset, from any thread.

    Large reads skip holes (unwritten ranges of a sparse file), and fill these parts of the buffer
    with zeros. Holes are skipped only on file systems that are known to report holes correctly.
    OpenZFS, for example, has reported written data as a hole (openzfs/zfs issue 15526).
    """

    _sparse: bool | None = None

    def read_header(self, offset: int, length: int) -> bytes:
        """The same as ``read``, for headers of records. Tests replace this method."""
        return self.read(offset, length)

    def ahead(self) -> ReadAhead:
        """A reader for one pass over the file, by one thread."""
        return ReadAhead(self)

    def read_into(self, offset: int, buffer: memoryview) -> int:
        """Reads from ``offset`` on into ``buffer`` (contiguous, writable).

        Returns the number of bytes. Fills ``buffer`` completely unless the file ends before.
        """
        view = _flat(buffer)
        if len(view) < LARGE or not self._is_sparse():
            return self._read_all(offset, view)
        end = min(offset + len(view), self.size())
        at = offset
        while at < end:
            data = min(self._seek(at, _DATA), end)
            _fill_zeros(view[at - offset : data - offset])
            at = min(self._seek(data, _HOLE), end) if data < end else end
            count = self._read_all(data, view[data - offset : at - offset])
            if count < at - data:
                return data - offset + count
        return max(0, end - offset)

    def is_hole(self, offset: int, length: int) -> bool:
        """Whether a range is certainly a hole, so that its bytes are zero.

        Always False for a range below 1 MiB.
        """
        end = offset + length
        if length < LARGE or not self._is_sparse() or end > self.size():
            return False
        return self._seek(offset, _DATA) >= end

    def _is_sparse(self) -> bool:
        """Whether the file has holes, on a file system that reports them correctly."""
        if self._sparse is None:
            try:
                status = os.fstat(self._fd)
            except OSError:  # a test double without a descriptor
                self._sparse = False
            else:
                holes = status.st_blocks * _BLOCK < status.st_size
                self._sparse = holes and mounts.type_of(self.path) in _NAMES_HOLES
        return self._sparse

    def _seek(self, offset: int, whence: int) -> int:
        """Offset of the next data or hole; ``sys.maxsize`` if there is no next data or hole.

        If the system cannot report holes, all bytes count as data. The call changes the position
        that the system keeps for the file. Nothing uses this position.
        """
        try:
            return os.lseek(self._fd, offset, whence)
        except OSError as error:
            if whence == _DATA and error.errno != errno.ENXIO:
                return offset
            return sys.maxsize

    def _read_all(self, offset: int, view: memoryview) -> int:
        done = 0
        with translate(self.path, "read"):
            while done < len(view):
                try:
                    count = self._read_into(offset + done, view[done : done + MOST])
                except InterruptedError:
                    continue
                if count == 0:
                    break
                done += count
        return done

    def _read_into(self, offset: int, view: memoryview) -> int:
        if hasattr(os, "preadv"):
            return os.preadv(self._fd, [view], offset)
        data = os.pread(self._fd, len(view), offset)
        view[: len(data)] = data
        return len(data)


class ContinuedFile(ReadFile):
    """The first ``end`` bytes of an open file, followed by the bytes ``more``, as one file."""

    def __init__(self, file: ReadFile, end: int, more: bytes) -> None:
        super().__init__(file.path, -1)
        self._file, self._end, self._more = file, end, more

    def close(self) -> None:
        self._file.close()

    def _stat(self) -> FileIdentity:
        return replace(self._file.identity(), size=self._end + len(self._more))

    def _read(self, offset: int, length: int) -> bytes:
        if offset < self._end:
            return self._file.read(offset, min(length, self._end - offset))
        return self._more[offset - self._end : offset - self._end + length]

    def _read_into(self, offset: int, view: memoryview) -> int:
        data = self._read(offset, len(view))
        view[: len(data)] = data
        return len(data)


class ReadAhead:
    """Reads a file in steps of 1 MiB if the requests are sequential, so that few calls are needed.

    Use an object for one pass over the file, in one thread. If the file changes during the pass,
    old bytes may be returned.
    """

    def __init__(self, file: ReadFile) -> None:
        self.path = file.path
        self._file = file
        self._start = 0
        self._data = b""

    def size(self) -> int:
        return self._file.size()

    def read(self, offset: int, length: int) -> bytes:
        """``length`` bytes at ``offset``, or fewer at the end of the file."""
        at = offset - self._start
        if at < 0 or at + length > len(self._data):
            if length > LARGE:
                return self._file.read(offset, length)
            is_next = 0 <= at <= len(self._data) + _SMALL
            size = LARGE if is_next else length
            self._start, self._data, at = offset, self._file.read(offset, size), 0
        return self._data[at : at + length]

    def read_header(self, offset: int, length: int) -> bytes:
        return self.read(offset, length)

    def is_hole(self, offset: int, length: int) -> bool:
        """As ``ReadFile.is_hole``."""
        return self._file.is_hole(offset, length)


class WriteFile(_Handle):
    """A regular file open for writing; ``position`` is the offset of the next ``write``.

    Written bytes are durable only after ``sync``. If ``sync`` fails, every later call except
    ``close`` raises SyncFailed, because after a failed flush the kernel may report lost pages as
    written. A write of LARGE bytes or more bypasses the page cache if the file system allows this,
    and if memory address and file offset have the same remainder modulo PAGE.
    """

    _direct: int | None = None  # descriptor for direct writes; -1 if they are refused

    def __init__(self, path: Path, descriptor: int, position: int) -> None:
        super().__init__(path, descriptor)
        self.position = position
        self._poisoned = False
        self._mode_changed = False
        self._begun: int | None = None  # offset up to which write-back was started

    def close(self) -> None:
        self._refuse_direct()
        super().close()

    def write(self, data: Bytes | Sequence[Bytes]) -> None:
        """Writes all of ``data`` (one buffer, or several in order) and advances ``position``."""
        self.position += self._write_all(self.position, data)

    def write_at(self, offset: int, data: Bytes | Sequence[Bytes]) -> None:
        """Writes all of ``data`` at ``offset``; ``position`` does not change."""
        self._write_all(offset, data)

    def truncate(self, size: int) -> None:
        """Changes the file's size to ``size``, and sets ``position`` to the new end.

        Added bytes are zero.
        """
        self._check()
        with translate(self.path, "write"):
            self._truncate(size)
        self.position = size

    def set_mode(self, mode: int) -> None:
        """Sets exactly the permission bits ``mode``."""
        self._check()
        with translate(self.path, "change the mode of"):
            self._set_mode(mode)
        self._mode_changed = True

    def sync(self) -> None:
        """Makes content and size durable. ``FileSystem.sync_dir`` makes the file's name durable."""
        self._check()
        try:
            self._sync()
        except OSError as error:
            self._poisoned = True
            raise sync_failure(self.path, error) from error

    def drop_pages(self) -> None:
        """Drops the file's durable pages from the page cache, so that the next read uses the disk.

        Has no effect on systems without ``posix_fadvise``.
        """
        if hasattr(os, "posix_fadvise"):
            with suppress(OSError):  # only advice
                os.posix_fadvise(self._fd, 0, 0, os.POSIX_FADV_DONTNEED)

    def identity(self) -> FileIdentity:
        self._check()
        return super().identity()

    def read(self, offset: int, length: int) -> bytes:
        self._check()
        return super().read(offset, length)

    def _check(self) -> None:
        if self._poisoned:
            raise sync_failure(self.path)

    def _write_all(self, offset: int, data: Bytes | Sequence[Bytes]) -> int:
        self._check()
        single = isinstance(data, bytes | bytearray | memoryview) or not isinstance(data, Sequence)
        views = [view for part in ([data] if single else data) if len(view := _flat(part))]
        start = offset
        with translate(self.path, "write"):
            while views:
                try:
                    count = self._write(offset, _batch(views))
                except InterruptedError:
                    continue
                if count <= 0:
                    raise OSError(errno.EIO, "no bytes were written")
                offset += count
                views = _after(views, count)
        self._begin_flush(start, offset)
        return offset - start

    def _begin_flush(self, start: int, end: int) -> None:
        """After many written bytes, starts to write them to the disk, so that ``sync`` is faster.

        POSIX_FADV_DONTNEED starts this, and removes clean pages from the page cache. ``sync``
        reports the errors.
        """
        self._begun = start if self._begun is None else self._begun
        if end - self._begun >= _BEHIND and hasattr(os, "posix_fadvise"):
            with suppress(OSError):
                os.posix_fadvise(self._fd, self._begun, end - self._begun, os.POSIX_FADV_DONTNEED)
            self._begun = end

    def _write(self, offset: int, views: Sequence[memoryview]) -> int:
        # A direct write must begin at a page: the bytes before this page are written separately.
        if O_DIRECT and len(views[0]) > LARGE - PAGE and self._direct != -1:
            before = -offset % PAGE
            if (_address(views[0]) + before) % PAGE == 0:
                if before:
                    return os.pwrite(self._fd, views[0][:before], offset)
                if count := self._write_direct(offset, views[0]):
                    return count
        if hasattr(os, "pwritev"):
            return os.pwritev(self._fd, views, offset)
        return os.pwrite(self._fd, views[0], offset)

    def _write_direct(self, offset: int, view: memoryview) -> int:
        """Writes without the page cache. Returns the number of written bytes; 0 if the file system
        refuses direct writes.
        """
        if self._direct is None:
            self._direct = self._reopened()
        if self._direct < 0:
            return 0
        try:
            return os.pwrite(self._direct, view[: len(view) // PAGE * PAGE], offset)
        except OSError as error:
            if error.errno not in _REFUSED:
                raise
            self._refuse_direct()
            return 0

    def _reopened(self) -> int:
        """Opens a second descriptor, for direct writes. Returns -1 on a network file system, or if
        the system refuses.
        """
        if mounts.is_network(mounts.type_of(self.path)):
            return -1
        try:
            return os.open(f"/proc/self/fd/{self._fd}", os.O_WRONLY | O_DIRECT)
        except OSError:
            return -1

    def _refuse_direct(self) -> None:
        descriptor, self._direct = self._direct, -1
        if descriptor is not None and descriptor >= 0:
            os.close(descriptor)

    def _truncate(self, size: int) -> None:
        os.ftruncate(self._fd, size)

    def _set_mode(self, mode: int) -> None:
        os.fchmod(self._fd, mode)

    def _sync(self) -> None:
        if sys.platform == "darwin":
            _full_sync(self._fd)
        elif self._mode_changed or not hasattr(os, "fdatasync"):
            os.fsync(self._fd)
            self._mode_changed = False
        else:
            os.fdatasync(self._fd)


def _full_sync(descriptor: int) -> None:
    """Flushes on macOS, where fsync leaves data in the drive's cache, but F_FULLFSYNC does not."""
    import fcntl

    try:
        fcntl.fcntl(descriptor, getattr(fcntl, "F_FULLFSYNC", 51))
    except OSError as error:
        if error.errno not in (errno.ENOTSUP, errno.EINVAL):
            raise
        os.fsync(descriptor)  # some network and FUSE file systems support only this


def _flat(data: object) -> memoryview:
    """A contiguous buffer of any type as a view of bytes, without a copy."""
    view = memoryview(data)  # type: ignore[arg-type]
    if view.format == "B" and view.ndim == 1 and view.contiguous:
        return view
    if not view.c_contiguous:
        raise WrongUsage("a buffer to read or write must be contiguous")
    return view.cast("B") if view.nbytes else memoryview(b"")


def _address(view: memoryview) -> int:
    """Memory address of a view's first byte."""
    import numpy as np  # late: slow to import

    return int(np.frombuffer(view, np.uint8).__array_interface__["data"][0])


def _fill_zeros(view: memoryview) -> None:
    for start in range(0, len(view), LARGE):
        part = view[start : start + LARGE]
        part[:] = _ZEROS[: len(part)]


def _batch(views: list[memoryview]) -> list[memoryview]:
    """As many of ``views`` as one write call may have: VECTORS buffers, MOST bytes."""
    room, batch = MOST, []
    for view in views[:VECTORS]:
        batch.append(view[:room])
        room -= len(batch[-1])
        if room == 0:
            break
    return batch


def _after(views: list[memoryview], count: int) -> list[memoryview]:
    """``views`` without their first ``count`` bytes."""
    for i, view in enumerate(views):
        if count < len(view):
            return [view[count:], *views[i + 1 :]]
        count -= len(view)
    return []
