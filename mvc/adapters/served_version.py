"""Writes a version to a safetensors file for a process that serves a model, and reads the file.

The metadata of the file contain the id of the version (``mvc.commit``), the time when the version
went live (``mvc.time``), and a hash (``mvc.check``). The hash covers the other two values, the
structure of the state, and all tensors. A reader compares the hash to detect damage.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Annotated, Any

from msgspec import Meta, Struct

from mvc.adapters.files.safetensors import (
    header_bytes,
    parse_safetensors,
    safetensors_header,
)
from mvc.adapters.hashing import content_bytes, hash_file
from mvc.adapters.parsed import MemorySource, SourceFile
from mvc.adapters.python.state import from_state, to_state
from mvc.errors import DamagedData, WrongUsage
from mvc.ids import DIGEST_SIZE, CommitId, Root
from mvc.model.hashing import digest

_COMMIT, _TIME, _CHECK, _STRUCTURE = "mvc.commit", "mvc.time", "mvc.check", "mvc"
_TAG = b"mvc.served.1"
_Digest = Annotated[bytes, Meta(min_length=DIGEST_SIZE, max_length=DIGEST_SIZE)]


class NotedVersion(Struct, frozen=True):
    """A version that was written to a file. ``root``: the hash of the tensors in the file.

    ``mvc follow`` notes these versions in a folder next to the file.
    """

    commit: _Digest
    root: _Digest
    time_ns: Annotated[int, Meta(ge=-(1 << 63), le=(1 << 63) - 1)]


class ServedVersion(Struct, frozen=True):
    """A version to serve: bit for bit the state that ``checkout`` of ``commit`` returns.

    ``state``: maps names to weights; no other object uses the memory of the weights. ``time_ns``:
    when the version went live, in nanoseconds since 1970. In a file, this is the time of the
    deployment or, for a version that is not deployed, of the commit. A process that reads the file
    sets ``time_ns`` to the time of reading.
    """

    state: Mapping[str, Any]
    commit: CommitId
    time_ns: int

    def __repr__(self) -> str:
        return f"<ServedVersion {self.commit.short}: {len(self.state)} tensors>"


def encode_served(version: ServedVersion) -> tuple[memoryview, ...]:
    """The consecutive parts of the file. If possible, the parts share the memory of the tensors."""
    parsed = from_state(version.state)
    header = safetensors_header(parsed.skeleton(), "version")
    facts = header["__metadata__"]
    facts |= {_COMMIT: version.commit.hex(), _TIME: str(version.time_ns)}
    facts[_CHECK] = _check(facts, hash_file(parsed, "version").state.root)
    head = header_bytes(json.dumps(header, separators=(",", ":")))
    return memoryview(head), *(content_bytes(parsed, i) for i in range(len(parsed.contents)))


def decode_served(data: memoryview, name: str, noted: Iterable[NotedVersion] = ()) -> ServedVersion:
    """The version in ``data``. The tensors of its state share the memory of ``data``.

    ``name`` is used in messages. ``noted``: a file without metadata must contain one of these
    versions. Raises BadModelFile for other formats, WrongUsage for a file that mvc did not write
    for serving, and DamagedData if the tensors do not match the metadata.
    """
    source = MemorySource(data)
    parsed = SourceFile(source, name, len(data), parse_safetensors(source, name))
    facts = safetensors_header(parsed.skeleton(), name).get("__metadata__", {})
    entry = hash_file(parsed, name)
    state = to_state(entry, parsed.skeleton(), partial(content_bytes, parsed))
    if _COMMIT not in facts:
        for version in noted:
            if version.root == entry.state_id:
                return ServedVersion(state, CommitId(version.commit), version.time_ns)
        raise WrongUsage(
            f"{name} was not written by a sink",
            hint="use a file of a FileSink or of 'mvc follow'",
        )
    if facts.get(_CHECK) != _check(facts, entry.state.root):
        raise DamagedData(f"the tensors of {name} do not match its metadata")
    try:
        commit, time_ns = CommitId.parse(facts[_COMMIT]), int(facts.get(_TIME, "0"))
    except ValueError as error:
        raise DamagedData(f"{name} does not name its version") from error
    return ServedVersion(state, commit, time_ns)


def _check(facts: Mapping[str, str], root: Root) -> str:
    fields = [facts.get(key, "").encode() for key in (_COMMIT, _TIME, _STRUCTURE)]
    return digest(_TAG, root, *fields).hex()
