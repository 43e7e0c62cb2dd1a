"""Delivered weights on their way to whoever serves them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mvc.ids import CommitId

__all__ = ["Delivered"]


@dataclass(frozen=True)
class Delivered:
    """A version to serve: bit for bit what ``checkout`` of ``commit`` gives back.

    ``state`` are the weights by name, in memory of their own. ``time_ns``, in nanoseconds since
    1970, is when it went live where this object was made: for the Recorder the time of its
    deployment, or of the commit; for a reader the moment of its own swap.
    """

    state: Mapping[str, Any]
    commit: CommitId
    time_ns: int

    def __repr__(self) -> str:
        """Short: a state would fill the screen."""
        return f"<Delivered {self.commit.short}: {len(self.state)} tensors>"
