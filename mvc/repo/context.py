"""What every verb works on: an open store, the folder it belongs to, the configuration."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from mvc.repo.config import Config
from mvc.store.snapshot.view import View
from mvc.store.store import Store

__all__ = ["Context", "Progress"]

Progress: TypeAlias = Callable[[int, int, str], None]
"""Called with bytes done, bytes in all, and what is being worked on."""


@dataclass
class Context:
    """``root`` is the folder that holds ``.mvc``."""

    store: Store
    root: Path
    config: Config

    def fresh(self) -> View:
        """The store's view, moved to the journal's present end.

        Verbs that answer a question begin with it, so that a repository that stays open
        sees what other processes have published since.
        """
        view = self.store.view
        view.refresh()
        return view
