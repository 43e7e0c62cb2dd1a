"""Collects encoded pieces into records, and appends these to a pack (a file) in another thread.

A piece is at most 32 MiB of a tensor or manifest. A record is a header and the encoded bytes of one
or more pieces. No piece is added to a full record. A record is full if its pieces have 8 MiB or
more before encoding, so one large piece can fill a record. A record is also full if it has 16,384
pieces or 250 codings. Full records are appended while other threads encode the pieces of later
records. Readers see a record only after
``mvc.store.publishing.publish`` has written the journal entry of the record.
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

_IN_FLIGHT = 2  # maximum number of records that wait for the appending thread


class _OpenRecord(Struct):
    """A record to which pieces are added. ``arena``: memory for the encoded chunks of the pieces.

    A coding says how a piece is encoded. ``texts``: the different codings of the pieces. ``raw``:
    number of bytes before encoding. ``grouped``: whether pieces with the same coding are encoded
    together. Then the pack gets one record for each coding. ``settled``: how many pieces, from the
    first, ``drain`` has found encoded, and has copied to ``next_base``. From this memory, the next
    commit reads its bases.
    """

    grouped: bool
    arena: Arena
    pieces: list[Waiting] = field(default_factory=list)
    texts: set[str] = field(default_factory=set)
    raw: int = 0
    settled: int = 0


class RecordsInFlight:
    """Two open records, and full records that are being appended. Not thread-safe.

    One open record is for grouped pieces, the second is for all other pieces. ``sequence``: the
    number of the journal entry that will publish the records.
    """

    def __init__(self, packs: RecordSink, arenas: Arenas, sequence: int) -> None:
        self._packs, self._arenas, self._sequence = packs, arenas, sequence
        self._open = {kind: _OpenRecord(kind, arenas.lend()) for kind in (True, False)}
        self._appender: Executor | None = None
        self._appending: list[Future[None]] = []
        self.needs_raw = False  # whether ``drain`` must still encode or copy an added piece

    @property
    def single(self) -> Sequence[Waiting]:
        """The pieces of the open record that is not ``grouped``."""
        return self._open[False].pieces

    @property
    def allocate(self) -> Callable[[int], memoryview]:
        """Allocates memory for encoded chunks of a piece to be added that is not ``grouped``."""
        return self._open[False].arena.allocate

    def add(self, piece: Waiting, *, grouped: bool = False) -> None:
        """Adds a piece. Other threads may still be encoding its chunks."""
        record = self._open[grouped]
        self.needs_raw |= grouped or piece.next_base is not None
        record.pieces.append(piece)
        record.texts.add(piece.text)
        record.raw += piece.nbytes

    def append_full(self) -> None:
        """Passes full records to the thread that appends records."""
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
        """Waits until all pieces are encoded. Appends the open record of grouped pieces.

        The second record stays open, so that a version's manifest can be stored in the same record
        as tensors of the version.
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
        """Appends both open records, and ends the appending thread."""
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
        # If a record has pieces, other threads may still write to its arena.
        for record in (r for r in self._open.values() if not r.pieces):
            self._arenas.give_back(record.arena)

    def _await(self, left: int = 0) -> None:
        """Waits until at most ``left`` records are being appended."""
        while len(self._appending) > left:
            self._appending.pop(0).result()

    def _stop(self) -> None:
        """Waits until the appending thread has ended. The pack must stay locked during the wait."""
        if self._appender is not None:
            self._appender.shutdown()
            self._appender = None
        self._appending.clear()

    def _next_record(self, grouped: bool) -> _OpenRecord:
        """Returns the open record, and opens a new record in its place."""
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
        """Appends one record for each coding: the pieces with this coding, encoded together."""
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
