"""What may be done to the index from outside, whatever its layout is.

The index is disposable: a user, a backup tool or a script may delete it, put an older copy
in its place, or that of another repository. These functions do so with plain calls to the
operating system. They know only that the index is a folder, that ``data.mdb`` and
``lock.mdb`` may stand in it or in folders in it, and that other files may point to these.
"""

from __future__ import annotations

import os
import random
import shutil
from contextlib import suppress
from pathlib import Path

__all__ = [
    "INDEX",
    "copy_to",
    "data_files",
    "delete",
    "delete_data",
    "delete_locks",
    "delete_pointers",
    "empty",
    "garble_data",
    "garble_pointers",
    "move_to",
    "put_files",
    "put_folder",
    "read",
    "write",
]

INDEX = ".mvc/index.lmdb"
_PAGE = 4096
_LOCK = "lock.mdb"
_DATA = "data.mdb"


def _files(index: Path) -> list[Path]:
    """Every file of the index; none where it vanishes meanwhile."""
    found = []
    for folder, _, names in os.walk(index):
        found += [Path(folder, name) for name in names]
    return sorted(found)


def data_files(index: Path) -> list[Path]:
    """The LMDB files, by any layout."""
    return [path for path in _files(index) if path.name == _DATA]


def _pointers(index: Path) -> list[Path]:
    return [path for path in _files(index) if path.suffix != ".mdb"]


# -- deletion ------------------------------------------------------------------------------


def delete(index: Path) -> None:
    """The whole folder, as ``rm -r`` does it; what others make in it meanwhile may stay."""
    shutil.rmtree(index, ignore_errors=True)


def delete_data(index: Path) -> None:
    for path in data_files(index):
        path.unlink(missing_ok=True)


def delete_locks(index: Path) -> None:
    for path in _files(index):
        if path.name == _LOCK:
            path.unlink(missing_ok=True)


def delete_pointers(index: Path) -> None:
    for path in _pointers(index):
        path.unlink(missing_ok=True)


def empty(index: Path, aside: Path) -> None:
    """An empty folder in place of the index."""
    move_to(index, aside)
    index.mkdir(exist_ok=True)


# -- exchange ------------------------------------------------------------------------------


def copy_to(index: Path, aside: Path) -> None:
    """Copies the index, as a backup tool does it that knows nothing of LMDB."""
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    for path in _files(index):
        target = aside / path.relative_to(index)
        target.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileNotFoundError):
            shutil.copyfile(path, target)


def move_to(index: Path, aside: Path) -> None:
    """Takes the index away with its inodes, so that it can come back as it is."""
    shutil.rmtree(aside, ignore_errors=True)
    aside.parent.mkdir(parents=True, exist_ok=True)
    with suppress(FileNotFoundError):
        os.rename(index, aside)


def put_folder(index: Path, aside: Path, trash: Path) -> None:
    """``aside`` in place of the index, by renaming folders; the inodes come with it."""
    move_to(index, trash)
    with suppress(OSError):  # somebody may have made a new index meanwhile: then that stays
        os.rename(aside, index)


def put_files(index: Path, aside: Path, *, locks: bool) -> None:
    """The files of ``aside`` in place of those of the index, one by one, with new inodes.

    With ``locks`` also the lock files. What the index has beside them stays.
    """
    for path in _files(aside):
        if path.name == _LOCK and not locks:
            continue
        target = index / path.relative_to(aside)
        target.parent.mkdir(parents=True, exist_ok=True)
        fresh = target.with_name(f".{target.name}.fresh")
        with suppress(FileNotFoundError):  # somebody may delete the folder at this moment
            shutil.copyfile(path, fresh)
            os.replace(fresh, target)


# -- damage --------------------------------------------------------------------------------


def _replace(path: Path, data: bytes) -> None:
    fresh = path.with_name(f".{path.name}.fresh")
    with suppress(FileNotFoundError):
        fresh.write_bytes(data)
        os.replace(fresh, path)


def garble_data(index: Path, rng: random.Random) -> None:
    """Every LMDB file is replaced by one page of garbage."""
    for path in data_files(index):
        _replace(path, rng.randbytes(_PAGE))


def garble_pointers(index: Path, rng: random.Random) -> None:
    """Every other file is replaced by a few bytes of garbage, by a name or by nothing."""
    for path in _pointers(index):
        _replace(path, rng.choice((b"", rng.randbytes(40), b"0123456789abcdef", b"../packs\n")))


# -- as values -----------------------------------------------------------------------------


def read(index: Path) -> dict[str, bytes]:
    """The index by path; without lock files, which mean nothing in another place."""
    return {
        path.relative_to(index).as_posix(): path.read_bytes()
        for path in _files(index)
        if path.name != _LOCK
    }


def write(index: Path, files: dict[str, bytes]) -> None:
    """An index of exactly these files."""
    delete(index)
    for name, data in files.items():
        (index / name).parent.mkdir(parents=True, exist_ok=True)
        (index / name).write_bytes(data)
