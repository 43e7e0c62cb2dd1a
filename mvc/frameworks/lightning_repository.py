"""The repository that a callback or a plugin was given, or opens where it is needed."""

from __future__ import annotations

import threading
from os import PathLike
from pathlib import Path

from mvc.errors import NotARepository
from mvc.repo.repository import Repository

__all__ = ["Place"]


# Of the module, because what holds a lock cannot be sent to another process.
_opening = threading.Lock()


class Place:
    """A Repository, which stays the caller's, or a folder, whose repository is opened late.

    Late, because every process of a distributed training makes the object, and one writes.
    """

    def __init__(self, given: Repository | str | PathLike[str]) -> None:
        self._folder = None if isinstance(given, Repository) else Path(given)
        self._repo = given if isinstance(given, Repository) else None

    @property
    def repo(self) -> Repository:
        """The open repository; a folder that is none becomes one."""
        with _opening:
            if self._repo is None:
                assert self._folder is not None
                try:
                    self._repo = Repository.open(self._folder, discover=False)
                except NotARepository:
                    self._repo = Repository.init(self._folder)
            return self._repo

    def close(self) -> None:
        """Closes what was opened here; ``repo`` opens it again."""
        if self._folder is not None and self._repo is not None:
            repo, self._repo = self._repo, None
            repo.close()
