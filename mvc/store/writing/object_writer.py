"""Writing objects: choose a coding, encode chunks in parallel, append records.

Objects are gathered into a record until their raw bytes fill it; then the record is appended
to the writer's pack while the next one is being encoded. Nothing is visible before
``mvc.store.publishing.publish`` has written the journal entry that names the regions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import suppress
from functools import lru_cache
from typing import TYPE_CHECKING

from mvc.codecs import cast
from mvc.codecs.optim import Prediction
from mvc.errors import DamagedData
from mvc.ids import BlobId
from mvc.limits import CHUNK, PIECE, RECORD, RECORD_MEMBERS, RECORD_TEXTS
from mvc.model.hashing import verify_pieces, zeros
from mvc.model.tensor import TensorSpec
from mvc.pipelines.group import encode_group
from mvc.pipelines.pipeline import Pipeline
from mvc.store.graph.search import Graph, Link
from mvc.store.journal.entries import Region
from mvc.store.packs.arena import Arena, Arenas
from mvc.store.packs.records import (
    BASE_BYTES,
    MANIFEST,
    Coding,
    Member,
    patch_extra,
    payload_check,
)
from mvc.store.recovery.recover import Recovery
from mvc.store.writing.bases import Base, Recovers, StoredBase
from mvc.store.writing.full_or_delta import (
    BasePiece,
    Choice,
    Policy,
    choose,
    fitted,
    predicted_choice,
)
from mvc.store.writing.layout import ENDLESS, before_run
from mvc.store.writing.pack_writer import RecordSink
from mvc.store.writing.pieces import (
    Encoded,
    NextBase,
    OpenRecord,
    Piece,
    Waiting,
    copy_kept,
    encode_chunk,
    encode_proven_patch,
    encode_proven_step,
    group_member,
    payload_of,
    placed,
    tell,
)
from mvc.store.writing.proof import (
    Sampling,
    prove_check,
    prove_group,
    proven_header,
    proven_steps,
)
from mvc.types import Bytes

if TYPE_CHECKING:
    from mvc.adapters.parsed import StepFrom


_SLACK = 256  # bytes that an incompressible chunk may grow by; hardly any does
_IN_FLIGHT = 2  # records being appended while later ones are encoded


@lru_cache(maxsize=256)
def _zero_chunk(pipeline: Pipeline, size: int, width: int) -> Encoded:
    encoded = pipeline.encode_chunk(zeros(size), None, width)
    Sampling(0).chunk(pipeline, encoded, zeros(size), None, width=width)
    return Encoded(encoded)


class ObjectWriter:
    """Adds objects to a repository through one pack writer. Not thread-safe.

    What is read to be put (``take``), and what is recovered to code against, takes memory until
    ``drain``.
    """

    def __init__(
        self,
        packs: RecordSink,
        policy: Policy,
        *,
        graph: Graph,
        recovery: Recovery,
        pool: Executor,
        arenas: Arenas,
    ) -> None:
        self._graph = graph
        self._recovery = recovery
        self._sequence = graph.next_sequence
        self._packs = packs
        self._pool = pool
        self._policy = policy
        self._arenas = arenas
        self._sampling = Sampling(self._sequence)
        self._added: set[bytes] = set()
        self.bases: set[bytes] = set()  # stored objects that something was coded against
        self._meanings: dict[bytes, bytes] = {}  # ids by their first bytes, of objects added here
        self._single = OpenRecord(arenas.lend())  # pieces that are coded one by one
        self._grouped = OpenRecord(arenas.lend())  # pieces that share one payload
        self._read, self._bases = Arena(2 * PIECE), Arena(2 * PIECE)  # read, and recovered
        self._earlier: StoredBase | None = None  # the object that led to a base the last time
        self._appender: Executor | None = None
        self._appending: list[Future[None]] = []

    @property
    def policy(self) -> Policy:
        """How objects are coded."""
        return self._policy

    @property
    def sequence(self) -> int:
        """The number of the operation that is to publish what is written."""
        return self._sequence

    def take(self, length: int) -> memoryview:
        """Memory for bytes that are to be put; valid until ``drain``."""
        return self._read.take(length)

    def make_room(self, length: int) -> None:
        """Drains, unless so many more bytes can be read, and recovered to code against."""
        if max(self._read.used, self._bases.used) + length > PIECE:
            self.drain()

    def holds(self, id_: bytes) -> bool:
        """Whether the object is stored already, or was added here."""
        return id_ in self._added or self._graph.holds(id_)

    def added(self, id_: bytes) -> bool:
        """Whether this writer added the object."""
        return id_ in self._added

    def wants(self, id_: bytes) -> bool:
        """Whether to write the blob: it is new, or a reset point needs it in full."""
        if not self.holds(id_):
            return True
        return self._policy.reset and not self.added(id_) and not self._is_full(id_)

    def _is_full(self, id_: bytes) -> bool:
        """Whether every piece has an undamaged full record; otherwise a reset point rewrites it."""
        codings = self._graph.codings(id_)
        full = [step for step in codings if not step.member.base]
        sound = {step.member.start for step in full if self._recovery.is_sound(step)}
        return sound == {step.member.start for step in codings}

    def stored(self, id_: BlobId, spec: TensorSpec) -> StoredBase:
        """A stored blob as a base."""
        return StoredBase(id_, spec, self._recovery, self._bases, graph=self._graph)

    def recovered(self, id_: bytes, spec: TensorSpec) -> bytes:
        """The bytes of a stored object."""
        return bytes(self._recovery.blob(id_, spec))

    def stored_pieces(self, bases: Sequence[StoredBase], start: int) -> list[memoryview]:
        """The piece at ``start`` of each base; each payload that they share is decoded once.

        Raises DamagedData, and EncodingFailed as ``StoredBase.piece`` does.
        """
        outs = {bytes(base.id): base.room(start) for base in bases}
        try:
            self._recovery.pieces(outs, start)
        except DamagedData:
            return [base.piece(start) for base in bases]
        return [base.proven(start, outs[bytes(base.id)]) for base in bases]

    def begin(self, id_: bytes) -> None:
        """Announces a blob whose pieces follow by ``put``."""
        self._added.add(id_)
        self._meanings.setdefault(id_[:BASE_BYTES], id_)

    def put(
        self,
        piece: Piece,
        base: Base | None = None,
        kept: NextBase | None = None,
        *,
        run: int | None = None,
    ) -> None:
        """Adds one piece of a blob.

        The caller must not modify its bytes until ``drain``. Once encoded they are copied to
        ``kept``, whose buffer may be the base's own memory. ``run``: the operation that published
        the first version of the run that the base ends, if there is one.
        """
        choices, against = self._choose(piece, base, run)
        gathered = self._add(piece, choices, against, kept)
        if run is None and all(waiting.is_encoded for waiting in gathered):
            for waiting in gathered:
                copy_kept(waiting)
        self._flush_full()

    def put_in_run(
        self,
        piece: Piece,
        prediction: Prediction | None,
        base: BasePiece,
        inputs: Sequence[BasePiece] = (),
        *,
        kept: NextBase | None = None,
    ) -> None:
        """Adds a piece of an optimizer's unit, coded against the version directly before.

        As ``put``. Without a prediction it is a plain delta, or in full. What is put before it is
        copied to its own ``kept`` first: what is an input there may be overwritten here.
        """
        fits = [self._serves(source, piece) for source in (base, *inputs)]
        if prediction is not None and all(fits):
            choices = [predicted_choice(self._policy.pipeline, prediction)]
        else:
            inputs, known = (), base if fits[0] else None
            choices = choose(piece.spec, piece.data, piece.spec, known, policy=self._policy)[:1]
        self._add(piece, choices, base, kept, inputs=inputs)
        self._flush_full()

    def put_again(
        self,
        id_: bytes,
        spec: TensorSpec,
        source: Recovers,
        base: tuple[bytes, TensorSpec] | None = None,
    ) -> None:
        """Adds a whole blob as ``source`` recovers it, and its base.

        Raises DamagedData if its bytes do not match its hash.
        """
        under = None
        if base is not None:
            under = StoredBase(BlobId(base[0]), base[1], source, self._bases)
        self.begin(id_)

        def read(start: int, length: int) -> memoryview:
            self.make_room(length)
            part = self.take(length)
            source.piece(id_, start, part)
            return part

        wrong = DamagedData(
            f"object {id_.hex()[:10]} does not match its hash",
            hint="run 'mvc fsck --full --repair' first",
        )
        for start, part in verify_pieces(id_, spec, read, wrong):
            self.put(Piece(id_, spec, start, part), under)

    def _serves(self, source: BasePiece, piece: Piece) -> bool:
        """Whether a piece can be named as what another one is coded from."""
        return source.id != piece.id and self._nameable(source.id)

    def _add(
        self,
        piece: Piece,
        choices: Sequence[Choice],
        against: BasePiece | None,
        kept: NextBase | None,
        *,
        inputs: Sequence[BasePiece] = (),
    ) -> list[Waiting]:
        gathered: list[Waiting] = []
        for choice in choices:
            under = against if choice.against else None
            for source in (under, *inputs):
                if source is not None and not self.added(source.id):
                    self.bases.add(source.id)
            waiting = Waiting(
                id=piece.id,
                start=piece.start,
                nbytes=len(piece.data),
                text=choice.text,
                base=under.id[:BASE_BYTES] if under else b"",
                width=choice.width,
                raw=(piece.data, under.data if under else None),
                under=under.chain if under else (),
                kept=kept if choice is choices[-1] else None,
                inputs=tuple(source.id[:BASE_BYTES] for source in inputs),
            )
            if choice.prediction is not None:
                self._encode_predicted(waiting, choice, [source.data for source in inputs])
            else:
                self._encode(waiting, choice)
            self._record_of(choice).add(waiting)
            gathered.append(waiting)
        return gathered

    def put_step(self, piece: Piece, made: StepFrom, kept: NextBase | None = None) -> None:
        """Adds a piece that is a stored piece plus a step.

        As ``put``; stored in full where a chain ends, and as a delta where nothing can be added to
        the base.
        """
        base, size = self.stored(made.base, piece.spec), len(piece.data)
        chain: tuple[Link, ...] = ()
        with suppress(DamagedData):
            chain = base.chain(piece.start)
        full = self._policy.reset or (chain and self._ends(chain, size))
        if full or not chain or base.id == piece.id or not self._nameable(base.id):
            self.put(piece, None if full else base, kept)
            return
        if not self.added(base.id):
            self.bases.add(base.id)
        waiting = Waiting(
            id=piece.id, start=piece.start, nbytes=size, text=made.coding,
            base=base.id[:BASE_BYTES], width=piece.spec.width, raw=(piece.data, None),
            under=chain, kept=kept, step=made.part(piece.start, size),
        )  # fmt: skip
        self._grouped.add(waiting)
        self._flush_full()

    def _ends(self, chain: Sequence[Link], size: int) -> bool:
        """Whether the version after ``chain``, of ``size`` bytes, is to be stored in full."""
        long = self._policy.layout.ends(chain, self._sequence)
        return long or chain[-1].stored > self._policy.max_chain * size

    def put_zeros(self, piece: Piece) -> None:
        """Adds a piece of zeros, in full: no delta is smaller. A chunk of them is encoded once."""
        length = len(piece.data)
        (choice,) = choose(piece.spec, piece.data, None, None, policy=self._policy)
        pipeline, width = choice.pipeline, choice.width
        waiting = Waiting(
            id=piece.id, start=piece.start, nbytes=length, text=choice.text, width=width,
            raw=(piece.data, None),
        )  # fmt: skip
        if pipeline is None or pipeline.scope == "group":
            self._encode(waiting, choice)
        else:
            sizes = (min(CHUNK, length - at) for at in range(0, length, CHUNK))
            waiting.chunks = [_zero_chunk(pipeline, size, width) for size in sizes]
        self._record_of(choice).add(waiting)
        self._flush_full()

    def _nameable(self, base: bytes) -> bool:
        """Whether the first bytes of a base's id resolve to it, and not to an older object."""
        prefix = base[:BASE_BYTES]
        return (self._graph.resolve_prefix(prefix) or self._meanings.get(prefix)) == base

    def _choose(
        self, piece: Piece, base: Base | None, run: int | None
    ) -> tuple[list[Choice], BasePiece | None]:
        """The codings of a piece, and the piece that its delta is from.

        That is the first one from which a delta is worth it.
        """
        spec, data, choices = piece.spec, piece.data, list[Choice]()
        with suppress(DamagedData):  # a version after a damaged one can still be stored, in full
            for under in self._candidates(piece, base, run):
                if under.id != piece.id and self._nameable(under.id):
                    assert base is not None
                    choices = choose(spec, data, base.spec, under, policy=self._policy)
                    if choices[0].against:
                        return choices, under
        return choices or choose(spec, data, None, None, policy=self._policy), None

    def _candidates(self, piece: Piece, base: Base | None, run: int | None) -> Iterator[BasePiece]:
        """Pieces to code against, converted to the new blob's dtype, best first.

        The one that the layout names, then the version before, unless its chain is long or ends
        with a run.
        """
        spec, start = piece.spec, piece.start
        if base is None or not self._policy.may_delta(spec):
            return
        if start and start >= base.spec.nbytes:
            return  # the base ends before this piece
        alike = base.spec.dtype == spec.dtype
        if not alike and (start or base.spec.elements != spec.elements or base.spec.nbytes > PIECE):
            return  # pieces of differing element size do not line up
        layout = self._policy.layout
        chain = base.chain(start) if layout.interval < ENDLESS else ()
        ends = self._policy.reset or layout.ends(chain, self._sequence)
        plain = before_run(chain, run)
        if plain and alike and not ends:
            found = layout.base(plain, self._sequence)
            if found.id != base.id:
                under = plain[: plain.index(found) + 1]
                with suppress(DamagedData):
                    yield BasePiece(found.id, self._older(base, found, start), under)
                if plain[-1].depth > layout.deepest // 2:
                    return  # a full record is better than to go on from there
        if len(plain) < len(chain):
            return  # deltas of a run are undone by nothing, and lead through all of it
        data = base.piece(start)
        if not alike:
            converted = cast.cast(data, base.spec.dtype, spec.dtype)
            data = memoryview(converted).cast("B")
        yield BasePiece(base.id, data, chain, ends)

    def _older(self, base: Base, link: Link, start: int) -> memoryview:
        """A piece of an object that leads to a base: from memory, or recovered and verified."""
        if (held := base.held(link, start)) is not None:
            return held
        if self._earlier is None or self._earlier.id != link.id or not start:
            self._earlier = None
            older = self.stored(BlobId(link.id), base.spec)
            if base.spec.nbytes > PIECE:
                older.check()  # it may have had another shape, which no record says
            self._earlier = older
        return self._earlier.piece(start)

    def _encode(self, waiting: Waiting, choice: Choice) -> None:
        new, against = waiting.raw
        pipeline = choice.pipeline
        if pipeline is None:
            base = memoryview(bytes(against)) if against is not None else memoryview(b"")
            waiting.chunks = [self._pool.submit(encode_proven_patch, new, base)]
            return
        if pipeline.scope == "group":
            return
        fit = None if against is None else fitted(against, len(new))
        if choice.encoded is not None and len(new) <= CHUNK:
            encoded, width = choice.encoded, waiting.width
            self._sampling.chunk(pipeline, encoded, new, fit, width=width)
            waiting.chunks = [Encoded(encoded)]
            return
        parts = [slice(at, min(at + CHUNK, len(new))) for at in range(0, len(new), CHUNK)]
        waiting.chunks = [
            self._pool.submit(
                encode_chunk,
                pipeline,
                new[part],
                None if fit is None else fit[part],
                width=waiting.width,
                room=self._single.arena.take(part.stop - part.start + _SLACK),
                sampling=self._sampling,
            )
            for part in parts
        ]

    def _encode_predicted(
        self, waiting: Waiting, choice: Choice, inputs: Sequence[memoryview]
    ) -> None:
        (new, base), pipeline, prediction = waiting.raw, choice.pipeline, choice.prediction
        assert base is not None and pipeline is not None and prediction is not None
        parts = [slice(at, min(at + CHUNK, len(new))) for at in range(0, len(new), CHUNK)]
        waiting.chunks = [
            self._pool.submit(
                encode_proven_step,
                pipeline,
                prediction,
                new[part],
                sources=[source[part] for source in (base, *inputs)],
                width=waiting.width,
                room=self._single.arena.take(part.stop - part.start + _SLACK),
            )
            for part in parts
        ]

    def _record_of(self, choice: Choice) -> OpenRecord:
        """Where pieces of this coding are gathered."""
        group = choice.pipeline is not None and choice.pipeline.scope == "group"
        return self._grouped if group else self._single

    def _flush_full(self) -> None:
        """Appends full records in another thread, while later ones are encoded."""
        for record in (self._grouped, self._single):
            full = record.raw >= RECORD or len(record.pieces) >= RECORD_MEMBERS
            if not full and len(record.texts) < RECORD_TEXTS:
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
        under: tuple[Link, ...] = ()
        origin, old = b"", memoryview(b"")
        if base is not None and not self._policy.reset:
            with suppress(DamagedData):
                under, origin, old = self._whole_base(base, kind)
        if origin and not self.added(origin):
            self.bases.add(origin)
        extra = b""
        if kind == MANIFEST:
            extra = patch_extra([placed(w, b"", 0) for w in self._single.pieces], kind)
        encoded = Encoded(encode_proven_patch(memoryview(data), old, extra))
        waiting = Waiting(
            kind=kind, id=id_, nbytes=len(data), text="patch", base=origin[:BASE_BYTES],
            chunks=[encoded], raw=(memoryview(data), None), under=under,
        )  # fmt: skip
        self._single.add(waiting)

    def _whole_base(
        self, base: tuple[bytes, bytes], kind: int
    ) -> tuple[tuple[Link, ...], bytes, memoryview]:
        """What ``put_bytes`` codes against: the chain that leads there, its id and bytes.

        All are empty if it is to be stored in full.
        """
        layout, (id_, data) = self._policy.layout, base
        chain = self._graph.chain(id_)
        fits = chain[-1].nbytes == len(data) and self._nameable(id_)
        if not fits or layout.ends(chain, self._sequence):
            return (), b"", memoryview(b"")
        found = layout.base(chain, self._sequence)
        if found.id != id_ and self._nameable(found.id):
            spec = TensorSpec("raw", (found.nbytes,))
            with suppress(DamagedData):
                if kind == MANIFEST:
                    older = self._recovery.manifest(found.id)
                else:
                    older = self.recovered(found.id, spec)
                return chain[: chain.index(found) + 1], found.id, memoryview(older)
        return chain, id_, memoryview(data)

    def push(self) -> Future[None]:
        """Begins to flush what was appended, so that ``sync`` has less to wait for."""
        return self._pool.submit(self._packs.push)

    def drain(self) -> None:
        """Waits until everything is encoded; the caller may use its buffers again.

        The last record stays open, so that a manifest can join the blobs it names.
        """
        while self._appending:
            self._appending.pop(0).result()
        self._append_pieces(*self._taken(self._grouped))
        single = self._single
        for piece in single.pieces[single.settled :]:
            for chunk in piece.chunks:
                chunk.result()
            copy_kept(piece)
        single.settled = len(single.pieces)
        self._bases.reset()
        self._read.reset()

    def flush(self) -> None:
        """Appends what waits."""
        try:
            while self._appending:
                self._appending.pop(0).result()
            for record in (self._grouped, self._single):
                self._append_pieces(*self._taken(record))
        finally:
            self._stop()

    def sync(self) -> tuple[Region, ...]:
        """Appends what waits, and makes everything durable; returns where it lies."""
        self.flush()
        return self._packs.sync()

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

    def _taken(self, record: OpenRecord) -> tuple[list[Waiting], Arena, bool]:
        pieces, record.pieces, record.texts = record.pieces, [], set()
        record.raw = record.settled = 0
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
            stored, check = sum(len(part) for part in payload), payload_check(payload)
            prove_check(payload, check)
            members.append(placed(piece, check, stored, at))
            body.extend(payload)
            at += stored
            tell(piece, self._sequence, stored)
        self._append(members, body, at, group=False)

    def _append_group(self, pieces: Sequence[Waiting]) -> None:
        """One payload per coding text, since full and delta members decode differently."""
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
                tell(piece, self._sequence, size * piece.nbytes // raw)
            self._append([placed(p, check, size) for p in chosen], body, size, group=True)

    def _append(
        self, members: Sequence[Member], body: Sequence[Bytes], size: int, *, group: bool
    ) -> None:
        self._packs.append(proven_header(members, group=group, body_size=size), body)
