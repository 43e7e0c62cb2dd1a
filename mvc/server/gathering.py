"""What nodes report within half a second becomes one entry of the journal, durable for all of them.

A report that is refused is found by halves, so that one node holds no other one back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from msgspec import Struct
from msgspec.structs import replace

from mvc.errors import MvcError
from mvc.transport import NodeReport, Received, Sent, Slice, Transport, encode_entries

SECONDS = 0.5
"""For which the first report waits for others, and its node for an answer before it swaps again."""
MOST = 20_000
"""Reports that wait at once, of one repository."""
_ENTRY = 128  # deployments in one entry


class _Waiting(Struct, eq=False):
    """What one request reports, and what becomes of it."""

    reports: tuple[NodeReport, ...]
    outcome: Received | MvcError | None = None


class Gathering:
    """The reports on one repository that wait, and what they wait for."""

    def __init__(self, seconds: float = SECONDS) -> None:
        self._seconds = seconds
        self._waiting: list[_Waiting] = []
        self._round: asyncio.Task[None] | None = None

    @property
    def is_full(self) -> bool:
        return sum(len(each.reports) for each in self._waiting) >= MOST

    async def add(
        self,
        reports: Sequence[NodeReport],
        transport: Transport,
        run: Callable[..., Awaitable[object]],
        *,
        now_ns: int,
        author: str,
    ) -> Received:
        """Returns once what a request of ``author`` reports is durable. Raises what it is refused
        for.

        ``run`` calls a function in a thread.
        """
        noted = (replace(each, author=author, arrived_ns=now_ns) for each in reports)
        mine = _Waiting(tuple(noted))
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
    """Publishes what was reported, and notes for each request what became of it."""
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
    for each in gathered:
        each.outcome = received


def _joined(gathered: Sequence[_Waiting]) -> Slice:
    """Few entries: each has at most one deployment on a target."""
    entries: list[dict[str, NodeReport]] = []
    for report in (report for each in gathered for report in each.reports):
        at = next((e for e in entries if report.target not in e and len(e) < _ENTRY), None)
        if at is None:
            entries.append(at := {})
        at[report.target] = report
    sent = [Sent(reports=tuple(each.values())) for each in entries]
    return Slice(encode_entries(sent), 0, ())
