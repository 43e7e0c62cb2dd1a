"""The quarantine: damaged stored bytes, retained for a later repair or for people to examine.

A file in the quarantine has the header of a pack and one damaged range of the pack, unchanged. The
name of the file consists of the pack's number and the range's offset. Only repair recovers data
from these files. Only gc deletes such files: those that may contain bytes of a state that was
forgotten by name (``purged``).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import closing
from pathlib import Path

from msgspec import Struct

from mvc.errors import DamagedData, IoFailed
from mvc.io.files import TEMPORARY, FileSystem, WriteFile
from mvc.maintenance.collect import Reachable
from mvc.maintenance.report import Quarantined
from mvc.store.journal.entries import Region
from mvc.store.packs.reader import PACK_HEADER, PackReader, pack_path
from mvc.store.packs.records import BASE_BYTES
from mvc.store.snapshot import PACKS

QUARANTINE = "quarantine"
_WINDOW = 1 << 20
_BEYOND = 1 << 40  # numbers from here on are for quarantined files, not for packs


class DamagedRange(Struct, frozen=True):
    """Bytes [start, end) of a pack to put into quarantine, and why."""

    pack: int
    start: int
    end: int
    why: str


def files_in(fs: FileSystem, folder: Path) -> list[Path]:
    """The quarantined files of the repository whose folder is ``folder``."""
    return [path for path in _all(fs, folder) if path.name.endswith(".pack")]


def _all(fs: FileSystem, folder: Path) -> list[Path]:
    quarantine = _quarantine(fs, folder)
    return (
        [] if fs.stat(quarantine) is None else [quarantine / name for name in fs.list(quarantine)]
    )


def _quarantine(fs: FileSystem, folder: Path) -> Path:
    """The path of the quarantine, which may not exist.

    Raises IoFailed for a symbolic link: it could lead to the packs of another repository.
    """
    quarantine = folder / QUARANTINE
    info = fs.stat(quarantine, follow=False)
    if info is not None and not info.is_dir:
        raise IoFailed(
            f"{quarantine} is not a folder",
            hint="move it elsewhere: mvc needs this name for the quarantine",
        )
    return quarantine


def keep(fs: FileSystem, folder: Path, ranges: Iterable[DamagedRange]) -> list[Quarantined]:
    """Copies ranges of packs into the quarantine, durably. Skips packs that are missing."""
    quarantine = _quarantine(fs, folder)
    copies: dict[str, Quarantined] = {}
    for part in ranges:
        source = pack_path(folder / PACKS, part.pack)
        if fs.stat(source) is None:
            continue
        if fs.stat(quarantine) is None:
            fs.make_dir(quarantine, exist_ok=True)
            fs.sync_dir(folder)
        name = f"{part.pack:08d}-{part.start:012d}.pack"
        copies[name] = Quarantined(name, _copy(fs, source, part, quarantine / name), part.why)
    return list(copies.values())


def _copy(fs: FileSystem, source: Path, part: DamagedRange, target: Path) -> int:
    """Copies a range.

    Returns the number of copied bytes: the pack may end before the range does.
    """
    with fs.open_read(source) as pack:
        end = max(part.start, min(part.end, pack.size()))

        def write(file: WriteFile) -> None:
            file.write(PACK_HEADER)
            for at in range(part.start, end, _WINDOW):
                file.write(pack.read(at, min(_WINDOW, end - at)))

        fs.replace_file(target, write, mode=None, durable=True)
    return end - part.start


def purged(fs: FileSystem, folder: Path, reach: Reachable) -> list[Path]:
    """The files that may contain bytes of states forgotten by name; none unless ``reach.purge``.

    A file is not deleted if it consists of whole records (parts that store objects), and if each
    object that the records name is needed by a version.
    """
    if not reach.purge:
        return []
    # An interrupted repair leaves a temporary file, which is deleted, too.
    temporary = [path for path in _all(fs, folder) if path.name.startswith(TEMPORARY)]
    needed = {bytes(id_)[:BASE_BYTES] for ids in (reach.blobs, reach.manifests) for id_ in ids}
    with closing(QuarantinePacks(fs, folder)) as packs:
        files = packs.files.items()
        return [path for n, path in files if not _only_needed(packs, n, reach, needed)] + temporary


def _only_needed(packs: QuarantinePacks, number: int, reach: Reachable, needed: set[bytes]) -> bool:
    try:
        return all(
            reach.needs(member.id) and needed.issuperset(member.needs)
            for _, header in packs.records(packs.region(number))
            for member in header.members
        )
    except DamagedData:
        return False


def delete_files(fs: FileSystem, files: Sequence[Path]) -> None:
    """Deletes files. The deletion is durable when this function returns."""
    for path in files:
        fs.unlink(path, missing_ok=True)
    for quarantine in {path.parent for path in files}:
        fs.sync_dir(quarantine)


def bytes_of(fs: FileSystem, files: Iterable[Path]) -> int:
    """The total size of files. A missing file counts as 0 bytes."""
    sizes = [fs.stat(path) for path in files]
    return sum(info.size for info in sizes if info is not None)


class QuarantinePacks(PackReader):
    """Reads packs and quarantined files.

    ``files``: maps numbers to quarantined files. No pack has one of these numbers.
    """

    def __init__(self, fs: FileSystem, folder: Path) -> None:
        super().__init__(fs, folder / PACKS)
        self.files = dict(enumerate(files_in(fs, folder), _BEYOND))

    def region(self, number: int) -> Region:
        """The range of all bytes after the pack header.

        The range has a negative length if the file is truncated.
        """
        return Region(number, len(PACK_HEADER), self._file(number).size() - len(PACK_HEADER))

    def _path(self, pack: int) -> Path:
        return self.files.get(pack) or super()._path(pack)
