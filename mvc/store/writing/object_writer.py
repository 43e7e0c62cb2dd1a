"""Writing objects: choose a coding, encode chunks in parallel, append records.

Objects are gathered into a record until their raw bytes fill it; then the record is appended
to the writer's pack while the next one is being encoded. Nothing is visible before
``mvc.store.publishing.publish`` has written the journal entry that names the regions.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import suppress
from functools import lru_cache

from mvc.codecs import cast
from mvc.codecs.group import encode_group
from mvc.codecs.patch import encode_patch
from mvc.codecs.pipeline import Pipeline
from mvc.errors import DamagedData
from mvc.limits import CHUNK, PIECE, RECORD, RECORD_MEMBERS
from mvc.model.hashing import zeros
from mvc.model.tensor import TensorSpec
from mvc.store.graph.search import Graph
from mvc.store.packs.arena import Arena, Arenas
from mvc.store.packs.records import (
    BASE_BYTES,
    BLOB,
    MANIFEST,
    Coding,
    Member,
    encode_header,
    patch_extra,
    payload_check,
)
from mvc.store.writing.choose import Base, BasePiece, Choice, Policy, choose, fitted
from mvc.store.writing.pack_writer import PackWriter
from mvc.store.writing.pieces import (
    Encoded,
    Kept,
    Record,
    Waiting,
    copy_kept,
    encode_chunk,
    group_member,
    payload_of,
    placed,
    tell,
)
from mvc.types import Bytes

__all__ = ["ObjectWriter"]

_SLACK = 256  # bytes that an incompressible chunk may grow by
_IN_FLIGHT = 2  # records being appended while later ones are encoded


@lru_cache(maxsize=256)
def _zero_chunk(pipeline: Pipeline, size: int, width: int) -> Encoded:
    return Encoded(pipeline.encode_chunk(zeros(size), None, width))


class ObjectWriter:
    """Adds objects to a repository through one pack writer. Not thread-safe."""

    def __init__(
        self,
        graph: Graph,
        packs: PackWriter,
        pool: Executor,
        policy: Policy,
        arenas: Arenas,
    ) -> None:
        self._graph = graph
        self._packs = packs
        self._pool = pool
        self._policy = policy
        self._arenas = arenas
        self._added: set[bytes] = set()
        self.bases: set[bytes] = set()  # stored objects that something was coded against
        self._meanings: dict[bytes, bytes] = {}  # ids by their first bytes, of objects added here
        self._single = Record(arenas.lend())  # pieces that are coded one by one
        self._grouped = Record(arenas.lend())  # pieces that share one payload
        self._appender: Executor | None = None
        self._appending: list[Future[None]] = []

    def holds(self, id_: bytes) -> bool:
        """Whether the object is stored already, or was added here."""
        return id_ in self._added or self._graph.holds(id_)

    def added(self, id_: bytes) -> bool:
        """Whether this writer added the object."""
        return id_ in self._added

    def begin(self, id_: bytes) -> None:
        """Announces a blob whose pieces follow by ``put``."""
        self._added.add(id_)
        self._meanings.setdefault(id_[:BASE_BYTES], id_)

    def put(
        self,
        id_: bytes,
        spec: TensorSpec,
        start: int,
        new: memoryview,
        base: Base | None,
        kept: Kept | None = None,
    ) -> None:
        """Adds bytes [start, start + len(new)) of a blob, one piece of it.

        The caller must not modify ``new`` until ``drain``. Once encoded it is copied to ``kept``,
        whose buffer may be the base's own memory.
        """
        if base is not None and base.id == id_:
            base = None  # cached by the caller, but gc removed it from the store
        try:
            piece = self._base_piece(spec, base, start)
        except DamagedData:
            piece = None  # a version after a damaged one can still be stored, in full
        choices = choose(spec, new, base.spec if base else None, piece, self._policy)
        if base is not None and not self._nameable(base.id):
            choices = [choice for choice in choices if not choice.against] or choose(
                spec, new, None, None, self._policy
            )
        gathered: list[Waiting] = []
        for choice in choices:
            against = piece if choice.against else None
            if against is not None and base is not None and not self.added(base.id):
                self.bases.add(base.id)
            waiting = Waiting(
                BLOB,
                id_,
                start,
                len(new),
                choice.text,
                base.id[:BASE_BYTES] if base and against else b"",
                choice.width,
                [],
                (new, against.data if against else None),
                (against.depth + 1, against.stored) if against else (0, 0),
                kept if choice is choices[-1] else None,
            )
            self._encode(waiting, choice)
            self._gather(waiting, choice)
            gathered.append(waiting)
        if all(waiting.is_encoded for waiting in gathered):
            for waiting in gathered:
                copy_kept(waiting)
        self._flush_full()

    def put_zeros(self, id_: bytes, spec: TensorSpec, start: int, length: int) -> None:
        """Adds a piece of zeros, in full: no delta is smaller. A chunk of them is encoded once."""
        new = zeros(length)
        (choice,) = choose(spec, new, None, None, self._policy)
        pipeline, width = choice.pipeline, choice.width
        waiting = Waiting(
            BLOB, id_, start, length, choice.text, b"", width, [], (new, None), (0, 0), None
        )
        if pipeline is None or pipeline.scope == "group":
            self._encode(waiting, choice)
        else:
            sizes = (min(CHUNK, length - at) for at in range(0, length, CHUNK))
            waiting.chunks = [_zero_chunk(pipeline, size, width) for size in sizes]
        self._gather(waiting, choice)
        self._flush_full()

    def _nameable(self, base: bytes) -> bool:
        """Whether the first bytes of a base's id resolve to it, and not to an older object."""
        prefix = base[:BASE_BYTES]
        return (self._graph.resolve_prefix(prefix) or self._meanings.get(prefix)) == base

    def _base_piece(self, spec: TensorSpec, base: Base | None, start: int) -> BasePiece | None:
        """The base's bytes, converted to the new blob's dtype."""
        if base is None or (start and start >= base.spec.nbytes):
            return None  # the base ends before this piece
        if base.spec.dtype == spec.dtype:
            return base.piece(start)
        if start or base.spec.elements != spec.elements or base.spec.nbytes > PIECE:
            return None  # pieces of differing element size do not line up
        found = base.piece(0)
        converted = cast.cast(found.data, base.spec.dtype, spec.dtype)
        return BasePiece(memoryview(converted).cast("B"), found.depth, found.stored)

    def _encode(self, waiting: Waiting, choice: Choice) -> None:
        new, against = waiting.raw
        pipeline = choice.pipeline
        if pipeline is None:
            base = memoryview(bytes(against)) if against is not None else memoryview(b"")
            waiting.chunks = [self._pool.submit(encode_patch, new, base)]
        elif choice.encoded is not None and pipeline.scope == "tensor" and len(new) <= CHUNK:
            waiting.chunks = [Encoded(choice.encoded)]
        elif pipeline.scope == "tensor":
            fit = None if against is None else fitted(against, len(new))
            waiting.chunks = [
                self._pool.submit(
                    encode_chunk, pipeline, new, fit, at, waiting.width, self._room(at, new)
                )
                for at in range(0, len(new), CHUNK)
            ]

    def _room(self, at: int, new: memoryview) -> memoryview:
        """Memory for an encoded chunk; hardly any is longer than its raw bytes."""
        return self._single.arena.take(min(CHUNK, len(new) - at) + _SLACK)

    def _gather(self, waiting: Waiting, choice: Choice) -> None:
        group = choice.pipeline is not None and choice.pipeline.scope == "group"
        record = self._grouped if group else self._single
        record.pieces.append(waiting)
        record.raw += waiting.nbytes

    def _flush_full(self) -> None:
        """Appends full records in another thread, while later ones are encoded."""
        for record in (self._grouped, self._single):
            if record.raw < RECORD and len(record.pieces) < RECORD_MEMBERS:
                continue
            if self._appender is None:
                self._appender = ThreadPoolExecutor(1, thread_name_prefix="mvc-append")
            while len(self._appending) >= _IN_FLIGHT:
                self._appending.pop(0).result()
            self._appending.append(self._appender.submit(self._append_pieces, *self._taken(record)))

    def put_bytes(
        self, kind: int, id_: bytes, data: bytes, base: tuple[bytes, bytes] | None
    ) -> None:
        """Adds a skeleton or a manifest whole, as a patch against ``base`` (id, bytes)."""
        self._added.add(id_)
        depth, stored, origin = 0, 0, b""
        old = b""
        if base is not None and not self._policy.reset and self._nameable(base[0]):
            with suppress(DamagedData):
                path = self._graph.path(base[0])
                if path.depth + 1 < self._policy.reset_interval:
                    depth, stored, origin, old = path.depth + 1, path.stored, base[0], base[1]
                    if not self.added(origin):
                        self.bases.add(origin)
        extra = b""
        if kind == MANIFEST:
            extra = patch_extra([placed(w, b"", 0) for w in self._single.pieces], kind)
        encoded = Encoded(encode_patch(memoryview(data), memoryview(old), extra))
        waiting = Waiting(
            kind, id_, 0, len(data), "patch", origin[:BASE_BYTES], 1, [encoded],
            (memoryview(data), None), (depth, stored), None,
        )  # fmt: skip
        self._single.pieces.append(waiting)
        self._single.raw += len(data)

    def drain(self) -> None:
        """Waits until everything is encoded; the caller may use its buffers again.

        The last record stays open, so that a manifest can join the blobs it names.
        """
        while self._appending:
            self._appending.pop(0).result()
        self._append_pieces(*self._taken(self._grouped))
        for piece in self._single.pieces:
            for chunk in piece.chunks:
                chunk.result()
            copy_kept(piece)

    def flush(self) -> None:
        """Appends what waits."""
        try:
            while self._appending:
                self._appending.pop(0).result()
            for record in (self._grouped, self._single):
                self._append_pieces(*self._taken(record))
        finally:
            self._stop()

    def close(self) -> None:
        """Ends the writer. What ``flush`` has not appended is left out."""
        for record in (self._grouped, self._single):
            for piece in record.pieces:
                for chunk in piece.chunks:
                    chunk.cancel()
        self._stop()
        for record in (self._grouped, self._single):
            self._arenas.give_back(record.arena)

    def _stop(self) -> None:
        """Waits for the appending thread; the pack must not be let go before."""
        if self._appender is not None:
            self._appender.shutdown()
            self._appender = None
        self._appending.clear()

    def _taken(self, record: Record) -> tuple[list[Waiting], Arena, bool]:
        pieces, record.pieces, record.raw = record.pieces, [], 0
        arena, record.arena = record.arena, self._arenas.lend()
        return pieces, arena, record is self._grouped

    def _append_pieces(self, pieces: Sequence[Waiting], arena: Arena, grouped: bool) -> None:
        if pieces:
            if grouped:
                self._append_group(pieces)
            else:
                self._append_single(pieces)
        for piece in pieces:
            copy_kept(piece)
        self._arenas.give_back(arena)

    def _append_single(self, pieces: Sequence[Waiting]) -> None:
        members: list[Member] = []
        body: list[Bytes] = []
        at = 0
        for piece in pieces:
            payload = payload_of(piece)
            stored = sum(len(part) for part in payload)
            members.append(placed(piece, payload_check(payload), stored, at))
            body.extend(payload)
            at += stored
            tell(piece, stored)
        self._append(members, body, at, group=False)

    def _append_group(self, pieces: Sequence[Waiting]) -> None:
        """One payload per coding text, since full and delta members decode differently."""
        for text in dict.fromkeys(piece.text for piece in pieces):
            chosen = [piece for piece in pieces if piece.text == text]
            members = [group_member(piece) for piece in chosen]
            body: list[Bytes] = list(encode_group(Pipeline.parse(Coding(text).pipeline), members))
            check, size = payload_check(body), sum(len(part) for part in body)
            raw = sum(piece.nbytes for piece in chosen) or 1
            for piece in chosen:
                tell(piece, size * piece.nbytes // raw)
            self._append([placed(p, check, size) for p in chosen], body, size, group=True)

    def _append(
        self, members: Sequence[Member], body: Sequence[Bytes], size: int, *, group: bool
    ) -> None:
        self._packs.append(encode_header(members, group=group, body_size=size), body)
