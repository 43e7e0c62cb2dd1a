"""What became of a recording so far."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from mvc.repo.repository import CommitResult

if TYPE_CHECKING:
    from mvc.training.queue import Queue
    from mvc.training.writer_thread import Behind

__all__ = ["Report", "report_of"]


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
    newest: CommitResult | None
    newest_step: int | None
    waiting_bytes: int
    peak_bytes: int
    skipped: int = 0


def report_of(steps: int, taken: int, queue: Queue, behind: Behind) -> Report:
    """The counts at this moment."""
    newest = behind.newest
    return Report(
        steps,
        taken,
        behind.durable,
        behind.failed,
        queue.coalesced,
        queue.dropped,
        newest[1] if newest else None,
        newest[0] if newest else None,
        queue.held,
        queue.peak,
        behind.skipped,
    )
