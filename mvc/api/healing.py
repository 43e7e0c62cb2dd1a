"""Repairs a repository that may not open."""

from __future__ import annotations

from pathlib import Path

from msgspec.structs import replace

from mvc.api.repository import Repository
from mvc.errors import HistoryMissing
from mvc.io.files import FileSystem
from mvc.maintenance.fsck.fsck import forget_index, lost_end
from mvc.maintenance.repair.journal import before_opening
from mvc.maintenance.repair.repair import folder_of
from mvc.maintenance.report import Repaired
from mvc.names import FOLDER
from mvc.repo.handle import Configure
from mvc.repo.ownership import refuse_foreign
from mvc.types import PathName, Progress


def heal(
    path: PathName = ".",
    *,
    other: PathName | None = None,
    full: bool = False,
    rebuild: bool = False,
    config: Configure | None = None,
    progress: Progress | None = None,
) -> Repaired:
    """Repairs the repository of a folder, or of the nearest one above it, even if it does not open.

    First the journal and the format file, without which nothing opens, with ``rebuild`` the index,
    then as ``Storage.repair`` does. ``other`` is a repository or a copy of a ``.mvc`` folder that
    may have what is damaged here. Raises NotARepository, UnsupportedFormat, and DamagedData where
    what is lost cannot be told from what is there.
    """
    files, folder = FileSystem(), _folder(path)
    source = None if other is None else folder_of(files, Path(other))
    refuse_foreign(files, folder)
    first = [] if files.stat(folder) is None else before_opening(files, folder, source)
    lost = rebuild_index(path, config=config) if rebuild else None
    with Repository.open(path, config=config) as repo:
        done = repo.storage.repair(full=full, other=other, progress=progress)
    return replace(done, healed=(*first, *done.healed), lost=lost)


def rebuild_index(path: PathName = ".", *, config: Configure | None = None) -> str | None:
    """Makes the index anew from journal and packs, even if the journal has lost its end.

    Returns which entries are given up by that, if any. Raises ReadOnly, DamagedData.
    """
    lost = None
    try:
        with Repository.open(path, config=config) as repo:
            if gap := lost_end(repo.handle.store.fresh()):
                lost = f"{gap.told}, and nothing stands behind"
    except HistoryMissing as error:  # the journal is older than the index
        lost = error.message
    if lost is not None:
        forget_index(FileSystem(), _folder(path))
    with Repository.open(path, config=config) as repo:
        repo.storage.rebuild_index()
    return lost


def _folder(path: PathName) -> Path:
    """The ``.mvc`` of the repository that ``path`` means, whether it can be opened or not."""
    files = FileSystem()
    start = files.realpath(Path(path))
    return next(
        (
            each / FOLDER
            for each in (start, *start.parents)
            if files.stat(each / FOLDER) is not None
        ),
        start / FOLDER,
    )
