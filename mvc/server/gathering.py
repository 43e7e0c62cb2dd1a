"""Collects reports of nodes (machines that serve a model), and publishes them together.

All reports that arrive within half a second need only one flush to disk. If the reports are
refused, each half of the reports is published separately, and so on. So a node with a wrong report
cannot block other nodes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from msgspec import Struct
from msgspec.structs import replace

from mvc.errors import MvcError
from mvc.transport import NodeReport, Received, Sent, Slice, Transport, encode_entries

SECONDS = 0.5
"""Seconds for which the first report waits for more reports before all of them are published."""
MOST = 20_000
"""Limit of waiting reports of one repository."""
_ENTRY = 128  # limit of reports in one journal entry


class _Waiting(Struct, eq=False):
    """The reports of one request, and their result."""

    reports: tuple[NodeReport, ...]
    outcome: Received | MvcError | None = None


class Gathering:
    """The waiting reports of one repository."""

    def __init__(self, seconds: float = SECONDS) -> None:
        self._seconds = seconds
        self._waiting: list[_Waiting] = []
        self._round: asyncio.Task[None] | None = None

    @property
    def is_full(self) -> bool:
        return sum(len(request.reports) for request in self._waiting) >= MOST

    async def add(
        self,
        reports: Sequence[NodeReport],
        transport: Transport,
        run: Callable[..., Awaitable[object]],
        *,
        now_ns: int,
        author: str,
    ) -> Received:
        """Adds the reports of ``author``, and returns when they are durable.

        Raises an error if the reports are refused. ``run``: calls a function in a thread.
        """
        stamped = (replace(report, author=author, arrived_ns=now_ns) for report in reports)
        mine = _Waiting(tuple(stamped))
        self._waiting.append(mine)
        if self._round is None:
            self._round = asyncio.create_task(self._wait(transport, run))
        await asyncio.shield(self._round)
        if isinstance(mine.outcome, Received):
            return mine.outcome
        raise mine.outcome or MvcError("a report was not published")

    async def _wait(self, transport: Transport, run: Callable[..., Awaitable[object]]) -> None:
        await asyncio.sleep(self._seconds)
        self._round, gathered, self._waiting = None, self._waiting, []
        await run(_publish, transport, gathered)


def _publish(transport: Transport, gathered: Sequence[_Waiting]) -> None:
    """Publishes the reports, and sets the result of each request."""
    try:
        received = transport.receive(_joined(gathered))
    except MvcError as error:
        half = len(gathered) // 2
        if not half:
            gathered[0].outcome = error
            return
        _publish(transport, gathered[:half])
        _publish(transport, gathered[half:])
        return
    for request in gathered:
        request.outcome = received


def _joined(gathered: Sequence[_Waiting]) -> Slice:
    """Joins reports into few journal entries. An entry has at most one report for each target."""
    entries: list[dict[str, NodeReport]] = []
    for report in (report for request in gathered for report in request.reports):
        at = next((e for e in entries if report.target not in e and len(e) < _ENTRY), None)
        if at is None:
            entries.append(at := {})
        at[report.target] = report
    sent = [Sent(reports=tuple(entry.values())) for entry in entries]
    return Slice(encode_entries(sent), 0, ())
