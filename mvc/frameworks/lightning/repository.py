"""The repository that a callback or a plugin was given, or opens where it is needed."""

from __future__ import annotations

import threading
from os import PathLike
from pathlib import Path

from mvc.api import Repository
from mvc.training.checks import opened

__all__ = ["Place"]


# Of the module, because what holds a lock cannot be sent to another process.
_opening = threading.Lock()


class Place:
    """A Repository, which stays the caller's, or a folder, whose repository is opened late.

    Late, because every process of a distributed training makes the object, and one writes.
    """

    def __init__(self, given: Repository | str | PathLike[str]) -> None:
        """Raises WrongUsage for anything else, NotARepository for a folder that is none."""
        repo, own = opened(given)
        self._repo: Repository | None = None if own else repo
        self._folder = Path(repo.root) if own else None
        if own:
            repo.close()

    @property
    def repo(self) -> Repository:
        """The open repository."""
        with _opening:
            if self._repo is None:
                assert self._folder is not None
                self._repo = Repository.open(self._folder, discover=False)
            return self._repo

    def close(self) -> None:
        """Closes what was opened here; ``repo`` opens it again."""
        if self._folder is not None and self._repo is not None:
            repo, self._repo = self._repo, None
            repo.close()
