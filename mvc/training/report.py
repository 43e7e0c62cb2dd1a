"""What became of a recording so far."""

from __future__ import annotations

from dataclasses import dataclass

from mvc.repo.repository import Committed

__all__ = ["Report"]


@dataclass(frozen=True)
class Report:
    """What became of the steps so far.

    ``steps`` were called and ``taken`` of them staged; ``durable`` are committed, ``failed``
    were not, ``skipped`` were decided against by the pipeline, ``coalesced`` gave way to a newer
    one, ``dropped`` found no room. ``newest`` is the last durable version, without its state,
    ``newest_step`` its step. ``waiting_bytes`` are staged at this moment and ``peak_bytes`` were
    at most.
    """

    steps: int
    taken: int
    durable: int
    failed: int
    coalesced: int
    dropped: int
    newest: Committed | None
    newest_step: int | None
    waiting_bytes: int
    peak_bytes: int
    skipped: int = 0
