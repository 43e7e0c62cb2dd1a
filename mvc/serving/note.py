"""The note beside a file that ``mvc follow`` keeps: which version the file holds.

It lies in the folder ``.FILE.mvc``. While a file is being replaced it names the new version and the
one before, so that whoever reads both finds the one that the file holds.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Generic, TypeVar

import msgspec
from msgspec import Struct

from mvc.adapters.served_version import NotedVersion
from mvc.errors import IoFailed
from mvc.io.files import FileSystem
from mvc.limits import MAX_MANIFEST

NOTE = "note"
_MOST = 4 * MAX_MANIFEST


_T = TypeVar("_T", bound=NotedVersion)


class Note(Struct, Generic[_T], frozen=True):
    """``versions``: the newest first."""

    versions: tuple[_T, ...] = ()


def folder_beside(file: Path) -> Path:
    """The folder of all that is remembered of a followed file."""
    return file.with_name(f".{file.name}.mvc")


def read_note(fs: FileSystem, file: Path, kind: type[_T]) -> Note[_T]:
    """What is noted beside a file; nothing where there is no note, or none that can be read."""
    with suppress(IoFailed, msgspec.MsgspecError, ValueError, RecursionError):
        data = fs.read_bytes(folder_beside(file) / NOTE, _MOST)
        return msgspec.json.decode(data, type=Note[kind])  # type: ignore[valid-type]
    return Note()


def write_note(fs: FileSystem, file: Path, note: Note[_T]) -> None:
    """Replaces the note, durably."""
    fs.write_atomic(folder_beside(file) / NOTE, msgspec.json.encode(note))
