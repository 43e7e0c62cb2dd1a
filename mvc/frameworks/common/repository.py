"""The repository that a callback, a plugin or a writer was given, opened where it is needed."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from typing import Any, Self

from mvc.api import Repository, opened

AnyRepository = Repository | str | PathLike[str]
"""An open repository, or the folder of one."""

# Module level: an object that holds a lock cannot be pickled and sent to another process.
_opening = threading.Lock()


class GivenRepository:
    """An open Repository, which stays the caller's, or a folder whose repository is opened late.

    It is opened late because every process of a distributed training creates this object, but
    often only one process writes.
    """

    def __init__(self, given: AnyRepository) -> None:
        """Raises WrongUsage for another type, NotARepository if the folder holds no repository."""
        repo, own = opened(given)
        self._repo: Repository | None = None if own else repo
        self._folder = Path(repo.root) if own else None
        self._given: AnyRepository = self._folder or repo
        if own:
            repo.close()

    @property
    def repo(self) -> Repository:
        with _opening:
            if self._repo is None:
                assert self._folder is not None
                self._repo = Repository.open(self._folder, discover=False)
            return self._repo

    def __reduce__(self) -> tuple[Any, ...]:
        return GivenRepository, (self._given,)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Another object with the same Repository, or one that opens the folder for itself."""
        return type(self)(self._given)

    @contextmanager
    def during(self) -> Iterator[Repository]:
        """The repository that was given, or that of the folder, which is open in the block only."""
        if self._folder is None:
            yield self.repo
            return
        with Repository.open(self._folder, discover=False) as repo:
            yield repo

    def close(self) -> None:
        """Closes what was opened here; ``repo`` opens it again."""
        if self._folder is not None and self._repo is not None:
            repo, self._repo = self._repo, None
            repo.close()
