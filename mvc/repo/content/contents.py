"""Recovers the bytes of a version's files: whole in memory, or streamed to disk."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeAlias

import numpy as np

from mvc.adapters.files.assemble import assemble
from mvc.adapters.parsed import Source
from mvc.errors import DamagedData
from mvc.limits import PIECE
from mvc.model.hashing import verify_pieces
from mvc.model.manifest import Content, FileEntry
from mvc.model.tensor import TensorSpec
from mvc.repo.context import Context
from mvc.store.recovery.recover import Recovery, Request
from mvc.types import Bytes

WINDOW = PIECE // 2


def skeleton_of(context: Context, entry: FileEntry) -> bytes:
    """The bytes of the file outside its contents."""
    return _skeleton(context.store.recovery, entry)


def _skeleton(recovery: Recovery, entry: FileEntry) -> bytes:
    if entry.skeleton is None:
        return b""
    return bytes(recovery.blob(entry.skeleton, TensorSpec("raw", (entry.skeleton_size,))))


def in_memory(
    context: Context, entry: FileEntry, wanted: Collection[int] | None = None
) -> dict[int, memoryview]:
    """Verified contents by position, each in its own writable memory.

    Raises DamagedData.
    """
    chosen = range(len(entry.contents)) if wanted is None else sorted(wanted)
    out = {i: np.empty(entry.contents[i].spec.nbytes, np.uint8).data for i in chosen}
    context.store.recovery.fill(
        Request(entry.contents[i].id, entry.contents[i].spec, out[i]) for i in chosen
    )
    return out


class StoredBytes(Source):
    """An opaque file of a version; decodes the piece that is asked for, and keeps the last one."""

    def __init__(self, context: Context, entry: FileEntry) -> None:
        self._recovery = context.store.recovery
        (self._content,) = entry.contents
        self._size = entry.size
        self._last = (-1, memoryview(b""))

    def size(self) -> int:
        return self._size

    def read(self, offset: int, length: int) -> bytes:
        out = bytearray()
        end = min(offset + length, self._size)
        for start in range(offset // PIECE * PIECE, end, PIECE):
            if start != self._last[0]:
                piece = np.empty(min(PIECE, self._size - start), np.uint8).data
                self._recovery.piece(self._content.id, start, piece)
                self._last = start, piece
            out += self._last[1][max(offset - start, 0) : end - start]
        return bytes(out)


def write_file(context: Context, entry: FileEntry, write_at: Callable[[int, Bytes], None]) -> None:
    """Writes every byte of the file. Takes the memory of two pieces, whatever the file's size."""
    write_from(context.store.recovery, entry, write_at)


def write_from(
    recovery: Recovery,
    entry: FileEntry,
    write_at: Callable[[int, Bytes], None],
    progress: Callable[[int], None] | None = None,
) -> None:
    """As ``write_file``, of a file of any version that ``recovery`` leads to."""
    with _Stream(recovery, entry, progress) as stream:
        assemble(entry, _skeleton(recovery, entry), stream.content, write_at)


_Window: TypeAlias = dict[int, memoryview]


class _Stream:
    """Contents in file order; small ones are recovered together, up to half a piece.

    While the caller takes such a window, the next one is recovered, so that every processor has
    something to do all the time. Both lie in one buffer of a piece.
    """

    def __init__(
        self, recovery: Recovery, entry: FileEntry, progress: Callable[[int], None] | None
    ) -> None:
        self._recovery = recovery
        self._contents = entry.contents
        self._progress = progress
        self._window: _Window = {}
        self._next: tuple[_Window, Future[None]] | None = None
        self._ahead: ThreadPoolExecutor | None = None
        self._second = False  # whether the next window lies in the second half of the buffer
        self._buffer: memoryview | None = None

    def __enter__(self) -> _Stream:
        return self

    def __exit__(self, *exc: object) -> None:
        if self._ahead is not None:
            self._ahead.shutdown(cancel_futures=True)

    def content(self, i: int) -> Iterator[memoryview]:
        content = self._contents[i]
        if content.spec.nbytes > PIECE:
            yield from self._large(content)
        else:
            if i not in self._window:
                self._load(i)
            yield self._window[i]
        if self._progress is not None:
            self._progress(content.spec.nbytes)

    def _load(self, first: int) -> None:
        """Recovers the window that begins with ``first``, and goes on to the next one."""
        if self._next is None or first not in self._next[0]:
            self._drop_next()
            window = self._placed(first, 0)
            if len(window) == len(self._contents):  # there is no other one
                self._window = window
                self._recovery.fill(self._requests(window))
                return
            self._begin(window)
        assert self._next is not None
        (self._window, coming), self._next = self._next, None
        after, self._second = max(self._window) + 1, not self._second
        if self._fits(first) and self._fits(after):
            self._begin(self._placed(after, WINDOW if self._second else 0))
        coming.result()

    def _begin(self, window: _Window) -> None:
        if self._ahead is None:
            self._ahead = ThreadPoolExecutor(2, thread_name_prefix="mvc-ahead")
        self._next = window, self._ahead.submit(self._recovery.fill, self._requests(window))

    def _drop_next(self) -> None:
        """Waits until nothing writes to the buffer any more."""
        if self._next is not None:
            self._next[1].exception()
        self._next, self._second = None, False

    def _fits(self, i: int) -> bool:
        """Whether there is such a content, and it leaves room for another window."""
        return i < len(self._contents) and self._contents[i].spec.nbytes <= WINDOW

    def _placed(self, first: int, at: int) -> _Window:
        """The buffers, from byte ``at``, of ``first`` and as many of the next contents as fit."""
        buffer, window, end = self._room(), dict[int, memoryview](), at + WINDOW
        for i in range(first, len(self._contents)):
            size = self._contents[i].spec.nbytes
            if at + size > end and i > first:
                break
            window[i] = buffer[at : at + size]
            at += size
        return window

    def _requests(self, window: _Window) -> list[Request]:
        contents = self._contents
        return [Request(contents[i].id, contents[i].spec, out) for i, out in window.items()]

    def _room(self) -> memoryview:
        if self._buffer is None:
            total = sum(content.spec.nbytes for content in self._contents)
            self._buffer = np.empty(PIECE if total > WINDOW else total, np.uint8).data
        return self._buffer

    def _large(self, content: Content) -> Iterator[memoryview]:
        """Piece by piece. The hash is checked at the end, before the file is published."""

        def read(start: int, length: int) -> memoryview:
            self._drop_next()
            part = self._room()[:length]
            self._window = {}
            self._recovery.piece(content.id, start, part)
            return part

        wrong = DamagedData(
            f"object {content.id.short} does not match its hash after decoding",
            hint="run 'mvc fsck' to see which versions it touches",
        )
        yield from (part for _, part in verify_pieces(content.id, content.spec, read, wrong))
