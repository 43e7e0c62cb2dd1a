"""The quarantine: damaged stored bytes, kept for a later repair or for people.

A file holds the first bytes of a pack and one damaged range of a pack unchanged; its name
is pack and offset. Only repair reads it. Only gc deletes it, after a state was forgotten by
name (``purged``).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from mvc.errors import DamagedData
from mvc.io.files import TEMPORARY, FileSystem, WriteFile
from mvc.repo.maintenance.reachable import Reachable
from mvc.repo.maintenance.report import Quarantined
from mvc.store.journal.entries import Region
from mvc.store.packs.reader import PACK_HEADER, PackReader, pack_path
from mvc.store.packs.records import BASE_BYTES
from mvc.store.snapshot import PACKS

__all__ = ["QUARANTINE", "DamagedRange", "delete", "files_in", "keep", "purged", "total"]


QUARANTINE = "quarantine"
_WINDOW = 1 << 20


@dataclass(frozen=True, slots=True)
class DamagedRange:
    """Bytes [start, end) of a pack that are put into quarantine, and why."""

    pack: int
    start: int
    end: int
    why: str


def files_in(fs: FileSystem, folder: Path) -> list[Path]:
    """The files in the quarantine of the repository folder ``folder``."""
    place = folder / QUARANTINE
    if fs.stat(place) is None:
        return []
    return [place / name for name in fs.list(place) if name.endswith(".pack")]


def keep(fs: FileSystem, folder: Path, ranges: Iterable[DamagedRange]) -> list[Quarantined]:
    """Copies ranges of packs into the quarantine, durably. Missing packs are left out."""
    place = folder / QUARANTINE
    kept: dict[str, Quarantined] = {}
    for part in ranges:
        source = pack_path(folder / PACKS, part.pack)
        if fs.stat(source) is None:
            continue
        if fs.stat(place) is None:
            fs.make_dir(place, exist_ok=True)
            fs.sync_dir(folder)
        name = f"{part.pack:08d}-{part.start:012d}.pack"
        length = _copy(fs, source, part, place / name)
        kept[name] = Quarantined(name, length, part.why)
    return list(kept.values())


def _copy(fs: FileSystem, source: Path, part: DamagedRange, target: Path) -> int:
    """Returns the bytes copied: the pack may end before the range does."""
    copied = 0
    with fs.open_read(source) as pack:

        def write(file: WriteFile) -> None:
            nonlocal copied
            file.write(PACK_HEADER)
            at = part.start
            while at < part.end:
                data = pack.read(at, min(_WINDOW, part.end - at))
                if not data:
                    break
                file.write(data)
                at += len(data)
            copied = at - part.start

        fs.replace_file(target, write, mode=None, durable=True)
    return copied


def purged(fs: FileSystem, folder: Path, reach: Reachable) -> list[Path]:
    """The files that may hold bytes of states forgotten by name; none unless ``reach.purge``.

    A file stays only if it can be read from one sound header to the next, and each record in
    it makes an object that a version needs out of others like it.
    """
    if not reach.purge:
        return []
    files = files_in(fs, folder)
    # An interrupted repair leaves the file that it was writing.
    cut_off = [path for path in _all(fs, folder) if path.name.startswith(TEMPORARY)]
    if not files:
        return cut_off
    needed = {bytes(id_)[:BASE_BYTES] for ids in (reach.blobs, reach.manifests) for id_ in ids}
    return [path for path in files if not _only_needed(fs, path, reach, needed)] + cut_off


def delete(fs: FileSystem, files: Sequence[Path]) -> None:
    """Deletes files; durable on return."""
    for path in files:
        fs.unlink(path, missing_ok=True)
    for place in {path.parent for path in files}:
        fs.sync_dir(place)


def total(fs: FileSystem, files: Sequence[Path]) -> int:
    """Bytes of files; a missing file counts as 0."""
    sizes = [fs.stat(path) for path in files]
    return sum(each.size for each in sizes if each is not None)


def _all(fs: FileSystem, folder: Path) -> list[Path]:
    place = folder / QUARANTINE
    return [] if fs.stat(place) is None else [place / name for name in fs.list(place)]


class _File(PackReader):
    """Reads one file of the quarantine as pack 0."""

    def __init__(self, fs: FileSystem, path: Path) -> None:
        super().__init__(fs, path.parent)
        self._open[0] = fs.open_read(path)
        self.size = self._open[0].size()


def _only_needed(fs: FileSystem, path: Path, reach: Reachable, needed: set[bytes]) -> bool:
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
