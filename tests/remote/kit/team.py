"""A team: a bare repository, and two people who work with clones of it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import mvc
from mvc.api.repository import Repository


class Team:
    """A bare repository ``server`` to which ada has pushed versions, and that bob has cloned.

    ``versions``: their states by message. ``ids`` are theirs, the oldest first.
    """

    def __init__(
        self, root: Path, versions: Mapping[str, Mapping[str, Any]], *, bob: bool = True
    ) -> None:
        self._open: list[Repository] = []
        self.root, self.url = root, str(root / "server")
        self.server = self._kept(Repository.init(self.url, bare=True))
        self.ada = self._kept(Repository.init(root / "ada"))
        self.ada.remotes.add("origin", self.url)
        self.ids = [
            self.ada.commit(state, message=message).id for message, state in versions.items()
        ]
        self.ada.push()
        if bob:
            self.bob = self.clone("bob")

    def clone(
        self, name: str, states: str = "all", *, of: str = "server", **remote: str
    ) -> Repository:
        """A clone of one of the repositories; ``remote``: options of its remote."""
        made = self._kept(mvc.clone(str(self.root / of), self.root / name, states=states))
        if remote:
            made.remotes.add("origin", str(self.root / of), force=True, states=states, **remote)
        return made

    def _kept(self, repo: Repository) -> Repository:
        self._open.append(repo)
        return repo

    def close(self) -> None:
        for repo in self._open:
            repo.close()
