"""A redo journal: lets a program overwrite several files in place, and survive a crash.

All changes are first written to a journal file. Then the journal is *sealed*: its end is marked.
Only a sealed journal is applied to the files. After a crash, the sealed journal is applied once
more from the start.

A journal is a list of parts. A part is a CRC-32, the number of its bytes, and its bytes. The CRC-32
covers the bytes of this part and of all earlier parts. The first part is the list of files. Each
following part has the changes of one block of a file. An empty part is the seal.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import groupby
from operator import itemgetter
from pathlib import Path

import numpy as np
from msgspec import MsgspecError, Struct, msgpack
from msgspec.structs import replace

from mvc.errors import DamagedData, InvalidName
from mvc.io.files import FileSystem, ReadFile
from mvc.io.process import cpu_count
from mvc.limits import MAX_MANIFEST
from mvc.names import check_path
from mvc.types import Bytes

BLOCK = 1 << 17
"""Bytes of a block. The position of a 2-byte word in a block of this size fits into two bytes."""

_Block = tuple[int, int, int]
"""The number of a file in the list of files, and offset and length of a part in the journal."""

_HEAD = struct.Struct("<II")
_WORD, _FOUR = np.dtype("<u2"), np.dtype("<u8")
_BY_OTHERS = 0o077


class ChangedFile(Struct, frozen=True):
    """A file that the journal changes.

    ``name``: the path relative to the folder of ``carry_out``; empty if this folder is itself the
    path of the file. ``before``: the size of the old file; None if the journal creates the file.
    ``size``: the size of the new file; None if the journal deletes the file.
    """

    name: str
    before: int | None
    size: int | None


class _Changes(Struct, frozen=True, array_like=True):
    """The changes of the block that begins at ``offset`` of file ``number``.

    ``new``: the new 2-byte words at ``positions``, which count words from ``offset``. If
    ``positions`` is empty, ``new`` has all bytes of the block.
    """

    number: int
    offset: int
    positions: bytes
    new: bytes

    @property
    def size(self) -> int:
        """The number of bytes from ``offset`` to the end of the last change."""
        words = np.frombuffer(self.positions, _WORD)
        return 2 * int(words.max()) + 2 if len(words) else len(self.new)


class RedoJournal:
    """A journal that is being written at ``path``. Its methods raise StorageFull and IoFailed."""

    def __init__(self, fs: FileSystem, path: Path, files: Sequence[ChangedFile]) -> None:
        self._fs, self._path, self._check = fs, path, 0
        self.files, self.blocks = files, list[_Block]()
        discard(fs, path)
        self._file = fs.open_write(path, create=True, exclusive=True, mode=0o600)
        self._write(msgpack.encode(files))

    def append(self, number: int, offset: int, old: Bytes, new: Bytes) -> None:
        """Records that the bytes of file ``number`` from ``offset`` on change from ``old`` to
        ``new``.

        At the end of the file, ``old`` may be shorter than ``new``. Call this method for one file
        after another, in the order of their numbers.
        """
        before, after = memoryview(old), memoryview(new)
        for start in range(0, len(after), BLOCK):
            block = after[start : start + BLOCK]
            positions, values = _difference(before[start : start + len(block)], block)
            if len(values):
                part = msgpack.encode((number, offset + start, positions, values))
                self.blocks.append((number, self._write(part), len(part)))

    def seal(self) -> None:
        """Marks the journal as complete. The journal is durable on return."""
        self._write(b"")
        self._file.sync()
        self.identity = self._file.identity()
        self._file.close()
        self._fs.sync_dir(self._path.parent)

    def _write(self, part: bytes) -> int:
        """Writes a part; returns the offset of the part's bytes in the journal."""
        self._check = zlib.crc32(part, self._check)
        self._file.write([_HEAD.pack(self._check, len(part)), part])
        return self._file.position - len(part)


def discard(fs: FileSystem, path: Path) -> None:
    """Deletes the journal at ``path``, if there is one. The deletion is durable on return."""
    if fs.stat(path, follow=False) is not None:
        fs.unlink(path)
        fs.sync_dir(path.parent)


def carry_out(fs: FileSystem, path: Path, folder: Path, sealed: RedoJournal | None = None) -> bool:
    """Applies a journal to the files below ``folder``, durably. Does not delete the journal.

    ``sealed``: the object that wrote the journal, if this process wrote it. Then the journal is
    validated only if its file has changed since. Returns False and changes nothing if the journal
    is missing, unsealed, damaged or another user's, or if a file has an unexpected size.
    """
    identity = fs.stat(path, follow=False)
    if identity is None or not identity.is_file or identity.owner != os.geteuid():
        return False
    if identity.permissions & _BY_OTHERS:
        return False
    with fs.open_read(path, follow=False) as journal:
        try:
            files, blocks = _checked(fs, journal, folder, sealed)
        except (DamagedData, InvalidName, LookupError, MsgspecError, ValueError, struct.error):
            return False
        for file in files:
            _make_or_cut(fs, folder, file)
        threads = min(cpu_count(), 4)
        with ThreadPoolExecutor(threads, thread_name_prefix="mvc-redo") as pool:
            overwrite = partial(_overwrite, fs, journal, folder, files=files, blocks=blocks)
            deque(pool.map(overwrite, (slice(i, None, threads) for i in range(threads))), 0)
    return True


def _difference(old: memoryview, new: memoryview) -> tuple[Bytes, Bytes]:
    """The positions of the 2-byte words that differ, and the new words.

    If at least half of the words differ, or if the lengths differ or are no multiple of 8, returns
    no positions and all of ``new``. If no word differs, both results are empty.
    """
    if len(old) == len(new) and len(new) % _FOUR.itemsize == 0:
        before, after = np.frombuffer(old, _FOUR), np.frombuffer(new, _FOUR)
        fours = (before != after).nonzero()[0]
        words = (before.take(fours).view(_WORD) != after.take(fours).view(_WORD)).nonzero()[0]
        if 2 * words.size < 4 * after.size:
            positions = fours.take(words >> 2) << 2 | words & 3
            return positions.astype(_WORD).tobytes(), after.view(_WORD).take(positions).tobytes()
    return b"", new


def _parts(journal: ReadFile) -> Iterator[tuple[int, bytes]]:
    """Yields the offset and bytes of each part before the seal.

    Raises DamagedData or struct.error if the journal is damaged or has no seal.
    """
    ahead, at, check, most = journal.ahead(), 0, 0, MAX_MANIFEST
    while True:
        expected, length = _HEAD.unpack(ahead.read(at, _HEAD.size))
        at += _HEAD.size
        part = ahead.read(at, min(length, most))
        check = zlib.crc32(part, check)
        if len(part) != length or check != expected:
            raise DamagedData("the journal is damaged")
        if not part:
            return
        yield at, part
        at += length


def _read(journal: ReadFile) -> tuple[list[ChangedFile], list[_Block]]:
    """Reads and validates a journal. Returns its files and blocks."""
    parts, blocks = _parts(journal), list[_Block]()
    files = msgpack.decode(next(parts, (0, b""))[1], type=list[ChangedFile])
    for at, part in parts:
        block = msgpack.decode(part, type=_Changes)
        if block.offset + block.size > (files[block.number].size or 0):
            raise DamagedData("the journal writes beyond a file's end")
        blocks.append((block.number, at, len(part)))
    return files, blocks


def _checked(
    fs: FileSystem, journal: ReadFile, folder: Path, sealed: RedoJournal | None
) -> tuple[Sequence[ChangedFile], Sequence[_Block]]:
    """The files and blocks of the validated journal. Raises DamagedData for an unexpected size.

    The size of a file may be any between its old and its new size, because the journal may have
    been applied in part.
    """
    identity = journal.identity()
    # The ctime is ignored, because renaming the journal changes it.
    if sealed is not None and replace(sealed.identity, ctime_ns=identity.ctime_ns) == identity:
        files, blocks = sealed.files, sealed.blocks
    else:
        files, blocks = _read(journal)
    for file in files:
        path = folder / check_path(file.name) if file.name else folder
        present = fs.stat(path, follow=False)
        least, most = sorted((file.before or 0, file.size or 0))
        if not least <= (0 if present is None else present.size) <= most:
            raise DamagedData("a file's size is not between its old and its new size")
    return files, blocks


def _make_or_cut(fs: FileSystem, folder: Path, file: ChangedFile) -> None:
    """Creates a file, deletes a file, or changes its size."""
    path = folder / file.name
    if file.size is None:
        fs.unlink(path, missing_ok=True, within=folder)
    else:
        if file.before is None:
            fs.make_dirs(path.parent, within=folder)
        with fs.open_write(path, create=file.before is None, within=folder) as out:
            if out.position != file.size:
                out.truncate(file.size)
                out.sync()
    if None in (file.before, file.size):
        fs.sync_dir(path.parent, within=folder)


def _overwrite(
    fs: FileSystem,
    journal: ReadFile,
    folder: Path,
    part: slice,
    *,
    files: Sequence[ChangedFile],
    blocks: Sequence[_Block],
) -> None:
    """Applies the blocks ``blocks[part]`` of the journal, and flushes the changed files to disk."""
    room = np.empty(BLOCK // _WORD.itemsize, _WORD)
    for number, own in groupby(blocks[part], itemgetter(0)):
        path = folder / files[number].name
        with fs.open_read(path, follow=False) as old, fs.open_write(path, within=folder) as file:
            for _, at, length in own:
                block = msgpack.decode(journal.read(at, length), type=_Changes)
                data: Bytes = block.new
                if block.positions:
                    words = room[: block.size // _WORD.itemsize]
                    old.read_into(block.offset, words.data)
                    positions = np.frombuffer(block.positions, _WORD)
                    words[positions.astype(np.intp)] = np.frombuffer(data, _WORD)
                    data = words.data
                file.write_at(block.offset, data)
            file.sync()
