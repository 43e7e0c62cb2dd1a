"""Random access to files of a version, without writing them out first.

Only what is asked for is recovered, each content as a whole, because its hash is what says
that it is right. What was read last is kept.
"""

from __future__ import annotations

import io
import threading
import zlib
from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import Any

from mvc.adapters.parsed import CHECK_BYTES, gaps
from mvc.api import FileEntry
from mvc.errors import DamagedData
from mvc.limits import CHUNK, MIB
from mvc.model.manifest import Check
from mvc.repo.content.contents import in_memory, skeleton_of
from mvc.repo.context import Context
from mvc.types import Bytes

_TOGETHER = 8 * MIB  # contents of a file that are recovered in one go: a record's worth


class Parts:
    """``size`` bytes in parts that lie behind one another without gaps.

    ``load(i)`` gives the bytes of part i. Safe in several threads.
    """

    def __init__(self, lengths: Sequence[int], load: Callable[[int], Bytes]) -> None:
        self._starts = [0]
        for length in lengths:
            self._starts.append(self._starts[-1] + length)
        self.size = self._starts.pop()
        self._lengths = tuple(lengths)
        self._load = load
        self._lock = threading.RLock()

    def read_into(self, start: int, out: memoryview) -> int:
        """Fills ``out`` from ``start`` on; how many bytes that are, fewer only at the end."""
        done = 0
        index = bisect_right(self._starts, start) - 1
        while done < len(out) and index < len(self._starts):
            inside = start + done - self._starts[index]
            length = min(self._lengths[index] - inside, len(out) - done)
            if length > 0:
                out[done : done + length] = self._part(index)[inside : inside + length]
                done += length
            index += 1
        return done

    def _part(self, index: int) -> memoryview:
        with self._lock:
            data = memoryview(self._load(index)).cast("B")
        if len(data) != self._lengths[index]:
            raise DamagedData("a part of a file has a wrong length")
        return data


class PartsFile(io.RawIOBase):
    """``Parts`` as a binary file to read, with the attributes that fsspec's files have."""

    mode = "rb"

    def __init__(self, parts: Parts, name: str) -> None:
        super().__init__()
        self._parts = parts
        self._at = 0
        self.path = self.name = name
        self.size = parts.size

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        self._at = place(offset, whence, self._at, self.size)
        return self._at

    def readinto(self, buffer: Any, /) -> int:
        if self.closed:
            raise ValueError("I/O operation on closed file")
        count = self._parts.read_into(self._at, memoryview(buffer).cast("B"))
        self._at += count
        return count

    def read(self, size: int | None = -1, /) -> bytes:
        left = max(0, self.size - self._at)  # what a damaged file asks for is not allocated
        return super().read(left if size is None or size < 0 else min(size, left)) or b""

    def readall(self) -> bytes:
        return self.read()


def place(offset: int, whence: int, at: int, size: int) -> int:
    """Where ``seek`` goes in a file of ``size`` bytes from ``at``."""
    found = offset + {io.SEEK_SET: 0, io.SEEK_CUR: at, io.SEEK_END: size}[whence]
    if found < 0:
        raise ValueError("a place before the beginning of the file")
    return found


def entry_parts(context: Context, entry: FileEntry) -> Parts:
    """Every byte of a path of a version."""
    return _Entry(context, entry).parts


class _Entry:
    """A file as contents, runs of its skeleton, and checksums that follow from the rest."""

    def __init__(self, context: Context, entry: FileEntry) -> None:
        self._context = context
        self._entry = entry
        self._skeleton: bytes | None = None
        self._summing: set[Check] = set()
        self._recovered: dict[int, memoryview] = {}  # contents, those that were read last
        spans = [(c.offset, c.spec.nbytes, "content", i) for i, c in enumerate(entry.contents)]
        spans += [(c.position, CHECK_BYTES, "check", i) for i, c in enumerate(entry.checks)]
        spans = sorted(span for span in spans if span[1])
        runs = gaps([(start, length) for start, length, _, _ in spans], entry.size)
        spans += [(start, length, "skeleton", -1) for start, length in runs]
        self._layout: list[tuple[int, str, int]] = []
        done = 0  # bytes of the skeleton, which has zeros for checksums
        for _, length, kind, i in sorted(spans):
            self._layout.append((length, kind, done if kind == "skeleton" else i))
            done += length if kind != "content" else 0
        self.parts = Parts([length for length, _, _ in self._layout], self._load)

    def _load(self, index: int) -> Bytes:
        length, kind, at = self._layout[index]
        if kind == "content":
            return self._content(index)
        if kind == "check":
            return self._sum(self._entry.checks[at])
        if self._skeleton is None:
            self._skeleton = skeleton_of(self._context, self._entry)
        return memoryview(self._skeleton)[at : at + length]

    def _content(self, index: int) -> memoryview:
        """A content; the following ones come along as long as they are small together."""
        wanted = self._layout[index][2]
        if wanted not in self._recovered:
            chosen, total = set[int](), 0
            for length, kind, content in self._layout[index:]:
                if kind == "content" and (not chosen or total + length <= _TOGETHER):
                    chosen.add(content)
                    total += length
                elif kind == "content":
                    break
            self._recovered = in_memory(self._context, self._entry, chosen)
        return self._recovered[wanted]

    def _sum(self, check: Check) -> bytes:
        if check in self._summing:
            raise DamagedData(f"a checksum of {self._entry.path} covers itself")
        self._summing.add(check)
        value, buffer = 0, memoryview(bytearray(min(CHUNK, check.length)))
        for at in range(0, check.length, CHUNK):
            piece = buffer[: check.length - at]
            if self.parts.read_into(check.start + at, piece) != len(piece):
                raise DamagedData(f"a checksum of {self._entry.path} covers bytes past its end")
            value = zlib.crc32(piece, value)
        self._summing.discard(check)
        return value.to_bytes(CHECK_BYTES, "little")
