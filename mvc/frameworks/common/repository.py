"""The repository argument of a framework's callback, opened when it is first used."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from typing import Any, Self

from mvc.api import Repository, opened

AnyRepository = Repository | str | PathLike[str]
"""An open repository, or a repository's folder."""

# This lock is global, because an object with a lock could not be pickled.
_opening = threading.Lock()


class RepositoryArgument:
    """An open Repository, which the caller closes, or a folder that is opened on first use.

    In a distributed training, every process creates this object, but often only one process writes.
    So the folder is opened late.
    """

    def __init__(self, argument: AnyRepository) -> None:
        """Raises WrongUsage if ``argument`` has another type; NotARepository if the folder has no
        repository.
        """
        repo, own = opened(argument)
        self._repo: Repository | None = None if own else repo
        self._folder = Path(repo.root) if own else None
        self._argument: AnyRepository = self._folder or repo
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
        return RepositoryArgument, (self._argument,)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """If a Repository was passed, the copy shares it. If a folder was passed, the copy opens
        the folder again.
        """
        return type(self)(self._argument)

    @contextmanager
    def during(self) -> Iterator[Repository]:
        """Yields the Repository that was passed. If a folder was passed, opens the folder's
        repository until the block ends.
        """
        if self._folder is None:
            yield self.repo
            return
        with Repository.open(self._folder, discover=False) as repo:
            yield repo

    def close(self) -> None:
        """Closes the folder's repository. A later use of ``repo`` opens it again."""
        if self._folder is not None and self._repo is not None:
            repo, self._repo = self._repo, None
            repo.close()
