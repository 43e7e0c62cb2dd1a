"""Results as JSON files, what a folder takes, and folders that are gone afterwards."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mvc.errors import BadModelFile
from mvc.io.files import FileSystem
from mvc.limits import MIB

__all__ = ["bytes_in", "empty_folder", "read_result", "write_result", "write_table"]

_MAX_RESULT = 16 * MIB


def read_result(fs: FileSystem, file: Path) -> dict[str, Any] | None:
    """What ``write_result`` wrote; None if there is no such file. Raises BadModelFile."""
    if fs.stat(file) is None:
        return None
    try:
        known = json.loads(fs.read_bytes(file, _MAX_RESULT))
        if isinstance(known, dict):
            return known
    except (ValueError, RecursionError):
        pass
    raise BadModelFile(f"{file} is no result", hint="delete it: it is made again")


def write_result(fs: FileSystem, file: Path, values: Mapping[str, Any]) -> None:
    """Writes the file in one step."""
    fs.write_atomic(file, json.dumps(values, indent=1).encode())


def write_table(fs: FileSystem, out: Path, name: str, data: bytes) -> Path:
    """Writes a table or picture to the folder ``tables`` of ``out``; returns the file."""
    folder = out / "tables"
    fs.make_dirs(folder)
    fs.write_atomic(folder / name, data)
    return folder / name


def bytes_in(folder: Path) -> int:
    """Total length in bytes of all files below a folder; links are not followed."""
    return sum(path.lstat().st_size for path in folder.rglob("*") if not path.is_dir())


@contextmanager
def empty_folder(folder: Path) -> Iterator[Path]:
    """A new folder in place of whatever was there, deleted at the end."""
    _remove(folder)
    folder.mkdir(parents=True)
    try:
        yield folder
    finally:
        _remove(folder)


def _remove(folder: Path) -> None:
    if folder.exists():
        shutil.rmtree(folder)
