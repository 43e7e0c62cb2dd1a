"""The reports of a node (a process that serves models) to its remote repository.

A report says which version the node serves, and since when. The node writes each report to a queue
and sends it later. The remote records the report as a deployment on ``nodes/NAME/TARGET``, at the
time of the node's clock. If a report arrives twice, the remote records it once. The queue is a text
file with one line for each report. A delivered report stays in the file until its target has a
newer report.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import msgspec
from blake3 import blake3
from msgspec import Meta, Struct
from msgspec.structs import replace

from mvc.errors import HistoryMissing, InvalidName, InvalidTime, MvcError, RemoteRefused
from mvc.ids import DIGEST_SIZE, CommitId
from mvc.limits import MAX_AHEAD_NS, MIB
from mvc.names import NODES, check_node, check_ref, is_report
from mvc.system import Clock, FileSystem
from mvc.transport import NodeReport, Sent, Slice, Transport, encode_entries

QUEUE = "reports"
"""Name of the file with the queue."""
MOST = 10_000
"""Maximum number of waiting reports. In a full queue, a new report replaces the oldest."""
AT_ONCE = 256  # maximum number of reports in one request
_REFUSALS = 32  # maximum number of refusals in one call of ``send``
_LARGEST = 8 * MIB
_REFUSED = (HistoryMissing, InvalidName, InvalidTime, RemoteRefused)


class _Report(Struct, frozen=True, array_like=True):
    """``commit`` is served for ``target`` (``nodes/NAME/TARGET``) from ``time_ns`` on.

    ``refusals``: how often the remote has refused this report.
    """

    target: str
    commit: Annotated[bytes, Meta(min_length=DIGEST_SIZE, max_length=DIGEST_SIZE)]
    time_ns: Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
    delivered: bool = False
    refusals: Annotated[int, Meta(ge=0, le=1 << 30)] = 0


class Reports:
    """The queue of the node ``name``, in ``folder``. Only one process may use the queue.

    Raises InvalidName if ``name`` is not a valid name of a node.
    """

    def __init__(
        self,
        folder: Path,
        name: str,
        fs: FileSystem | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.name = check_node(name)
        self._file = folder / QUEUE
        self._fs, self._clock = fs or FileSystem(), clock or Clock()

    @property
    def waiting(self) -> list[str]:
        """The target (``nodes/NAME/TARGET``) of each waiting report."""
        return [row.target for row in self._read() if not row.delivered]

    def served(self, commit: CommitId, target: str, when_ns: int) -> None:
        """Adds a report: this node serves ``commit`` since ``when_ns`` of its clock.

        The report is durable on return. If the newest report of the target names ``commit``, adds
        nothing. If the clock was set back, the new report gets a time just after the time of the
        newest report.
        """
        target = f"{NODES}{self.name}/{target}"
        rows = self._read()
        before = next((row for row in reversed(rows) if row.target == target), None)
        if before is not None and before.time_ns > when_ns + MAX_AHEAD_NS:
            # The clock was far ahead when the newest report was added. Remotes refuse reports from
            # the far future, so delete these reports.
            rows = [row for row in rows if row.time_ns <= when_ns + MAX_AHEAD_NS]
            before = next((row for row in reversed(rows) if row.target == target), None)
        if before is not None:
            if before.commit == commit:
                return
            when_ns = max(when_ns, before.time_ns + 1)
        self._write([*rows, _Report(target, bytes(commit), when_ns)])

    def send(self, transport: Transport) -> None:
        """Sends the waiting reports, and marks them as delivered.

        Reports that the remote has refused least often come first. If the remote refuses a report,
        sends the other reports, and then raises the error of the last refusal. Raises
        RemoteUnreachable.
        """
        waiting = sorted(
            (row for row in self._read() if not row.delivered), key=lambda row: row.refusals
        )
        due = [waiting[at : at + AT_ONCE] for at in range(0, len(waiting), AT_ONCE)][::-1]
        done, refused, refusals = set[_Report](), set[_Report](), list[MvcError]()
        try:
            while due and len(refusals) <= _REFUSALS:
                rows = due.pop()
                try:
                    self._offer(transport, rows)
                    done.update(rows)
                except _REFUSED as error:
                    refusals.append(error)
                    half = len(rows) // 2
                    due += [rows[half:], rows[:half]] if half else ()
                    refused.update(() if half else rows)
        finally:
            if done or refused:
                self._write(
                    replace(
                        row, delivered=row.delivered or row in done,
                        refusals=row.refusals + (row in refused),
                    )
                    for row in self._read()
                )  # fmt: skip
        if refusals:
            raise refusals[-1]

    def drop(self, target: str) -> None:
        """Deletes the waiting reports of ``nodes/NAME/TARGET``."""
        self._write(row for row in self._read() if row.delivered or row.target != target)

    def _offer(self, transport: Transport, rows: Sequence[_Report]) -> None:
        now = self._clock.now_ns()
        entries = [
            Sent(reports=(NodeReport(row.target, row.commit, row.time_ns, now),)) for row in rows
        ]
        transport.receive(Slice(encode_entries(entries), 0, ()))

    # -- the file ------------------------------------------------------------------------

    def _read(self) -> list[_Report]:
        """All valid lines of the queue, oldest first."""
        if self._fs.stat(self._file) is None:
            return []
        with self._fs.open_read(self._file) as file:
            return list(_rows(file.read(0, _LARGEST)))

    def _write(self, rows: Iterable[_Report]) -> None:
        queue = list(rows)
        newest = {row.target: row for row in queue}
        queue = [row for row in queue if not row.delivered or row is newest[row.target]]
        lines = map(msgspec.json.encode, queue[-MOST:])
        data = b"".join(b"%s %s\n" % (_check(text), text) for text in lines)
        self._fs.write_atomic(self._file, data)


def _rows(data: bytes) -> Iterator[_Report]:
    for line in data.splitlines():
        check, _, text = line.partition(b" ")
        if check == _check(text):
            with suppress(msgspec.MsgspecError, ValueError, InvalidName):
                row = _decoder.decode(text)
                if is_report(check_ref("target", row.target)):
                    yield row


def _check(text: bytes) -> bytes:
    return blake3(text).hexdigest(8).encode()


_decoder = msgspec.json.Decoder(_Report)
