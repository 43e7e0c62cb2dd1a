"""Decodes the files of a version, completely in memory, or piece by piece to disk.

A file consists of contents (the data of tensors), and of a skeleton: all other bytes of the file.
"""

from __future__ import annotations

from bisect import bisect
from collections import deque
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from functools import partial
from itertools import islice
from operator import itemgetter
from typing import Any, TypeAlias

import numpy as np

from mvc.adapters.files.assemble import assemble, joined
from mvc.adapters.parsed import MemorySource, Source, StoredSource, gaps
from mvc.adapters.python.state import to_state
from mvc.errors import DamagedData
from mvc.io.handles import PAGE, aligned
from mvc.io.process import cpu_count
from mvc.limits import PIECE
from mvc.model.hashing import BlobHasher, pieces
from mvc.model.manifest import Content, FileEntry
from mvc.model.tensor import TensorSpec
from mvc.store.recovery.recover import Recovery, Request, mismatch
from mvc.types import Bytes

WINDOW = PIECE // 2

AHEAD = 2
"""How many steps run while the caller writes the result of an earlier step to disk.

A step decodes one piece of a large tensor, or several small tensors (``_steps``).
"""


def skeleton_of(recovery: Recovery, entry: FileEntry) -> bytes:
    """The skeleton of a file: all bytes outside the contents."""
    if entry.skeleton is None:
        return b""
    return bytes(recovery.blob(entry.skeleton, TensorSpec("raw", (entry.skeleton_size,))))


def in_memory(
    recovery: Recovery, entry: FileEntry, wanted: Collection[int] | None = None
) -> dict[int, memoryview]:
    """Maps each position in ``entry.contents`` to the verified bytes of the content.

    ``wanted``: the positions to decode, by default all. Raises DamagedData.
    """
    chosen = range(len(entry.contents)) if wanted is None else sorted(wanted)
    out = {i: np.empty(entry.contents[i].spec.nbytes, np.uint8).data for i in chosen}
    recovery.fill(Request(entry.contents[i].id, entry.contents[i].spec, out[i]) for i in chosen)
    return out


def state_of(recovery: Recovery, entry: FileEntry) -> Any:
    """The state of a file, as ``to_state`` builds it. Raises DamagedData."""
    return to_state(entry, skeleton_of(recovery, entry), in_memory(recovery, entry).__getitem__)


class StoredBytes(StoredSource):
    """A file of a version that no parser understands (an opaque file), decoded piece by piece.

    Caches the piece that was decoded most recently. ``read`` raises DamagedData if it had to decode
    too many pieces. Otherwise a small malicious file could cause endless decoding.
    """

    def __init__(self, recovery: Recovery, entry: FileEntry) -> None:
        """Raises DamagedData if the file has bytes outside of its contents."""
        if entry.skeleton_size:
            raise DamagedData(f"{entry.path} is opaque, but has bytes outside of its contents")
        self._recovery = recovery
        self._size = entry.size
        self._pieces = [
            (content.offset + start, content.id, start, min(PIECE, content.spec.nbytes - start))
            for content in entry.contents
            for start in range(0, content.spec.nbytes, PIECE)
        ]
        self._last = (-1, memoryview(b""))
        self._left = 8 + 8 * len(self._pieces)

    def size(self) -> int:
        return self._size

    def read(self, offset: int, length: int) -> bytes:
        out = bytearray()
        end = min(offset + length, self._size)
        first = max(bisect(self._pieces, offset, key=itemgetter(0)) - 1, 0)
        for at, id_, start, size in self._pieces[first:]:
            if at >= end:
                break
            if at != self._last[0]:
                if not self._left:
                    raise DamagedData("a file's parts are too scattered to be read from a version")
                self._left -= 1
                piece = np.empty(size, np.uint8).data
                self._recovery.piece(id_, start, piece)
                self._last = at, piece
            out += self._last[1][max(offset - at, 0) : end - at]
        return bytes(out)


def without_contents(recovery: Recovery, entry: FileEntry) -> Source:
    """An ONNX file with zeros instead of its contents, which are not decoded.

    A file of 2 GiB or more cannot be an ONNX file: the result is empty.
    """
    data = np.zeros(entry.size if entry.size < 1 << 31 else 0, np.uint8).data
    rest = memoryview(skeleton_of(recovery, entry) if data else b"")
    for start, length in gaps([(c.offset, c.spec.nbytes) for c in entry.contents], len(data)):
        data[start : start + length] = rest[:length]
        rest = rest[length:]
    return MemorySource(data)


class Buffers:
    """A fixed number of buffers for decoded pieces, which are used in rotation.

    With one buffer, a piece is decoded only after the previous piece was written.
    """

    def __init__(self, count: int = AHEAD + 1) -> None:
        self.count = count
        self._buffers = deque([memoryview(b"")] * count)

    def next(self, offset: int, size: int) -> memoryview:
        """Memory for ``size`` bytes at ``offset`` of a file, aligned for direct writing."""
        at = offset % PAGE
        self._buffers.rotate()
        if len(self._buffers[0]) < at + size:
            self._buffers[0] = aligned(PAGE + size)
        return self._buffers[0][at : at + size]


ReadPart: TypeAlias = Callable[[int, memoryview], None]
"""A function that fills memory with the bytes of a content from an offset on, unverified."""


def write_file(
    recovery: Recovery,
    entry: FileEntry,
    write_at: Callable[[int, Bytes], None],
    progress: Callable[[int], None] | None = None,
    buffers: Buffers | None = None,
    *,
    copied: Mapping[bytes, ReadPart] = {},
    check: bool = True,
) -> None:
    """Decodes a file, and passes every byte of the file to ``write_at``. Raises DamagedData.

    ``copied``: maps ids of contents to functions that read these contents from elsewhere. These
    contents are neither decoded nor hashed. With ``check``, damaged deltas are avoided.
    Without ``check``, decoding is faster; after DamagedData, the caller must call again with it.
    """
    buffers = buffers or Buffers()
    steps = _steps(recovery, entry.contents, buffers, copied, check=check)
    with closing(_recovered(entry.contents, steps, ahead=buffers.count > 1)) as recovered:

        def content(wanted: int, left: int) -> Iterator[memoryview]:
            while left > 0:
                part = next(part for i, part in recovered if i >= wanted)
                left -= part.nbytes
                yield part
                if progress is not None:
                    progress(part.nbytes)

        assemble(entry, skeleton_of(recovery, entry), content, write_at)


_Part: TypeAlias = tuple[int, memoryview]
"""The index of a content, and bytes of this content and of contents that follow without a gap."""
_Before: TypeAlias = Future[list[_Part]] | None
_Step: TypeAlias = Callable[[_Before], list[_Part]]
"""A function that decodes some parts. The argument is the previous step, which may still run."""


def _recovered(
    contents: Sequence[Content], steps: Iterator[_Step], *, ahead: bool
) -> Generator[_Part]:
    """Yields the bytes of all contents. The bytes are valid until the next bytes are requested.

    With ``ahead``, the next steps run while the caller uses the result of a step.
    """
    if not ahead or (contents and _extent(contents, range(len(contents))) <= WINDOW):
        for step in steps:  # too few bytes for a thread
            yield from step(None)
        return
    with ThreadPoolExecutor(AHEAD, thread_name_prefix="mvc-ahead") as pool:
        waiting = deque[Future[list[_Part]]]()
        for step in islice(steps, AHEAD):
            waiting.append(pool.submit(step, waiting[-1] if waiting else None))
        while waiting:
            parts = waiting[0].result()
            for step in islice(steps, 1):
                waiting.append(pool.submit(step, waiting[-1]))
            waiting.popleft()
            yield from parts


def _steps(
    recovery: Recovery,
    contents: Sequence[Content],
    buffers: Buffers,
    copied: Mapping[bytes, ReadPart],
    *,
    check: bool,
) -> Iterator[_Step]:
    """Yields the steps that decode or copy the contents.

    A step handles a window (several small contents), or one piece of a large content.
    """
    for window in _windows(contents, copied):
        first, size = contents[window[0]], _extent(contents, window)
        if size > PIECE and first.id in copied:
            for start, length in pieces(first.spec):
                buffer = buffers.next(first.offset + start, length)
                yield partial(_copy, [(copied[first.id], start, buffer)], [(window[0], buffer)])
            continue
        if size > PIECE:
            recover = partial(recovery.piece, parallel=cpu_count() > AHEAD, check=check)
            yield from _large(recover, window[0], first, buffers)
            continue
        buffer = buffers.next(first.offset, size)
        spans = [(contents[i].offset - first.offset, contents[i].spec.nbytes, i) for i in window]
        wanted = [
            Request(contents[i].id, contents[i].spec, buffer[at : at + nbytes])
            for at, nbytes, i in spans
        ]
        parts = [(i, buffer[at : at + nbytes]) for at, nbytes, i in joined(spans)]
        if first.id in copied:
            yield partial(
                _copy, [(copied[request.id], 0, request.out) for request in wanted], parts
            )
        else:
            yield partial(_fill, recovery, wanted, parts)


def _fill(
    recovery: Recovery, wanted: Sequence[Request], parts: list[_Part], before: _Before
) -> list[_Part]:
    """Decodes a window after the previous step, whose decoded data may be used again."""
    if before is not None:
        before.result()
    recovery.fill(wanted)
    return parts


def _copy(
    wanted: Sequence[tuple[ReadPart, int, memoryview]], parts: list[_Part], _before: _Before
) -> list[_Part]:
    for read, start, out in wanted:
        read(start, out)
    return parts


def _large(
    recover: Callable[[bytes, int, memoryview], None], i: int, content: Content, buffers: Buffers
) -> Iterator[_Step]:
    """Yields steps that decode the pieces of a large content. Several steps run in parallel.

    The step of the last piece checks the hash of the whole content.
    """
    hasher = BlobHasher(content.spec)

    def piece(start: int, out: memoryview, before: _Before) -> list[_Part]:
        recover(content.id, start, out)
        if start and before is not None:
            before.result()
        hasher.update(out)
        if start + len(out) == content.spec.nbytes and hasher.done() != content.id:
            raise mismatch(content.id)
        return [(i, out)]

    for start, length in pieces(content.spec):
        yield partial(piece, start, buffers.next(content.offset + start, length))


def _windows(contents: Sequence[Content], copied: Collection[bytes]) -> Iterator[range]:
    """Yields ranges of contents that are decoded together, or copied together.

    A range has at most ``WINDOW`` bytes. A larger content is a range of its own.
    """
    first = 0
    for i in range(1, len(contents)):
        differs = (contents[i].id in copied) != (contents[first].id in copied)
        if differs or _extent(contents, range(first, i + 1)) > WINDOW:
            yield range(first, i)
            first = i
    if contents:
        yield range(first, len(contents))


def _extent(contents: Sequence[Content], window: range) -> int:
    """The number of bytes from the start of the first content to the end of the last content."""
    last = contents[window[-1]]
    return last.offset + last.spec.nbytes - contents[window[0]].offset
