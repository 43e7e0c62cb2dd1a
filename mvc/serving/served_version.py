"""A version on its way to the process that serves it, and its form as a safetensors file.

The metadata of the file name the version (``mvc.commit``) and when it went live (``mvc.time``).
``mvc.check`` is a hash over both, the state's structure and the Merkle root of the tensors, so
that a reader detects any damage.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from mvc.adapters.files.safetensors import (
    LENGTH_BYTES,
    header_bytes,
    parse_header,
    parse_safetensors,
)
from mvc.adapters.parsed import ParsedFile, SourceFile
from mvc.adapters.python.state import from_state, to_state
from mvc.errors import DamagedData, WrongUsage
from mvc.ids import CommitId, Root
from mvc.model.hashing import blob_id, digest
from mvc.model.manifest import FileEntry
from mvc.repo.content.hashing import entry_from

__all__ = ["ServedVersion", "decode", "encode"]

_COMMIT, _TIME, _CHECK, _STRUCTURE = "mvc.commit", "mvc.time", "mvc.check", "mvc"
_TAG = b"mvc.served.1"


@dataclass(frozen=True)
class ServedVersion:
    """A version to serve: bit for bit what ``checkout`` of ``commit`` returns.

    ``state`` maps names to weights, in memory of their own. ``time_ns``, in nanoseconds since
    1970, is when the version went live: the Recorder gives the time of its deployment, or else
    of the commit; a reader gives the moment of its own swap.
    """

    state: Mapping[str, Any]
    commit: CommitId
    time_ns: int

    def __repr__(self) -> str:
        return f"<ServedVersion {self.commit.short}: {len(self.state)} tensors>"


def encode(version: ServedVersion) -> tuple[memoryview, ...]:
    """The file in consecutive parts, which borrow the memory of the state where they can."""
    parsed = from_state(version.state)
    tensors = tuple(_content(parsed, i) for i in range(len(parsed.contents)))
    header = parse_header(parsed.skeleton()[LENGTH_BYTES:], "version")
    facts = header["__metadata__"]
    facts |= {_COMMIT: version.commit.hex(), _TIME: str(version.time_ns)}
    facts[_CHECK] = _check(facts, _entry(parsed, "version", b"", tensors).state.root)
    head = header_bytes(json.dumps(header, separators=(",", ":")))
    return memoryview(head), *tensors


def decode(data: memoryview, name: str) -> ServedVersion:
    """The version in ``data``; its state borrows that memory.

    ``name`` is for messages. Raises BadModelFile for other formats, WrongUsage for a file that
    no sink has written, and DamagedData where the tensors are not those that the metadata name.
    """
    source = _Memory(data)
    parsed = SourceFile(source, name, len(data), parse_safetensors(source, name))
    tensors = tuple(data[c.offset : c.end] for c in parsed.contents)
    skeleton = parsed.skeleton()
    entry = _entry(parsed, name, skeleton, tensors)
    facts = parse_header(skeleton[LENGTH_BYTES:], name).get("__metadata__", {})
    if _COMMIT not in facts:
        raise WrongUsage(
            f"{name} was not written by a sink", hint="a FileSink writes files for a FileReader"
        )
    if facts.get(_CHECK) != _check(facts, entry.state.root):
        raise DamagedData(f"{name} does not hold what it says it holds")
    try:
        commit, time_ns = CommitId.parse(facts[_COMMIT]), int(facts.get(_TIME, "0"))
    except ValueError as error:
        raise DamagedData(f"{name} does not name its version") from error
    return ServedVersion(to_state(entry, skeleton, tensors.__getitem__), commit, time_ns)


def _entry(
    parsed: ParsedFile, name: str, skeleton: bytes, tensors: tuple[memoryview, ...]
) -> FileEntry:
    ids = [blob_id(c.spec, t, parallel=True) for c, t in zip(parsed.contents, tensors, strict=True)]
    return entry_from(parsed, name, ids, skeleton, tensors.__getitem__)


def _check(facts: Mapping[str, str], root: Root) -> str:
    said = [facts.get(key, "").encode() for key in (_COMMIT, _TIME, _STRUCTURE)]
    return digest(_TAG, root, *said).hex()


def _content(parsed: ParsedFile, i: int) -> memoryview:
    borrowed = parsed.borrow(i)
    if borrowed is not None:
        return borrowed
    out = np.empty(parsed.contents[i].spec.nbytes, np.uint8).data
    parsed.read(i, 0, out)
    return out


class _Memory:
    """Bytes in memory as the ``Source`` of a parser."""

    def __init__(self, data: memoryview) -> None:
        self._data = data

    def size(self) -> int:
        return len(self._data)

    def read(self, offset: int, length: int) -> bytes:
        return bytes(self._data[offset : offset + length])

    def read_into(self, offset: int, buffer: memoryview) -> int:
        part = self._data[offset : offset + len(buffer)]
        buffer[: len(part)] = part
        return len(part)
