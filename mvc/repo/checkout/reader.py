"""Reads files of a version without writing them to disk."""

from __future__ import annotations

import io
import threading
import zlib
from bisect import bisect_right
from collections.abc import Callable, Collection
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from mvc.adapters.files.facts import FileFacts, file_facts
from mvc.adapters.parsed import CHECK_BYTES, gaps
from mvc.adapters.python.state import decode_state, values
from mvc.adapters.views import extract
from mvc.errors import DamagedData, UnknownPath
from mvc.ids import CommitId
from mvc.limits import CHUNK, MIB
from mvc.model.manifest import Check, FileEntry, LogicalTensor
from mvc.names import printable
from mvc.repo.content.contents import StoredBytes, in_memory, skeleton_of
from mvc.repo.lookup import manifests
from mvc.repo.lookup.availability import check_available
from mvc.store.store import Store
from mvc.types import Bytes

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

# Consecutive tensors are decoded together if they have at most this many bytes in total.
_TOGETHER = 8 * MIB


def open_file(store: Store, commit: CommitId, path: str) -> VersionFile:
    """Opens a file of a version. Raises UnknownPath, StateForgotten, WeightsDropped."""
    entry = manifests.of_commit(store, commit).by_path.get(path)
    if entry is None:
        raise UnknownPath(
            f"{commit.short} has no file {printable(path)}",
            hint="'mvc ls REVISION' lists the files of a version",
        )
    check_available(store, commit, [entry])
    return VersionFile(store, entry)


class _Part(NamedTuple):
    """Consecutive bytes of a file: a content (the data of a tensor), a checksum, or other bytes.

    The *skeleton* consists of all other bytes of the file. ``at``: the index of the content or
    checksum, or the offset of the bytes in the skeleton.
    """

    start: int
    length: int
    kind: Literal["content", "check", "skeleton"]
    at: int


class VersionFile(io.RawIOBase):
    """A read-only binary file with random access. ``tensors`` returns tensors by key.

    Several threads can read the file. To read a byte of a tensor, the complete tensor is decoded,
    so that its hash can be verified. The tensors that were decoded last are cached.
    """

    mode = "rb"

    def __init__(self, store: Store, entry: FileEntry) -> None:
        super().__init__()
        self.entry = entry
        self.size = entry.size
        self.path = self.name = entry.path
        self._store = store  # ``store.recovery`` may be replaced, so it is not stored here
        self._at = 0
        self._parts = _parts(entry)
        self._lock = threading.RLock()
        self._skeleton: bytes | None = None
        self._summing: set[Check] = set()
        self._recovered: dict[int, memoryview] = {}  # the contents that were read last

    def tensors(self, keys: Collection[str], library: str = "torch") -> dict[str, Any]:
        """The tensors ``keys`` of a model file. ``library``: ``torch`` or ``numpy``.

        Raises UnknownPath for an unknown key.
        """
        wanted = {tensor.content for tensor in self.entry.tensors if tensor.key in keys}
        contents = in_memory(self._store.recovery, self.entry, wanted)
        return values(self.entry, contents.__getitem__, keys, library)

    def tensor_bytes(self, tensor: LogicalTensor) -> memoryview:
        """The row-major bytes of a tensor of ``entry``, in new memory."""
        data = in_memory(self._store.recovery, self.entry, {tensor.content})[tensor.content]
        return data if tensor.view is None else extract(data, tensor.spec, tensor.view)

    def nested(self, leaf: Callable[[str, str], object]) -> Any:
        """The nested dicts and lists of a Python state, with ``leaf(tag, key)`` for each tensor.

        ``tag``: torch, numpy or scalar. For other files, the result is a dict of all keys.
        """
        if self.entry.format != "state":
            return {tensor.key: leaf("torch", tensor.key) for tensor in self.entry.tensors}
        return decode_state(self.skeleton(), self.entry.path, leaf)

    @property
    def facts(self) -> FileFacts:
        """The metadata of a GGUF or safetensors file, and how its tensors are quantised."""
        return file_facts(self.entry, self.skeleton)

    def skeleton(self) -> bytes:
        """The bytes outside of contents, with zeros in place of checksums."""
        if self._skeleton is None:
            self._skeleton = skeleton_of(self._store.recovery, self.entry)
        return self._skeleton

    def why_opaque(self) -> tuple[str, str]:
        """Why the tensors of an opaque file are unknown, and how to save the model instead."""
        from mvc.adapters.files.detect import why_opaque

        return why_opaque(StoredBytes(self._store.recovery, self.entry), self.path)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        at = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self.size}[whence] + offset
        if at < 0:
            raise ValueError("a position before the start of the file")
        self._at = at
        return at

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        if self.closed:
            raise ValueError("I/O operation on closed file")
        count = self.read_into(self._at, memoryview(buffer).cast("B"))
        self._at += count
        return count

    def read(self, size: int | None = -1, /) -> bytes:
        left = max(0, self.size - self._at)  # never allocate more bytes than the rest of the file
        return super().read(left if size is None or size < 0 else min(size, left)) or b""

    def readall(self) -> bytes:
        return self.read()

    def read_into(self, start: int, out: memoryview) -> int:
        """Fills ``out`` with the bytes of the file from offset ``start`` on.

        Returns the number of bytes read, which is less than ``len(out)`` only at the end of the
        file.
        """
        done = 0
        first = bisect_right(self._parts, start, key=attrgetter("start")) - 1
        for index in range(max(first, 0), len(self._parts)):
            part = self._parts[index]
            inside = start + done - part.start
            length = min(part.length - inside, len(out) - done)
            if length <= 0:
                break
            with self._lock:
                data = memoryview(self._load(index)).cast("B")
            if len(data) != part.length:
                raise DamagedData(f"a part of {printable(self.entry.path)} has a wrong length")
            out[done : done + length] = data[inside : inside + length]
            done += length
        return done

    def _load(self, index: int) -> Bytes:
        part = self._parts[index]
        if part.kind == "content":
            return self._content(index)
        if part.kind == "check":
            return self._sum(self.entry.checks[part.at])
        return memoryview(self.skeleton())[part.at : part.at + part.length]

    def _content(self, index: int) -> memoryview:
        """The content in a part. Small contents after this part are decoded and cached, too."""
        wanted = self._parts[index].at
        if wanted not in self._recovered:
            chosen, total = set[int](), 0
            for part in self._parts[index:]:
                if part.kind == "content" and (not chosen or total + part.length <= _TOGETHER):
                    chosen.add(part.at)
                    total += part.length
                elif part.kind == "content":
                    break
            self._recovered = in_memory(self._store.recovery, self.entry, chosen)
        return self._recovered[wanted]

    def _sum(self, check: Check) -> bytes:
        """Computes a CRC-32 over bytes of the file."""
        name = printable(self.entry.path)
        if check in self._summing:
            raise DamagedData(f"a checksum of {name} covers itself")
        self._summing.add(check)
        value, buffer = 0, memoryview(bytearray(min(CHUNK, check.length)))
        for at in range(0, check.length, CHUNK):
            piece = buffer[: check.length - at]
            if self.read_into(check.start + at, piece) != len(piece):
                raise DamagedData(f"a checksum of {name} covers bytes past its end")
            value = zlib.crc32(piece, value)
        self._summing.discard(check)
        return value.to_bytes(CHECK_BYTES, "little")


def _parts(entry: FileEntry) -> list[_Part]:
    """All parts of a file in order: contents, computed checksums, and parts of the skeleton."""
    every = (
        *(_Part(c.offset, c.spec.nbytes, "content", i) for i, c in enumerate(entry.contents)),
        *(_Part(c.position, CHECK_BYTES, "check", i) for i, c in enumerate(entry.checks)),
    )
    stored = sorted(part for part in every if part.length)
    runs = gaps([(part.start, part.length) for part in stored], entry.size)
    done = 0  # offset in the skeleton, which has zeros in place of checksums
    parts = []
    for part in sorted([*stored, *(_Part(start, length, "skeleton", 0) for start, length in runs)]):
        parts.append(part if part.kind != "skeleton" else part._replace(at=done))
        done += part.length if part.kind != "content" else 0
    return parts
