"""The two files of torch.save: a zip archive, and since before 1.6 five pickles before storages.

Both are read from their structure and the pickle's opcodes alone.
"""

from __future__ import annotations

import re
from bisect import bisect
from collections.abc import Iterable
from typing import Any

from mvc.adapters.files.pickle_nodes import Persistent, PickledDict, read_pickle, read_pickles
from mvc.adapters.files.torch_tensors import find_tensors, place_tensors, stored_as
from mvc.adapters.files.zip_layout import ZipMember, find_checks, read_members
from mvc.adapters.parsed import FileParts, ParsedContent, Source
from mvc.errors import BadModelFile
from mvc.limits import MAX_PICKLE, MIB
from mvc.model.tensor import DTYPES, TensorSpec

OLD_HEAD = rb"\x80.{1,16}" + re.escape(b"\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.")
"""How a file of the old format begins: with a pickle of one number."""

_OLD_VERSION = 1001
_COUNT = 8  # bytes before a storage of the old format: the number of its elements
_BIG_MEMBER = MIB
"""Members without tensors from this size on are contents of their own, not skeleton."""


def archive_name(members: Iterable[ZipMember]) -> str | None:
    """The folder inside the archive that holds ``data.pkl``; None if it is no torch file."""
    names = [m.name for m in members]
    folder = names[0].split("/")[0] if names else ""
    return folder if f"{folder}/data.pkl" in names else None


def read_root(source: Source, name: str) -> Any:
    """The nodes of what a file of either format holds. Raises BadModelFile."""
    if source.read(0, 1) == b"\x80":
        return read_old(source)[0]
    return _root(source, name, read_members(source, name))[1]


def _root(source: Source, name: str, members: Iterable[ZipMember]) -> tuple[ZipMember, Any]:
    """The member ``data.pkl`` and the nodes in it."""
    wanted = f"{archive_name(members)}/data.pkl"
    pickle = next((m for m in members if m.name == wanted), None)
    if pickle is None or not pickle.stored or pickle.size > MAX_PICKLE:
        raise BadModelFile(f"{name}: data.pkl is missing, compressed or too long")
    return pickle, read_pickle(source.read(pickle.start, pickle.size))


def parse_torch_zip(source: Source, name: str, members: tuple[ZipMember, ...]) -> FileParts:
    """Raises BadModelFile for what torch would not have written."""
    folder = archive_name(members)
    by_name = {m.name: m for m in members}
    pickle, root = _root(source, name, members)
    tensors = find_tensors(root)
    order = by_name.get(f"{folder}/byteorder")
    if order is not None and source.read(order.start, order.size) != b"little":
        tensors = []
    prefix = f"{folder}/data/"
    inside = {m for m in members if m.stored and m.name.startswith(prefix)}
    storages: dict[str | int, ParsedContent] = {
        m.name.removeprefix(prefix) if m in inside else m.header: _raw(m.start, m.size)
        for m in members
        if m in inside or (m.size >= _BIG_MEMBER and m is not pickle)
    }
    contents, parsed = place_tensors(tensors, storages, source.size(), name)
    starts = [member.start for member in members]
    holding = sorted({bisect(starts, c.offset) - 1 for c in contents if c.spec.nbytes})
    checks = find_checks(source, name, [members[i] for i in holding])
    return FileParts("torch", contents, parsed, checks)


def _raw(start: int, size: int) -> ParsedContent:
    return ParsedContent(start, TensorSpec("raw", (size,)))


def parse_torch_old(source: Source, name: str) -> FileParts:
    """Raises BadModelFile for what torch would not have written."""
    root, sizes, at = read_old(source)
    storages: dict[str | int, ParsedContent] = {}
    for key, (width, size) in sizes.items():
        count = int.from_bytes(source.read(at, _COUNT), "little")
        if count * width != size or at + _COUNT + size > source.size():
            raise BadModelFile(f"{name}: the storage {key} does not fit its place")
        storages[key] = _raw(at + _COUNT, size)
        at += _COUNT + size
    return FileParts("torch", *place_tensors(find_tensors(root), storages, source.size(), name))


def read_old(source: Source) -> tuple[Any, dict[str, tuple[int, int]], int]:
    """The nodes of a file of the old format, its storages in order, and where the first begins.

    Of each storage, the bytes of an element and of all. Raises BadModelFile.
    """
    if not re.match(OLD_HEAD, source.read(0, 40), re.DOTALL):
        raise BadModelFile("it is a pickle, and not one of torch.save")
    references: list[Persistent] = []
    for most in (MIB, 16 * MIB, MAX_PICKLE):
        references.clear()
        try:
            (_, version, system, root, keys), at = read_pickles(source.read(0, most), 5, references)
            break
        except BadModelFile:
            if most >= min(source.size(), MAX_PICKLE):
                raise
    little = isinstance(system, PickledDict) and ("little_endian", True) in system.pairs
    if version != _OLD_VERSION or not little or not isinstance(keys, list):
        raise BadModelFile("it is of another version or byte order of torch's old format")
    known: dict[Any, tuple[int, int]] = {}
    for reference in references:
        if isinstance(reference.id, tuple) and reference.id[:1] == ("storage",):
            dtype, key, size = stored_as(reference.id)
            known.setdefault(key, (DTYPES[dtype or "raw"].itemsize, size))
    if not all(isinstance(key, str) and key in known for key in keys) or len({*keys}) < len(keys):
        raise BadModelFile("its list of storages is malformed")
    return root, {key: known[key] for key in keys}, at
