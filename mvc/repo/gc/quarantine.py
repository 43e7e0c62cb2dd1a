"""gc: which files of the quarantine may hold bytes of states that were forgotten by name.

A file may stay if it can be read from one sound header to the next, and every record in it
makes an object that a version still needs out of others like it. Of anything else nobody
can say what it leads to.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from mvc.errors import DamagedData
from mvc.io.files import TEMPORARY, FileSystem
from mvc.repo.maintenance.quarantine import QUARANTINE, files_in
from mvc.repo.maintenance.reachable import Reach
from mvc.store.journal.entries import Region
from mvc.store.packs.reader import PACK_HEADER, PackReader
from mvc.store.packs.records import BASE_BYTES

__all__ = ["delete", "purged", "total"]


def purged(fs: FileSystem, folder: Path, reach: Reach) -> list[Path]:
    """Files of the quarantine that must go; none unless ``reach.purge``."""
    if not reach.purge:
        return []
    files = files_in(fs, folder)
    # A repair that was cut off leaves the file that it was writing.
    cut_off = [path for path in _all(fs, folder) if path.name.startswith(TEMPORARY)]
    if not files:
        return cut_off
    needed = {bytes(id_)[:BASE_BYTES] for ids in (reach.blobs, reach.manifests) for id_ in ids}
    return [path for path in files if not _only_needed(fs, path, reach, needed)] + cut_off


def delete(fs: FileSystem, files: Sequence[Path]) -> None:
    """Durable on return."""
    for path in files:
        fs.unlink(path, missing_ok=True)
    for place in {path.parent for path in files}:
        fs.sync_dir(place)


def total(fs: FileSystem, files: Sequence[Path]) -> int:
    """Bytes of files; one that is gone has none."""
    sizes = [fs.stat(path) for path in files]
    return sum(each.size for each in sizes if each is not None)


def _all(fs: FileSystem, folder: Path) -> list[Path]:
    place = folder / QUARANTINE
    return [] if fs.stat(place) is None else [place / name for name in fs.list(place)]


class _File(PackReader):
    """One file, whatever its name."""

    def __init__(self, fs: FileSystem, path: Path) -> None:
        super().__init__(fs, path.parent)
        self._open[0] = fs.open_read(path)
        self.size = self._open[0].size()


def _only_needed(fs: FileSystem, path: Path, reach: Reach, needed: set[bytes]) -> bool:
    begin = len(PACK_HEADER)
    file = _File(fs, path)
    try:
        if file.size < begin:
            return False
        return all(
            reach.needs(member.id) and (not member.base or member.base in needed)
            for _, header in file.records(Region(0, begin, file.size - begin))
            for member in header.members
        )
    except DamagedData:
        return False
    finally:
        file.close()
