"""Records being written: filled with pieces, then appended by another thread.

Pieces are gathered into a record until their raw bytes fill it; then it is appended to the writer's
pack while the next record is encoded. Readers see nothing before ``mvc.store.publishing.publish``
has written the journal entry with the regions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor

from msgspec import Struct, field

from mvc.limits import RECORD, RECORD_MEMBERS, RECORD_TEXTS
from mvc.pipelines.group import encode_group
from mvc.pipelines.pipeline import Pipeline
from mvc.store.packs.arena import Arena, Arenas
from mvc.store.packs.records import Coding, Member, payload_check
from mvc.store.writing.pack_writer import RecordSink
from mvc.store.writing.pieces import (
    Waiting,
    copy_to_next_base,
    group_member,
    payload_of,
    placed,
    report_chain,
)
from mvc.store.writing.proof import prove_check, prove_group, proven_header, proven_steps
from mvc.types import Bytes

_IN_FLIGHT = 2  # records being appended while later ones are encoded


class _OpenRecord(Struct):
    """Pieces gathered so far; ``arena`` has their encoded chunks.

    ``grouped``: they share one payload. ``texts``: of their codings. ``settled``: how many pieces,
    from the first on, are encoded and copied to the next base.
    """

    grouped: bool
    arena: Arena
    pieces: list[Waiting] = field(default_factory=list)
    texts: set[str] = field(default_factory=set)
    raw: int = 0
    settled: int = 0


class RecordsInFlight:
    """Two open records, and those being appended. Not thread-safe.

    ``sequence``: the operation that will publish them.
    """

    def __init__(self, packs: RecordSink, arenas: Arenas, sequence: int) -> None:
        self._packs, self._arenas, self._sequence = packs, arenas, sequence
        self._open = {kind: _OpenRecord(kind, arenas.lend()) for kind in (True, False)}
        self._appender: Executor | None = None
        self._appending: list[Future[None]] = []
        self.needs_raw = False  # whether ``drain`` has raw bytes to code or to copy

    @property
    def single(self) -> Sequence[Waiting]:
        """Pieces of the open record whose pieces are coded one by one."""
        return self._open[False].pieces

    @property
    def allocate(self) -> Callable[[int], memoryview]:
        """Allocates memory for chunks of the next piece that is not ``grouped``."""
        return self._open[False].arena.allocate

    def add(self, piece: Waiting, *, grouped: bool = False) -> None:
        """Adds a piece, whose chunks may still be being encoded."""
        record = self._open[grouped]
        self.needs_raw |= grouped or piece.next_base is not None
        record.pieces.append(piece)
        record.texts.add(piece.text)
        record.raw += piece.nbytes

    def append_full(self) -> None:
        """Appends full records in another thread, while later ones are encoded."""
        for grouped, record in self._open.items():
            full = record.raw >= RECORD or len(record.pieces) >= RECORD_MEMBERS
            if not full and len(record.texts) < RECORD_TEXTS:
                continue
            if self._appender is None:
                self._appender = ThreadPoolExecutor(1, thread_name_prefix="mvc-append")
            self._await(_IN_FLIGHT - 1)
            self._appending.append(
                self._appender.submit(self._append_all, self._next_record(grouped))
            )

    def drain(self) -> None:
        """Waits until everything is encoded.

        The last record stays open, so that a manifest can join the contents that it names.
        """
        self._await()
        if self._open[True].pieces:
            self._append_all(self._next_record(True))
        single = self._open[False]
        for piece in single.pieces[single.settled :]:
            for chunk in piece.chunks:
                chunk.result()
            copy_to_next_base(piece)
        single.settled, self.needs_raw = len(single.pieces), False

    def flush(self) -> None:
        try:
            self._await()
            for grouped in self._open:
                self._append_all(self._next_record(grouped))
        finally:
            self._stop()

    def close(self) -> None:
        """Discards everything that ``flush`` has not appended."""
        for record in self._open.values():
            for piece in record.pieces:
                for chunk in piece.chunks:
                    chunk.cancel()
        self._stop()
        # Arenas of other records stay: their chunks may still be written by other threads.
        for record in (r for r in self._open.values() if not r.pieces):
            self._arenas.give_back(record.arena)

    def _await(self, left: int = 0) -> None:
        """Waits until at most ``left`` records are being appended."""
        while len(self._appending) > left:
            self._appending.pop(0).result()

    def _stop(self) -> None:
        """Waits for the appending thread; the pack must stay locked until then."""
        if self._appender is not None:
            self._appender.shutdown()
            self._appender = None
        self._appending.clear()

    def _next_record(self, grouped: bool) -> _OpenRecord:
        """Returns the open record and begins another one."""
        record = self._open[grouped]
        self._open[grouped] = _OpenRecord(grouped, self._arenas.lend())
        return record

    def _append_all(self, record: _OpenRecord) -> None:
        if record.grouped:
            self._append_group(record.pieces)
        elif record.pieces:
            self._append_single(record.pieces)
        for piece in record.pieces:
            copy_to_next_base(piece)
        self._arenas.give_back(record.arena)

    def _append_single(self, pieces: Sequence[Waiting]) -> None:
        members: list[Member] = []
        body: list[Bytes] = []
        at = 0
        for piece in pieces:
            payload = payload_of(piece)
            stored, check = sum(len(part) for part in payload), payload_check(payload)
            prove_check(payload, check)
            members.append(placed(piece, check, stored, at))
            body.extend(payload)
            at += stored
            report_chain(piece, self._sequence, stored)
        self._packs.append(proven_header(members, group=False, body_size=at), body)

    def _append_group(self, pieces: Sequence[Waiting]) -> None:
        """One payload per coding text, since full records and deltas decode differently."""
        for text in dict.fromkeys(piece.text for piece in pieces):
            chosen = [piece for piece in pieces if piece.text == text]
            pipeline = Pipeline.parse(Coding(text).pipeline)
            body: list[Bytes] = []
            if pipeline.forward_only:
                body += proven_steps(pipeline, [p.step for p in chosen if p.step is not None])
            else:
                members = [group_member(piece) for piece in chosen]
                body += encode_group(pipeline, members)
                prove_group(pipeline, body, members)
            check, size = payload_check(body), sum(len(part) for part in body)
            prove_check(body, check)
            raw = sum(piece.nbytes for piece in chosen) or 1
            for piece in chosen:
                report_chain(piece, self._sequence, size * piece.nbytes // raw)
            stored = [placed(piece, check, size) for piece in chosen]
            self._packs.append(proven_header(stored, group=True, body_size=size), body)
