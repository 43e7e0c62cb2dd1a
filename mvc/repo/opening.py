"""Finding and opening a repository, without loading what only some verbs need."""

from __future__ import annotations

from collections.abc import Callable
from os import PathLike
from pathlib import Path

from mvc.errors import NotARepository
from mvc.io.clock import Clock
from mvc.io.files import FileSystem
from mvc.repo.config import Config, load_config
from mvc.repo.context import Context
from mvc.store.store import CONFIG, FOLDER, Store

__all__ = ["open_context"]


def open_context(
    path: str | PathLike[str] = ".",
    *,
    discover: bool = True,
    config: Callable[[Path], Config] | None = None,
    fs: FileSystem | None = None,
    clock: Clock | None = None,
) -> Context:
    """The repository of a folder, or with ``discover`` of the nearest one above it.

    ``config`` makes the configuration from the path of the repository's own file.
    Raises NotARepository, UnsupportedFormat, DamagedData.
    """
    files = fs or FileSystem()
    start = files.realpath(Path(path))
    for root in (start, *start.parents) if discover else (start,):
        if files.stat(root / FOLDER) is not None:
            store = Store(files, clock or Clock(), root / FOLDER)
            file = root / FOLDER / CONFIG
            settings = config(file) if config else load_config(files, file, None, {}, {})
            return Context(store, root, settings)
    raise NotARepository(
        f"not a repository (or any of its parents): {start}", hint="make one with 'mvc init'"
    )
