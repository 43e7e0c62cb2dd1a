"""Verbs of a repository under a name of their own: ``repo.storage``, ``recipes``, ``remotes``."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mvc.api.repository import Repository
    from mvc.repo.context import Context


class Namespace:
    """What all of them share: the repository."""

    def __init__(self, repo: Repository) -> None:
        self._repo = repo

    @property
    def context(self) -> Context:
        """What the repository is made of."""
        return self._repo.context

    @property
    def closed(self) -> bool:
        """Whether the repository is closed."""
        return self._repo.closed
