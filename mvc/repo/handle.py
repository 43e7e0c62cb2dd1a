"""Finds and opens a repository.

Modules of operations are imported only when they are needed, so that a command starts fast.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from msgspec import Struct, field

from mvc.adapters.optimizers.trainings import Trainings
from mvc.errors import (
    AlreadyARepository,
    DamagedData,
    IoFailed,
    MvcError,
    NotARepository,
)
from mvc.io.clock import Clock
from mvc.io.files import FileSystem
from mvc.names import FOLDER, printable
from mvc.repo.config import Config, load_config
from mvc.repo.killed import PLANS, Interrupted
from mvc.repo.ownership import refuse_foreign
from mvc.store.format import FORMAT
from mvc.store.index.folder import BUILDING, CURRENT
from mvc.store.journal.high_water_mark import HIGH_WATER_MARK
from mvc.store.snapshot import INDEX, JOURNAL, PACKS, IndexThresholds
from mvc.store.store import CONFIG, Store
from mvc.store.writing.base_cache import BaseCaches

if TYPE_CHECKING:
    from concurrent.futures import Executor


COPY = "backup"
"""A file that marks a ``.mvc`` as a backup or an unfinished restore (``mvc.maintenance``)."""

Configure: TypeAlias = Callable[[Path | None], Config]
"""Returns the configuration for the path of a repository's settings file (None: no file)."""

_OWN = (
    FORMAT,
    JOURNAL,
    HIGH_WATER_MARK,
    PACKS,
    PLANS,
    INDEX,
    f"{INDEX}/{CURRENT}",
    f"{INDEX}/{BUILDING}",
    "remotes",
)
"""Files that mvc checks for symbolic links when it opens the repository, and not later."""

_RESTORE = {
    FORMAT: "run 'mvc fsck --repair', or restore .mvc/format from a copy",
    JOURNAL: "restore .mvc/journal from a copy",
}


class Recent(Struct):
    """Caches of tensors and optimizer structures, which speed up the next commit."""

    caches: BaseCaches = field(default_factory=BaseCaches)
    trainings: Trainings = field(default_factory=Trainings)


class Handle(Struct):
    """An open repository: store, settings, and what this process committed recently.

    ``interrupted``: checkouts of killed processes that were completed or undone when the repository
    was opened.
    """

    store: Store
    config: Config
    recent: Recent = field(default_factory=Recent)
    interrupted: Interrupted = field(default_factory=Interrupted)


class Tuning(Struct, frozen=True, kw_only=True):
    """Settings for tests and measurements. ``thresholds``: when an index is built. ``pool``: see
    ``Store``.
    """

    thresholds: IndexThresholds | None = None
    pool: Executor | None = None


def open_handle(
    path: str | PathLike[str] = ".",
    *,
    discover: bool = True,
    config: Configure | None = None,
    fs: FileSystem | None = None,
    clock: Clock | None = None,
    tuning: Tuning | None = None,
) -> Handle:
    """Opens the repository of a folder. ``discover``: search the folder's parents, too.

    Raises NotARepository, DubiousOwnership, UnsupportedFormat, DamagedData, IoFailed,
    InvalidConfig.
    """
    files, chosen = fs or FileSystem(), tuning or Tuning()
    start = files.realpath(Path(path))
    for root in (start, *start.parents) if discover else (start,):
        if files.stat(root / FOLDER) is not None:
            folder = root / FOLDER
            refuse_foreign(files, folder)
            _check_folder(files, folder)
            files = files.shared_by(folder)
            try:
                store = Store(
                    files,
                    clock or Clock(),
                    folder,
                    thresholds=chosen.thresholds,
                    pool=chosen.pool,
                )
            except DamagedData as error:
                raise DamagedData(error.message, hint=_hint(error.hint)) from error
            file = folder / CONFIG
            try:
                settings = config(file) if config else load_config(files, file, None, {}, flags={})
            except BaseException:
                store.close()
                raise
            store.bare = bool(settings.get("core.bare"))
            handle = Handle(store, settings)
            with suppress(MvcError):  # after an error, the next command tries again
                if files.stat(folder / PLANS) is not None and files.list(folder / PLANS):
                    from mvc.repo.interrupted import finish_checkouts

                    handle.interrupted = finish_checkouts(handle.store)
            return handle
    raise NotARepository(
        f"not a repository (or any of its parents): {start}", hint="create one with 'mvc init'"
    )


def check_absent(fs: FileSystem, root: Path) -> None:
    """Raises AlreadyARepository if the folder ``root`` has a repository.

    Raises DubiousOwnership if this repository belongs to another user, and the errors of
    ``_check_folder`` if this repository is damaged.
    """
    folder = root / FOLDER
    if fs.stat(folder) is None:
        return
    refuse_foreign(fs, folder)
    _check_folder(fs, folder)
    raise AlreadyARepository(
        f"a repository exists already: {printable(str(folder))}",
        hint="use it: 'mvc status' and 'mvc log' show its content",
    )


def _hint(hint: str | None) -> str:
    """Replaces the hint to run 'mvc fsck', which could not open the repository either."""
    if hint is None or hint.startswith("run 'mvc fsck' to list"):
        return "run 'mvc fsck --repair', with --from BACKUP if there is a copy of .mvc/journal"
    return hint


def _check_folder(fs: FileSystem, folder: Path) -> None:
    """Raises an error if ``folder`` lacks a required file or contains a symbolic link."""
    shown = printable(str(folder))
    identity = fs.stat(folder)
    if fs.stat(folder / COPY) is not None and fs.stat(folder / JOURNAL) is None:
        raise DamagedData(
            f"the copy {shown} is not complete: a backup, or a restore, was interrupted",
            hint="run 'mvc backup' or 'mvc restore' again to continue",
        )
    if identity is not None and not identity.is_dir:
        raise NotARepository(
            f"{shown} is a file, but must be a folder",
            hint="move the file away, or work in another folder",
        )
    for name in (FORMAT, JOURNAL):
        identity = fs.stat(folder / name)
        if identity is None or not identity.size:
            lack = "has no file" if identity is None else "has an empty file"
            raise DamagedData(
                f"the repository {shown} is damaged or incomplete: it {lack} {name}",
                hint=f"if 'mvc restore' was interrupted, run it again; else {_RESTORE[name]}; if "
                "the repository was still empty, remove the folder and run 'mvc init'",
            )
    for name in _OWN:
        identity = fs.stat(folder / name, follow=False)
        if identity is not None and not (identity.is_dir or identity.is_file):
            raise IoFailed(
                f"{shown}/{name} is a symbolic link or a special file, which could lead to "
                "another user's data",
                hint="replace it by a copy of its target",
            )
