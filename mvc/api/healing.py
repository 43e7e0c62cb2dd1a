"""Repairs a repository, even if the damage prevents opening it."""

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
    """Repairs a repository, even if the damage prevents opening it.

    ``path``: the folder of the repository, or a folder inside that folder. First repairs the
    journal (the log of all operations) and the file ``format`` (the format's version). Then
    rebuilds the index if ``rebuild``, and calls ``Storage.repair``. ``other``: a repository or a
    copy of a ``.mvc`` folder, with intact copies of damaged parts. Raises NotARepository,
    UnsupportedFormat, and DamagedData if mvc cannot determine which data is lost.
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
    """Rebuilds the index from the journal and the packs (files with the data of tensors).

    If the end of the journal is lost, returns a description of the lost entries. Otherwise returns
    None. Raises ReadOnly, DamagedData.
    """
    lost = None
    try:
        with Repository.open(path, config=config) as repo:
            if gap := lost_end(repo.handle.store.fresh()):
                lost = f"{gap.told}, and no entries follow"
    except HistoryMissing as error:  # the journal lacks entries that the index has
        lost = error.message
    if lost is not None:
        forget_index(FileSystem(), _folder(path))
    with Repository.open(path, config=config) as repo:
        repo.storage.rebuild_index()
    return lost


def _folder(path: PathName) -> Path:
    """The path of ``.mvc`` in ``path`` or in the nearest folder above. It may be damaged or
    missing.
    """
    files = FileSystem()
    start = files.realpath(Path(path))
    return next(
        (
            folder / FOLDER
            for folder in (start, *start.parents)
            if files.stat(folder / FOLDER) is not None
        ),
        start / FOLDER,
    )
