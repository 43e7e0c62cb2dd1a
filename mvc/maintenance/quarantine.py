"""The quarantine: damaged stored bytes, kept for a later repair or for people.

A file holds the first bytes of a pack and one damaged range of a pack unchanged; its name
is pack and offset. Only repair reads it. Only gc deletes it, after a state was forgotten by
name (``purged``).
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
_BEYOND = 1 << 40  # from here on pack numbers mean files of the quarantine


class DamagedRange(Struct, frozen=True):
    """Bytes [start, end) of a pack that are put into quarantine, and why."""

    pack: int
    start: int
    end: int
    why: str


def files_in(fs: FileSystem, folder: Path) -> list[Path]:
    """The files in the quarantine of the repository folder ``folder``."""
    return [path for path in _all(fs, folder) if path.name.endswith(".pack")]


def _all(fs: FileSystem, folder: Path) -> list[Path]:
    place = _place(fs, folder)
    return [] if fs.stat(place) is None else [place / name for name in fs.list(place)]


def _place(fs: FileSystem, folder: Path) -> Path:
    """The quarantine, whether it is there or not.

    Raises IoFailed for a symbolic link: it could lead to the packs of another repository.
    """
    place = folder / QUARANTINE
    there = fs.stat(place, follow=False)
    if there is not None and not there.is_dir:
        raise IoFailed(f"{place} is no folder", hint="move away what stands there")
    return place


def keep(fs: FileSystem, folder: Path, ranges: Iterable[DamagedRange]) -> list[Quarantined]:
    """Copies ranges of packs into the quarantine, durably. Missing packs are left out."""
    place = _place(fs, folder)
    kept: dict[str, Quarantined] = {}
    for part in ranges:
        source = pack_path(folder / PACKS, part.pack)
        if fs.stat(source) is None:
            continue
        if fs.stat(place) is None:
            fs.make_dir(place, exist_ok=True)
            fs.sync_dir(folder)
        name = f"{part.pack:08d}-{part.start:012d}.pack"
        kept[name] = Quarantined(name, _copy(fs, source, part, place / name), part.why)
    return list(kept.values())


def _copy(fs: FileSystem, source: Path, part: DamagedRange, target: Path) -> int:
    """Returns the bytes copied: the pack may end before the range does."""
    with fs.open_read(source) as pack:
        end = max(part.start, min(part.end, pack.size()))

        def write(file: WriteFile) -> None:
            file.write(PACK_HEADER)
            for at in range(part.start, end, _WINDOW):
                file.write(pack.read(at, min(_WINDOW, end - at)))

        fs.replace_file(target, write, mode=None, durable=True)
    return end - part.start


def purged(fs: FileSystem, folder: Path, reach: Reachable) -> list[Path]:
    """The files that may hold bytes of states forgotten by name; none unless ``reach.purge``.

    A file stays only if it can be read from one sound header to the next, and each record in
    it makes an object that a version needs out of others like it.
    """
    if not reach.purge:
        return []
    # An interrupted repair leaves the file that it was writing.
    cut_off = [path for path in _all(fs, folder) if path.name.startswith(TEMPORARY)]
    needed = {bytes(id_)[:BASE_BYTES] for ids in (reach.blobs, reach.manifests) for id_ in ids}
    with closing(QuarantinePacks(fs, folder)) as packs:
        files = packs.files.items()
        return [path for n, path in files if not _only_needed(packs, n, reach, needed)] + cut_off


def _only_needed(packs: QuarantinePacks, number: int, reach: Reachable, needed: set[bytes]) -> bool:
    try:
        return all(
            reach.needs(member.id) and needed.issuperset(member.needs)
            for _, header in packs.records(packs.region(number))
            for member in header.members
        )
    except DamagedData:
        return False


def delete(fs: FileSystem, files: Sequence[Path]) -> None:
    """Deletes files; durable on return."""
    for path in files:
        fs.unlink(path, missing_ok=True)
    for place in {path.parent for path in files}:
        fs.sync_dir(place)


def bytes_of(fs: FileSystem, files: Iterable[Path]) -> int:
    """Bytes of files; a missing file counts as 0."""
    sizes = [fs.stat(path) for path in files]
    return sum(each.size for each in sizes if each is not None)


class QuarantinePacks(PackReader):
    """Reads packs, and the files of the quarantine under numbers that no pack has (``files``)."""

    def __init__(self, fs: FileSystem, folder: Path) -> None:
        super().__init__(fs, folder / PACKS)
        self.files = dict(enumerate(files_in(fs, folder), _BEYOND))

    def region(self, number: int) -> Region:
        """All bytes of a file behind the pack header; of negative length if it is cut off."""
        return Region(number, len(PACK_HEADER), self._file(number).size() - len(PACK_HEADER))

    def _path(self, pack: int) -> Path:
        return self.files.get(pack) or super()._path(pack)
