"""Results as JSON files, what a folder takes, and folders that are gone afterwards."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from mvc.errors import BadModelFile, UnknownPath
from mvc.io.files import FileSystem
from mvc.limits import MIB

__all__ = [
    "bytes_in", "empty_folder", "read_report", "read_result", "write_result", "write_table",
]  # fmt: skip

_T = TypeVar("_T")
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


def read_report(
    fs: FileSystem,
    path: Path,
    schema: str,
    make: Callable[[dict[str, Any]], _T],
    of: tuple[str, str],
) -> _T:
    """What ``make`` makes of the JSON of a report, less its ``schema``.

    ``of``: what the file should be, and what writes one. Raises UnknownPath and BadModelFile.
    """
    if fs.stat(path) is None:
        raise UnknownPath(f"there is no {path}", hint="name a JSON file of a folder tables/")
    try:
        values = json.loads(fs.read_bytes(path, _MAX_RESULT))
        if values.pop("schema") != schema:
            raise ValueError
        return make(values)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        what, writer = of
        raise BadModelFile(
            f"{path} is no {what}", hint=f"name a JSON file that {writer} wrote"
        ) from None


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
