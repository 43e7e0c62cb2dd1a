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

    def __init__(self, root: Path, versions: Mapping[str, Mapping[str, Any]]) -> None:
        self.root, self.url = root, str(root / "server")
        self.server = Repository.init(self.url, bare=True)
        self.ada = Repository.init(root / "ada")
        self.ada.remotes.add("origin", self.url)
        self.ids = [
            self.ada.commit(state, message=message).id for message, state in versions.items()
        ]
        self.ada.push()
        self.bob = mvc.clone(self.url, root / "bob")

    def close(self) -> None:
        for repo in (self.server, self.ada, self.bob):
            repo.close()
