"""The quarantine: stored bytes that were given up, kept for a later attempt or for people.

A file holds a pack's first bytes and then one stretch of a pack as it was, and is named
after pack and offset. Only a repair reads it, and only a collection after a state was forgotten
by name deletes it (``gc_quarantine``).
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from mvc.io.files import FileSystem, WriteFile
from mvc.repo.maintenance.report import Quarantined
from mvc.repo.maintenance.survey import Stretch
from mvc.store.packs.reader import PACK_HEADER, pack_path
from mvc.store.snapshot import PACKS

__all__ = ["QUARANTINE", "files_in", "keep"]

QUARANTINE = "quarantine"
_WINDOW = 1 << 20


def files_in(fs: FileSystem, folder: Path) -> list[Path]:
    """What lies in the quarantine of the repository folder ``folder``."""
    place = folder / QUARANTINE
    if fs.stat(place) is None:
        return []
    return [place / name for name in fs.list(place) if name.endswith(".pack")]


def keep(fs: FileSystem, folder: Path, stretches: Iterable[Stretch]) -> list[Quarantined]:
    """Copies stretches of packs into the quarantine, durably; what is missing is left out."""
    place = folder / QUARANTINE
    kept: dict[str, Quarantined] = {}
    for stretch in stretches:
        source = pack_path(folder / PACKS, stretch.pack)
        if fs.stat(source) is None:
            continue
        if fs.stat(place) is None:
            fs.make_dir(place, exist_ok=True)
            fs.sync_dir(folder)
        name = f"{stretch.pack:08d}-{stretch.start:012d}.pack"
        length = _copy(fs, source, stretch, place / name)
        kept[name] = Quarantined(name, length, stretch.why)
    return list(kept.values())


def _copy(fs: FileSystem, source: Path, stretch: Stretch, target: Path) -> int:
    """Bytes that were there: the pack may end before the stretch does."""
    copied = 0
    with fs.open_read(source) as pack:

        def write(file: WriteFile) -> None:
            nonlocal copied
            file.write(PACK_HEADER)
            at = stretch.start
            while at < stretch.end:
                data = pack.read(at, min(_WINDOW, stretch.end - at))
                if not data:
                    break
                file.write(data)
                at += len(data)
            copied = at - stretch.start

        fs.replace_file(target, write, mode=None, durable=True)
    return copied
