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
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

__all__ = [
    "INDEX", "TREATMENTS", "Place", "data_files", "delete", "drawn", "move_to", "put_folder",
    "read", "write",
]  # fmt: skip

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


def _delete_data(index: Path) -> None:
    for path in data_files(index):
        path.unlink(missing_ok=True)


def _delete_locks(index: Path) -> None:
    for path in _files(index):
        if path.name == _LOCK:
            path.unlink(missing_ok=True)


def _delete_pointers(index: Path) -> None:
    for path in _pointers(index):
        path.unlink(missing_ok=True)


def _empty(index: Path, aside: Path) -> None:
    """An empty folder in place of the index."""
    move_to(index, aside)
    index.mkdir(exist_ok=True)


# -- exchange ------------------------------------------------------------------------------


def _copy_to(index: Path, aside: Path) -> None:
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


def _put_files(index: Path, aside: Path, *, locks: bool) -> None:
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


def _garble_data(index: Path, rng: random.Random) -> None:
    """Every LMDB file is replaced by one page of garbage."""
    for path in data_files(index):
        _replace(path, rng.randbytes(_PAGE))


def _garble_pointers(index: Path, rng: random.Random) -> None:
    """Every other file is replaced by a few bytes of garbage, by a name or by nothing."""
    for path in _pointers(index):
        _replace(path, rng.choice((b"", rng.randbytes(40), b"0123456789abcdef", b"../packs\n")))


# -- by name -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Place:
    """``aside``: a copy that was kept, or room for one. ``foreign``: another repository's index."""

    index: Path
    aside: Path
    trash: Path
    foreign: Path

    @classmethod
    def beside(cls, root: Path, foreign: Path, number: int = 0) -> Place:
        """For the repository in ``root``; copies are kept next to it, by number."""
        return cls(
            root / INDEX,
            root.with_name(f"{root.name}-aside{number}"),
            root.with_name(f"{root.name}-trash"),
            foreign,
        )


def _put_kept(place: Place) -> None:
    if place.aside.exists():
        put_folder(place.index, place.aside, place.trash)


def _put_foreign(place: Place) -> None:
    shutil.rmtree(place.aside, ignore_errors=True)
    shutil.copytree(place.foreign, place.aside)
    put_folder(place.index, place.aside, place.trash)


TREATMENTS: dict[str, tuple[Callable[[Place, random.Random], None], int]] = {
    "delete": (lambda at, rng: delete(at.index), 3),
    "delete data": (lambda at, rng: _delete_data(at.index), 3),
    "delete locks": (lambda at, rng: _delete_locks(at.index), 3),
    "delete pointers": (lambda at, rng: _delete_pointers(at.index), 3),
    "empty": (lambda at, rng: _empty(at.index, at.trash), 1),
    "garble data": (lambda at, rng: _garble_data(at.index, rng), 2),
    "garble pointers": (lambda at, rng: _garble_pointers(at.index, rng), 1),
    "keep": (lambda at, rng: _copy_to(at.index, at.aside), 6),
    "away": (lambda at, rng: move_to(at.index, at.aside), 2),
    "put folder": (lambda at, rng: _put_kept(at), 5),
    "put files": (lambda at, rng: _put_files(at.index, at.aside, locks=False), 4),
    "put files and locks": (lambda at, rng: _put_files(at.index, at.aside, locks=True), 3),
    "foreign": (lambda at, rng: _put_foreign(at), 2),
    "foreign files": (lambda at, rng: _put_files(at.index, at.foreign, locks=False), 2),
}
"""What may be done, and how often it should be drawn."""


def drawn(root: Path, foreign: Path, rng: random.Random) -> str:
    """Does one of them to the index of the repository in ``root``; its name."""
    name = rng.choices([*TREATMENTS], [weight for _, weight in TREATMENTS.values()])[0]
    TREATMENTS[name][0](Place.beside(root, foreign, rng.randrange(2)), rng)
    return name


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
