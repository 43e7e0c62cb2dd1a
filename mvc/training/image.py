"""A state as the bytes that a serving process reads: a safetensors file, in memory.

Beside the tensors its metadata says which version it is (``mvc.commit``) and when that was made
(``mvc.time``). ``mvc.check`` is a hash over these, the state's structure and the Merkle root of
the tensors, by which whoever reads it knows that it is whole.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from mvc.adapters.files.safetensors import parse_header, parse_safetensors
from mvc.adapters.parsed import ParsedFile, SourceFile
from mvc.adapters.python.state import from_state, to_state
from mvc.errors import DamagedData
from mvc.ids import CommitId, Root
from mvc.model.hashing import blob_id, digest
from mvc.repo.content.hashing import entry_from

__all__ = ["Image", "image_of", "read_image"]

_COMMIT, _TIME, _CHECK, _STRUCTURE = "mvc.commit", "mvc.time", "mvc.check", "mvc"
_TAG = b"mvc.served.1"
_LENGTH_BYTES = 8
_ALIGNMENT = 64


@dataclass(frozen=True)
class Image:
    """The bytes in order; ``parts`` are those of the tensors where they lie, if they lie well."""

    parts: tuple[memoryview, ...]
    size: int


@dataclass(frozen=True)
class Served:
    """What an image holds. ``commit`` is None in a file that no sink has written."""

    state: dict[str, Any]
    commit: CommitId | None
    time_ns: int


def image_of(state: Mapping[str, Any], commit: CommitId, time_ns: int) -> Image:
    """The image of a state of tensors; they must not change while it is in use."""
    parsed = from_state(state)
    tensors = tuple(_content(parsed, i) for i in range(len(parsed.contents)))
    ids = [blob_id(c.spec, t, parallel=True) for c, t in zip(parsed.contents, tensors, strict=True)]
    root = entry_from(parsed, "image", ids, b"", tensors.__getitem__).state.root
    header = parse_header(parsed.skeleton()[_LENGTH_BYTES:], "image")
    facts = header["__metadata__"]
    facts |= {_COMMIT: commit.hex(), _TIME: str(time_ns)}
    facts[_CHECK] = _check(facts, root)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-(len(text) + _LENGTH_BYTES) % _ALIGNMENT)
    head = memoryview(len(text).to_bytes(_LENGTH_BYTES, "little") + text)
    return Image((head, *tensors), len(head) + sum(map(len, tensors)))


def read_image(data: memoryview, name: str) -> Served:
    """The state in ``data``, whose memory it keeps; torch tensors where torch tensors went in.

    ``name`` is for messages. Raises BadModelFile, and DamagedData where the tensors are not
    those that the metadata names.
    """
    source = _Memory(data)
    parsed = SourceFile(source, name, len(data), parse_safetensors(source, name))
    tensors = [data[c.offset : c.end] for c in parsed.contents]
    ids = [blob_id(c.spec, t, parallel=True) for c, t in zip(parsed.contents, tensors, strict=True)]
    skeleton = parsed.skeleton()
    entry = entry_from(parsed, name, ids, skeleton, tensors.__getitem__)
    facts = parse_header(skeleton[_LENGTH_BYTES:], name).get("__metadata__", {})
    if _COMMIT in facts and facts.get(_CHECK) != _check(facts, entry.state.root):
        raise DamagedData(f"{name} does not hold what it says it holds")
    try:
        commit = CommitId.parse(facts[_COMMIT]) if _COMMIT in facts else None
        time_ns = int(facts.get(_TIME, "0"))
    except ValueError as error:
        raise DamagedData(f"{name} says of no version what it is") from error
    return Served(to_state(entry, skeleton, tensors.__getitem__), commit, time_ns)


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
    """Bytes that are there already, as parsers want them."""

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
