"""Recovers the bytes of a version's files: whole in memory, or streamed to disk."""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from typing import Any

import numpy as np

from mvc.adapters.files.assemble import assemble
from mvc.adapters.parsed import Source
from mvc.adapters.python.state import to_state
from mvc.errors import DamagedData
from mvc.limits import PIECE
from mvc.model.hashing import verify_pieces
from mvc.model.manifest import Content, FileEntry
from mvc.model.tensor import TensorSpec
from mvc.store.recovery.recover import Recovery, Request
from mvc.types import Bytes

WINDOW = PIECE // 2


def skeleton_of(recovery: Recovery, entry: FileEntry) -> bytes:
    """The bytes of the file outside its contents."""
    if entry.skeleton is None:
        return b""
    return bytes(recovery.blob(entry.skeleton, TensorSpec("raw", (entry.skeleton_size,))))


def in_memory(
    recovery: Recovery, entry: FileEntry, wanted: Collection[int] | None = None
) -> dict[int, memoryview]:
    """Verified contents by position, each in its own writable memory.

    Raises DamagedData.
    """
    chosen = range(len(entry.contents)) if wanted is None else sorted(wanted)
    out = {i: np.empty(entry.contents[i].spec.nbytes, np.uint8).data for i in chosen}
    recovery.fill(Request(entry.contents[i].id, entry.contents[i].spec, out[i]) for i in chosen)
    return out


def state_of(recovery: Recovery, entry: FileEntry) -> Any:
    """The state of a file, as ``to_state`` makes it. Raises DamagedData."""
    return to_state(entry, skeleton_of(recovery, entry), in_memory(recovery, entry).__getitem__)


class StoredBytes(Source):
    """An opaque file of a version; decodes the piece that is asked for, and keeps the last one."""

    def __init__(self, recovery: Recovery, entry: FileEntry) -> None:
        self._recovery = recovery
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


def write_file(
    recovery: Recovery,
    entry: FileEntry,
    write_at: Callable[[int, Bytes], None],
    progress: Callable[[int], None] | None = None,
) -> None:
    """Writes every byte of the file. Takes the memory of two pieces, whatever the file's size."""
    with closing(_recovered(recovery, entry.contents)) as recovered:

        def content(wanted: int) -> Iterator[memoryview]:
            yield from next(parts for i, parts in recovered if i == wanted)
            if progress is not None:
                progress(entry.contents[wanted].spec.nbytes)

        assemble(entry, skeleton_of(recovery, entry), content, write_at)


def _recovered(
    recovery: Recovery, contents: Sequence[Content]
) -> Generator[tuple[int, Iterable[memoryview]]]:
    """The bytes of each content, which are valid until the next one is asked for.

    Small ones are recovered together, up to half a piece. While the caller takes such a window, the
    next one is recovered, so that every processor has something to do all the time. Both lie in one
    buffer of a piece.
    """
    windows = list(_windows(contents))
    sizes = [sum(contents[i].spec.nbytes for i in window) for window in windows]
    buffer = np.empty(PIECE if sum(sizes) > WINDOW else sum(sizes), np.uint8).data

    def load(n: int) -> list[tuple[memoryview]]:
        found, at = list[tuple[memoryview]](), n % 2 * WINDOW if sizes[n] <= WINDOW else 0
        for i in windows[n]:
            found.append((buffer[at : at + contents[i].spec.nbytes],))
            at += contents[i].spec.nbytes
        wanted = [contents[i] for i in windows[n]]
        recovery.fill(Request(c.id, c.spec, out) for c, (out,) in zip(wanted, found, strict=True))
        return found

    with ThreadPoolExecutor(2, thread_name_prefix="mvc-ahead") as ahead:
        following: Future[list[tuple[memoryview]]] | None = None
        for n, window in enumerate(windows):
            if sizes[n] > PIECE:
                yield window[0], _large(recovery, contents[window[0]], buffer)
                continue
            coming, following = following, None
            if n + 1 < len(windows) and max(sizes[n : n + 2]) <= WINDOW:
                following = ahead.submit(load, n + 1)
            yield from zip(window, load(n) if coming is None else coming.result(), strict=True)


def _windows(contents: Sequence[Content]) -> Iterator[range]:
    """The contents that are recovered together: half a piece at most, or a single one."""
    first = size = 0
    for i, content in enumerate(contents):
        size += content.spec.nbytes
        if size > WINDOW and i > first:
            yield range(first, i)
            first, size = i, content.spec.nbytes
    if contents:
        yield range(first, len(contents))


def _large(recovery: Recovery, content: Content, buffer: memoryview) -> Iterator[memoryview]:
    """Piece by piece. The hash is checked at the end, before the file is published."""

    def read(start: int, length: int) -> memoryview:
        recovery.piece(content.id, start, buffer[:length])
        return buffer[:length]

    wrong = DamagedData(
        f"object {content.id.short} does not match its hash after decoding",
        hint="run 'mvc fsck' to see which versions it touches",
    )
    yield from (part for _, part in verify_pieces(content.id, content.spec, read, wrong))
