"""What ``Repository.commit`` gives back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mvc.ids import CommitId, Root
from mvc.model.commit import Commit
from mvc.repo.commit.request import PathChange
from mvc.repo.deployments import Deployed

__all__ = ["CommitResult"]


@dataclass(frozen=True, repr=False)
class CommitResult:
    """A new version. ``state`` is what to deploy: bit for bit what ``checkout`` will give back.

    ``raw_bytes`` were looked at, ``stored_bytes`` written. ``dead_links``: symbolic links in
    the folders that were named which lead nowhere; they were left out.
    """

    id: CommitId
    root: Root
    state: Any
    commit: Commit
    branch: str | None
    deployment: Deployed | None
    paths: tuple[PathChange, ...]
    raw_bytes: int
    stored_bytes: int
    dead_links: tuple[str, ...] = ()

    def __repr__(self) -> str:
        """Short: a state would fill the screen of an interactive session."""
        live = f" deployed to {self.deployment.target}" if self.deployment is not None else ""
        return (
            f"<CommitResult {self.id.short} on {self.branch or 'detached HEAD'}{live}: "
            f"paths={len(self.paths)} raw_bytes={self.raw_bytes} stored_bytes={self.stored_bytes}>"
        )
