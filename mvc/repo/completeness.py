"""Checks that a version has every file of its models.

A model must not go live if its download was interrupted, or if only some of its files were
committed. The names of shards, the indexes of sharded models and ONNX graphs show which files a
model has.
"""

from __future__ import annotations

import posixpath
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Set
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path

from msgspec import Struct, ValidationError, json

from mvc.adapters.files.cursor import FileCursor
from mvc.adapters.files.onnx import tensors
from mvc.adapters.files.suspicion import suspicion
from mvc.adapters.parsed import MemorySource, Source
from mvc.errors import BadModelFile, DamagedData, StateForgotten
from mvc.ids import CommitId
from mvc.limits import MAX_SAFETENSORS_HEADER
from mvc.names import printable
from mvc.repo.content.contents import StoredBytes, without_contents
from mvc.repo.lookup import manifests
from mvc.store.store import Store

_INDEX = re.compile(r".+\.index(?:\.\w+)?\.json")
_SHARD = re.compile(r"(?P<stem>.+)-(?P<number>\d{5,})-of-(?P<total>\d{5,})(?P<suffix>.*)")
_UNFINISHED = re.compile(r".+\.(?:incomplete|part|partial|crdownload|tmp)", re.IGNORECASE)


_Open = Callable[[str], AbstractContextManager[Source]]


class _Index(Struct):
    """The index of a sharded model, which maps each tensor to a file."""

    weight_map: dict[str, str]


def refuse_incomplete(
    store: Store, commit: CommitId | None, files: Mapping[str, Path | None]
) -> None:
    """Raises BadModelFile if a model is incomplete.

    A model is incomplete if a file is missing, or if a file of the version ``commit`` is invalid,
    such as a truncated file. ``files``: maps paths to files on disk, which replace files of
    ``commit``. A path that is mapped to None counts as deleted. If ``commit`` is forgotten, nothing
    is checked.
    """
    with suppress(DamagedData, StateForgotten):
        entries = manifests.of_commit(store, commit).by_path

        def source(path: str) -> AbstractContextManager[Source]:
            if (on_disk := files.get(path)) is not None:
                return store.fs.open_read(on_disk)
            # Only opaque files (such as JSON) and ONNX files can name other files. Any other entry
            # is read as an empty JSON object, which names no files.
            entry = entries[path]
            read = {"opaque": StoredBytes, "onnx": without_contents}.get(entry.format)
            return nullcontext(read(store.recovery, entry) if read else MemorySource(b"{}"))

        _check({p for p in {*entries, *files} if files.get(p, Path()) is not None}, source)
        for path, entry in entries.items():
            opaque = entry.format == "opaque" and path not in files
            if opaque and (why := suspicion(StoredBytes(store.recovery, entry), path)):
                raise _incomplete(f"{path}: {why}")


def _check(paths: Set[str], source: _Open) -> None:
    """Raises BadModelFile if a file is missing from ``paths``, the paths of a version.

    A folder may have an index for each of several formats, such as safetensors and PyTorch. An
    index is ignored if all files that it names are missing, and another index of the folder has
    files.
    """
    named = {path: _named(path, source) for path in sorted(paths)}
    indexes = {path for path in named if _INDEX.fullmatch(path)}
    begun = {posixpath.dirname(path) for path in indexes if named[path] & paths}
    for path, names in named.items():
        if path in indexes and not names & paths and posixpath.dirname(path) in begun:
            continue
        if missing := min(names - paths, default=None):
            raise _incomplete(f"{missing} is missing, but {path} names it")
    series = defaultdict[tuple[str, ...], set[int]](set)
    for shard in filter(None, map(_SHARD.fullmatch, paths)):
        series[shard["stem"], shard["total"], shard["suffix"]].add(int(shard["number"]))
    for (stem, total, suffix), numbers in sorted(series.items()):
        first = min(1, *numbers)  # some series start at 0
        for number in range(first, first + int(total)):
            if number not in numbers:
                raise _incomplete(f"{stem}-{number:0{len(total)}}-of-{total}{suffix} is missing")
    for path in filter(_UNFINISHED.fullmatch, named):
        raise _incomplete(f"{path} is an unfinished download")


def _named(path: str, source: _Open) -> set[str]:
    """The paths of the files that ``path`` names. Empty unless it is an index or an ONNX graph."""
    names: Iterable[str] = ()
    if _INDEX.fullmatch(path):
        try:
            with source(path) as file:
                data = file.read(0, MAX_SAFETENSORS_HEADER)
            names = json.decode(data, type=_Index).weight_map.values()
        except (ValidationError, RecursionError):  # the file is another kind of index
            pass
        except ValueError:
            raise _incomplete(f"{path} is truncated or not JSON") from None
    elif path.lower().endswith(".onnx"):
        with suppress(BadModelFile, LookupError), source(path) as file:
            names = {tensor.location for tensor in tensors(FileCursor(file)) if tensor.location}
    return {posixpath.normpath(posixpath.join(path, "..", name)) for name in names}


def _incomplete(problem: str) -> BadModelFile:
    return BadModelFile(
        f"the model is incomplete: {printable(problem)}",
        hint="finish the download, or commit the whole folder; to deploy it nevertheless, add "
        "--anyway (in Python anyway=True)",
    )
