"""The repository that a caller gives: an open one, its folder, or one that does not open."""

from __future__ import annotations

from os import PathLike
from pathlib import Path

from msgspec.structs import replace

from mvc.api.repository import Repository
from mvc.errors import NotARepository, WrongUsage
from mvc.io.files import FileSystem
from mvc.maintenance.report import Repaired
from mvc.names import FOLDER
from mvc.repo.opening import Configure
from mvc.repo.ownership import refuse_foreign
from mvc.types import PathName


def opened(given: Repository | PathName) -> tuple[Repository, bool]:
    """The repository, and whether this call opened it, so that the caller must close it.

    ``given`` is an open repository, or the folder of one. Raises WrongUsage for anything else and
    for a closed repository, NotARepository for a folder without one.
    """
    if isinstance(given, Repository):
        if given.closed:
            raise WrongUsage("this repository is closed", hint="open it again")
        return given, False
    if not isinstance(given, str | PathLike):
        kind = type(given).__name__
        raise WrongUsage(
            f"repo is of type {kind}: it must be an open mvc.Repository, or the path of one"
        )
    try:
        return Repository.open(given, discover=False), True
    except NotARepository as error:
        raise NotARepository(
            f"not a repository: {Path(given)}",
            hint="make it with mvc.Repository.init(...) or 'mvc init'",
        ) from error


def heal(
    path: PathName = ".",
    *,
    other: PathName | None = None,
    full: bool = False,
    config: Configure | None = None,
) -> Repaired:
    """Repairs the repository of a folder, even one that does not open.

    First the journal and the format file, without which nothing opens, then as
    ``repair`` does. ``other`` is a repository or a copy of a ``.mvc`` folder that may have
    what is damaged here. Raises NotARepository, UnsupportedFormat, and DamagedData where
    what is lost cannot be told from what is there.
    """
    from mvc.maintenance.repair.journal import before_opening
    from mvc.maintenance.repair.repair import folder_of

    files = FileSystem()
    source = None if other is None else folder_of(files, Path(other))
    folder = files.realpath(Path(path)) / FOLDER
    refuse_foreign(files, folder)
    first = [] if files.stat(folder) is None else before_opening(files, folder, source)
    with Repository.open(path, discover=False, config=config) as repo:
        done = repo.storage.repair(full=full, other=other)
    return replace(done, healed=(*first, *done.healed))
