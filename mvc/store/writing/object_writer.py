"""Writes objects into packs (files with stored data): in full, or as deltas from stored objects.

An object is a content (the bytes of one tensor), a skeleton (the bytes of a file outside its
tensors) or a manifest (the list of a version's files). An object is divided into pieces of 32 MiB,
and a piece into chunks of 1 MiB. For each piece, ``ObjectWriter`` chooses a *base* (the object from
which a delta is computed) and a *coding* (how the piece is encoded). Threads encode the chunks in
parallel. Encoded chunks are decoded and compared with the original before they are written. If a
commit is large, only a sample of the chunks is compared (``proof.Sampling``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import suppress
from functools import lru_cache, partial
from typing import TYPE_CHECKING

from msgspec import Struct, field

from mvc.codecs.optim import Prediction
from mvc.errors import DamagedData
from mvc.ids import BlobId
from mvc.io.process import cpu_count
from mvc.limits import CHUNK, PIECE
from mvc.model.hashing import verify_pieces, zeros
from mvc.model.tensor import TensorSpec
from mvc.pipelines.pipeline import Pipeline
from mvc.store.graph.search import Graph, Link
from mvc.store.journal.entries import Region
from mvc.store.packs.arena import Arena, Arenas
from mvc.store.packs.records import BASE_BYTES, MANIFEST, patch_extra
from mvc.store.recovery.recover import Recovery
from mvc.store.writing.bases import Base, Recovers, StoredBase
from mvc.store.writing.full_or_delta import (
    BasePiece,
    Choice,
    Policy,
    choose,
    converted,
    fitted,
    lines_up,
)
from mvc.store.writing.layout import ENDLESS, before_run
from mvc.store.writing.pack_writer import RecordSink
from mvc.store.writing.pieces import (
    Encoded,
    NextBase,
    Piece,
    Waiting,
    copy_to_next_base,
    encode_chunk,
    encode_proven_patch,
    encode_proven_step,
    placed,
)
from mvc.store.writing.proof import Sampling
from mvc.store.writing.records_in_flight import RecordsInFlight
from mvc.types import Bytes

if TYPE_CHECKING:
    from mvc.adapters.parsed import StepFrom

_TASKS = 4  # tasks for each thread into which a large piece is divided


@lru_cache(maxsize=256)
def _zero_chunk(pipeline: Pipeline, size: int, width: int) -> Encoded:
    encoded = pipeline.encode_chunk(zeros(size), None, width)
    Sampling(0).chunk(pipeline, encoded, zeros(size), None, width=width)
    return Encoded(encoded)


class _Room(Struct):
    """Memory for pieces and for their bases.

    ``used_by``: the pieces that are encoded from this memory. ``puts``: calls of
    ``ObjectWriter._put`` in another thread. A failed call stays in ``puts``, so that ``catch_up``
    always raises the error of this call. ``put``: total length of the pieces of these calls.
    """

    read: Arena = field(default_factory=partial(Arena, 2 * PIECE))
    bases: Arena = field(default_factory=partial(Arena, 2 * PIECE))
    used_by: list[Waiting] = field(default_factory=list)
    puts: list[Future[None]] = field(default_factory=list)
    put: int = 0

    @property
    def used(self) -> int:
        return max(self.read.used, self.bases.used, self.put)

    def catch_up(self) -> None:
        """Waits for the calls in ``puts``, which choose codings and start to encode chunks."""
        for put in self.puts:
            put.result()
        self.puts.clear()

    def settle(self) -> None:
        """Waits until all pieces are encoded, then frees the memory."""
        self.catch_up()
        for waiting in self.used_by:
            for chunk in waiting.chunks:
                chunk.result()
        self.used_by.clear()
        self.read.reset()
        self.bases.reset()
        self.put = 0


class ObjectWriter:
    """Adds objects to a repository through one pack writer. Not thread-safe.

    ``policy`` says how objects are stored. Memory from ``allocate``, and memory of recovered bases,
    is in use until the pieces in it are encoded.
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
        self.sequence = graph.next_sequence  # number of the operation that will publish the objects
        self._packs = packs
        self._pool = pool
        self.policy = policy
        self._sampling = Sampling(self.sequence)
        self._added: set[bytes] = set()
        self.bases: set[bytes] = set()  # stored objects used as bases or inputs
        self._meanings: dict[bytes, bytes] = {}  # maps first bytes of ids to ids of added objects
        self._records = RecordsInFlight(packs, arenas, self.sequence)
        self._room, self._before = _Room(), _Room()
        self._coding = self._room  # memory of the piece whose coding is being chosen
        self._coder: ThreadPoolExecutor | None = None
        self._earlier: StoredBase | None = None  # the object that ``_older`` read most recently

    def allocate(self, length: int) -> memoryview:
        """Memory for a piece. Pass the piece to ``put`` before the next call of ``make_room``."""
        return self._room.read.allocate(length)

    def _base_room(self, length: int) -> memoryview:
        return self._coding.bases.allocate(length)

    def make_room(self, length: int) -> None:
        """Waits until there is memory for a piece of ``length`` bytes, and for its base."""
        if self._room.used + length <= PIECE:
            return
        if self._records.needs_raw:
            self.drain()
        self._room, self._before = self._before, self._room
        self._room.settle()

    def holds(self, id_: bytes) -> bool:
        """Whether the object is stored already, or was added to this writer."""
        return id_ in self._added or self._graph.holds(id_)

    def added(self, id_: bytes) -> bool:
        return id_ in self._added

    def wants(self, id_: bytes) -> bool:
        """Whether a content must be written.

        True if the content is new. In a reset point (a version that is stored in full), also true
        if a piece of the content has no undamaged full record.
        """
        if not self.holds(id_):
            return True
        return self.policy.reset and not self.added(id_) and not self._is_full(id_)

    def _is_full(self, id_: bytes) -> bool:
        """Whether every piece of an object has an undamaged full record."""
        codings = self._graph.codings(id_)
        full = [step for step in codings if not step.member.base]
        sound = {step.member.start for step in full if self._recovery.is_sound(step)}
        return sound == {step.member.start for step in codings}

    def stored(self, id_: BlobId, spec: TensorSpec) -> StoredBase:
        return StoredBase(id_, spec, self._recovery, self._base_room, graph=self._graph)

    def recovered(self, id_: bytes, spec: TensorSpec) -> bytes:
        return bytes(self._recovery.blob(id_, spec))

    def stored_pieces(self, bases: Sequence[StoredBase], start: int) -> list[memoryview]:
        """The piece at ``start`` of each base.

        A delta from which several of these pieces are recovered is decoded only once. Raises
        DamagedData and EncodingFailed, as ``StoredBase.piece``.
        """
        self._catch_up()
        outs = {bytes(base.id): base.room(start) for base in bases}
        try:
            self._recovery.pieces(outs, start)
        except DamagedData:
            return [base.piece(start) for base in bases]
        return [base.proven(start, outs[bytes(base.id)]) for base in bases]

    def begin(self, id_: bytes) -> None:
        """Announces a content. Then pass the pieces of the content to ``put``."""
        self._added.add(id_)
        self._meanings.setdefault(id_[:BASE_BYTES], id_)

    def put(
        self,
        piece: Piece,
        base: Base | None = None,
        next_base: NextBase | None = None,
        *,
        run: int | None = None,
    ) -> None:
        """Adds one piece of a content. The caller must not modify the piece until ``drain``.

        ``next_base``: memory to which the piece is copied after encoding, as the base of the next
        commit. It may be the memory of ``base``. A *run* is consecutive versions that an
        optimizer's steps predict. ``run``: the number of the operation that published the first
        version of the run of ``base``; None if ``base`` is in no run.
        """
        alone = next_base is not None or self.policy.pipeline.scope == "group"
        small, puts = len(piece.data) < CHUNK, self._room.puts or self._before.puts
        if alone or (small and (not puts or puts[-1].done())):
            self._catch_up()
            self._put(piece, base, next_base, run=run)
            return
        # Another thread recovers the base of a large piece, and chooses the coding.
        if self._coder is None:
            self._coder = ThreadPoolExecutor(1, thread_name_prefix="mvc-code")
        self._room.put += len(piece.data)
        coded = self._coder.submit(self._put, piece, base, run=run, room=self._room)
        self._room.puts.append(coded)

    def _put(
        self,
        piece: Piece,
        base: Base | None,
        next_base: NextBase | None = None,
        *,
        run: int | None,
        room: _Room | None = None,
    ) -> None:
        self._coding = room or self._coding
        choices, under = self._choose(piece, base, run)
        gathered = self._add(piece, choices, under, next_base, keeps=len(choices) == 1)
        if all(waiting.is_encoded for waiting in gathered):
            for waiting in gathered:
                copy_to_next_base(waiting)
        self._records.append_full()

    def put_in_run(
        self,
        piece: Piece,
        prediction: Prediction | None,
        base: BasePiece,
        inputs: Sequence[BasePiece] = (),
        *,
        next_base: NextBase | None = None,
    ) -> None:
        """As ``put``, for a piece of a parameter or optimizer state.

        ``base``: the same piece of the previous version. ``inputs``: other pieces from which
        ``prediction`` predicts the piece. Without ``prediction``, the piece is stored as a plain
        delta or in full. ``next_base`` is overwritten only after all earlier pieces are encoded,
        because earlier pieces may be predicted from the old bytes in ``next_base``.
        """
        self._catch_up()
        fits = [self._serves(source, piece) for source in (base, *inputs)]
        if prediction is not None and all(fits):
            choices = [  # 0.0: the encoded size is not estimated
                Choice(
                    prediction.text, self.policy.pipeline, 0.0, width=prediction.width,
                    against=True, prediction=prediction,
                )
            ]  # fmt: skip
        else:
            inputs, known = (), base if fits[0] else None
            choices = choose(piece.spec, piece.data, piece.spec, known, policy=self.policy)[:1]
        self._add(piece, choices, base, next_base, inputs=inputs)
        self._records.append_full()

    def put_recovered(
        self,
        id_: bytes,
        spec: TensorSpec,
        source: Recovers,
        base: tuple[bytes, TensorSpec] | None = None,
    ) -> None:
        """Adds a complete content. ``source`` recovers the content and its base.

        ``base``: the id and spec of the base. Raises DamagedData if the bytes of the content do not
        match its hash.
        """
        under = None
        if base is not None:
            under = StoredBase(BlobId(base[0]), base[1], source, self._base_room)
        self.begin(id_)

        def read(start: int, length: int) -> memoryview:
            self.make_room(length)
            part = self.allocate(length)
            source.piece(id_, start, part)
            return part

        wrong = DamagedData(
            f"object {id_.hex()[:10]} does not match its hash",
            hint="run 'mvc fsck --full --repair' first",
        )
        for start, part in verify_pieces(id_, spec, read, wrong):
            self.put(Piece(id_, spec, start, part), under)

    def put_step(self, piece: Piece, origin: StepFrom, next_base: NextBase | None = None) -> None:
        """As ``put``, for a piece that is the sum of a stored piece and a lossy delta (``origin``).

        A *chain* is the objects that are decoded one after another to recover an object. If the
        chain of the stored piece is too long, the new piece is stored in full. If the stored piece
        cannot be a base, the new piece is stored as by ``put``.
        """
        self._catch_up()
        base, size = self.stored(origin.base, piece.spec), len(piece.data)
        chain: tuple[Link, ...] = ()
        with suppress(DamagedData):
            chain = base.chain(piece.start)
        full = self.policy.reset or (chain and self._ends(chain, size))
        if full or not chain or not self._serves(base, piece):
            self.put(piece, None if full else base, next_base)
            return
        self.bases |= {base.id} - self._added
        waiting = Waiting(
            id=piece.id, start=piece.start, nbytes=size, text=origin.coding,
            base=base.id[:BASE_BYTES], width=piece.spec.width, raw=(piece.data, None),
            under=chain, next_base=next_base, step=origin.part(piece.start, size),
        )  # fmt: skip
        self._records.add(waiting, grouped=True)
        self._records.append_full()

    def put_zeros(self, piece: Piece) -> None:
        """Adds a piece of zeros in full, because no delta is smaller.

        Equal chunks are encoded once.
        """
        self._catch_up()
        length = len(piece.data)
        (choice,) = choose(piece.spec, piece.data, None, None, policy=self.policy)
        pipeline, width = choice.pipeline, choice.width
        waiting = Waiting(
            id=piece.id, start=piece.start, nbytes=length, text=choice.text, width=width,
            raw=(piece.data, None),
        )  # fmt: skip
        if pipeline is None or choice.grouped:
            self._encode(waiting, choice)
        else:
            sizes = (min(CHUNK, length - at) for at in range(0, length, CHUNK))
            waiting.chunks = [_zero_chunk(pipeline, size, width) for size in sizes]
        self._records.add(waiting, grouped=choice.grouped)
        self._records.append_full()

    def put_bytes(
        self, kind: int, id_: bytes, data: bytes, base: tuple[bytes, bytes] | None
    ) -> None:
        """Adds a complete skeleton or manifest, in full or as a patch of an older one.

        ``base``: the id and the bytes of the older skeleton or manifest.
        """
        self._catch_up()
        self._added.add(id_)
        under: tuple[Link, ...] = ()
        origin, old = b"", memoryview(b"")
        if base is not None and not self.policy.reset:
            with suppress(DamagedData):
                under, origin, old = self._whole_base(base, kind)
        if origin and not self.added(origin):
            self.bases.add(origin)
        extra = b""
        if kind == MANIFEST:
            extra = patch_extra([placed(w, b"", 0) for w in self._records.single], kind)
        encoded = Encoded(encode_proven_patch(memoryview(data), old, extra))
        waiting = Waiting(
            kind=kind, id=id_, nbytes=len(data), text="patch", base=origin[:BASE_BYTES],
            chunks=[encoded], raw=(memoryview(data), None), under=under,
        )  # fmt: skip
        self._records.add(waiting)

    def push(self) -> Future[None]:
        """Starts to flush appended records to disk, so that ``sync`` takes less time."""
        return self._pool.submit(self._packs.push)

    def drain(self) -> None:
        """Waits until all pieces are encoded. Then the caller may modify the memory of pieces."""
        self._catch_up()
        self._records.drain()
        self._room.settle()
        self._before.settle()

    def flush(self) -> None:
        self._catch_up()
        self._records.flush()

    def sync(self) -> tuple[Region, ...]:
        """Appends open records and makes all records durable. Returns their regions in packs."""
        self.flush()
        return self._packs.sync()

    def close(self) -> None:
        """Ends the writer. Discards everything that ``flush`` has not appended."""
        if self._coder is not None:
            self._coder.shutdown(cancel_futures=True)
        self._records.close()

    def _catch_up(self) -> None:
        """Waits until the other thread has added its pieces. Then this thread may add a piece."""
        self._before.catch_up()
        self._room.catch_up()
        self._coding = self._room

    # -- choosing a base -------------------------------------------------------------------

    def _serves(self, source: Base | BasePiece, piece: Piece) -> bool:
        """Whether ``source`` can be a base or input of ``piece``."""
        return source.id != piece.id and self._nameable(source.id)

    def _nameable(self, base: bytes) -> bool:
        """Whether the first bytes of the id ``base`` name this object.

        They name another object if the id of an older object begins with the same bytes.
        """
        prefix = base[:BASE_BYTES]
        return (self._graph.resolve_prefix(prefix) or self._meanings.get(prefix)) == base

    def _ends(self, chain: Sequence[Link], size: int) -> bool:
        """Whether ``chain`` is too long for another delta, of a piece of ``size`` bytes."""
        long = self.policy.layout.ends(chain, self.sequence)
        return long or chain[-1].stored > self.policy.max_chain * size

    def _choose(
        self, piece: Piece, base: Base | None, run: int | None
    ) -> tuple[list[Choice], BasePiece | None]:
        """The codings with which a piece is stored; and the base, or None if no delta is stored."""
        spec, data, choices = piece.spec, piece.data, list[Choice]()
        with suppress(DamagedData):  # if a base is damaged, the piece is stored in full
            for under in self._candidates(piece, base, run):
                if self._serves(under, piece):
                    assert base is not None
                    choices = choose(spec, data, base.spec, under, policy=self.policy)
                    if choices[0].against:
                        return choices, under
        return choices or choose(spec, data, None, None, policy=self.policy), None

    def _candidates(self, piece: Piece, base: Base | None, run: int | None) -> Iterator[BasePiece]:
        """Yields possible bases, best first, converted to the dtype of the new content.

        The layout (``policy.layout``) chooses the first base. The second base is the previous
        version, unless the chain of the previous version is long or ends with a run (versions that
        an optimizer's steps predict).
        """
        spec, start = piece.spec, piece.start
        if base is None or not self.policy.may_delta(spec) or not lines_up(base.spec, spec, start):
            return
        layout = self.policy.layout
        chain = base.chain(start) if layout.interval < ENDLESS else ()
        ends = self.policy.reset or layout.ends(chain, self.sequence)
        if ends and layout.is_near(chain, self.sequence):
            return  # the piece is stored only in full
        plain = before_run(chain, run)
        if plain and base.spec.dtype == spec.dtype and not ends:
            link = layout.base(plain, self.sequence)
            if link.id != base.id:
                under = plain[: plain.index(link) + 1]
                with suppress(DamagedData):
                    yield BasePiece(link.id, self._older(base, link, start), under)
                if plain[-1].depth > layout.deepest // 2:
                    return  # a full record is better than a longer chain
        if len(plain) < len(chain):
            return  # to recover a base in a run, readers would decode the whole run
        yield BasePiece(base.id, converted(base.piece(start), base.spec, spec), chain, ends)

    def _older(self, base: Base, link: Link, start: int) -> memoryview:
        """The piece at ``start`` of the object ``link`` in the base's chain."""
        if (piece := base.cached(link, start)) is not None:
            return piece
        if self._earlier is None or self._earlier.id != link.id or not start:
            self._earlier = None
            older = self.stored(BlobId(link.id), base.spec)
            if base.spec.nbytes > PIECE:
                older.check()  # verifies all pieces and the shape
            self._earlier = older
        return self._earlier.piece(start)

    def _whole_base(
        self, base: tuple[bytes, bytes], kind: int
    ) -> tuple[tuple[Link, ...], bytes, memoryview]:
        """The chain, id and bytes of the base for ``put_bytes``. All are empty without a base."""
        layout, (id_, data) = self.policy.layout, base
        chain = self._graph.chain(id_)
        fits = chain[-1].nbytes == len(data) and self._nameable(id_)
        if not fits or layout.ends(chain, self.sequence):
            return (), b"", memoryview(b"")
        link = layout.base(chain, self.sequence)
        if link.id != id_ and self._nameable(link.id):
            with suppress(DamagedData):
                if kind == MANIFEST:
                    older = self._recovery.manifest(link.id)
                else:
                    older = self.recovered(link.id, TensorSpec("raw", (link.nbytes,)))
                return chain[: chain.index(link) + 1], link.id, memoryview(older)
        return chain, id_, memoryview(data)

    # -- encoding --------------------------------------------------------------------------

    def _add(
        self,
        piece: Piece,
        choices: Sequence[Choice],
        against: BasePiece | None,
        next_base: NextBase | None,
        *,
        inputs: Sequence[BasePiece] = (),
        keeps: bool = False,
    ) -> list[Waiting]:
        """Adds the chosen codings of a piece to the open records.

        ``keeps``: copy each chunk to ``next_base`` directly after encoding, while the chunk is in
        the CPU cache. Allowed only if nothing else reads ``next_base``.
        """
        gathered: list[Waiting] = []
        for choice in choices:
            under = against if choice.against else None
            self.bases |= {b.id for b in (under, *inputs) if b is not None} - self._added
            waiting = Waiting(
                id=piece.id, start=piece.start, nbytes=len(piece.data), text=choice.text,
                base=under.id[:BASE_BYTES] if under else b"", width=choice.width,
                raw=(piece.data, under.data if under else None),
                under=under.chain if under else (),
                next_base=next_base if choice is choices[-1] else None,
                inputs=tuple(source.id[:BASE_BYTES] for source in inputs),
            )  # fmt: skip
            self._encode(waiting, choice, [source.data for source in inputs], keeps=keeps)
            self._records.add(waiting, grouped=choice.grouped)
            self._coding.used_by.append(waiting)
            gathered.append(waiting)
        return gathered

    def _encode(
        self,
        waiting: Waiting,
        choice: Choice,
        inputs: Sequence[memoryview] = (),
        *,
        keeps: bool = False,
    ) -> None:
        """Starts to encode the chunks of a piece. Pieces of a grouped coding are encoded later."""
        (new, against), pipeline, width = waiting.raw, choice.pipeline, waiting.width
        if choice.grouped:
            return
        if pipeline is None:
            base = memoryview(bytes(against)) if against is not None else memoryview(b"")
            waiting.chunks = [self._pool.submit(lambda: [encode_proven_patch(new, base)])]
            return
        fit = None if against is None else fitted(against, len(new))
        if choice.encoded is not None and len(new) <= CHUNK:
            self._sampling.chunk(pipeline, choice.encoded, new, fit, width=width)
            waiting.chunks = [Encoded(choice.encoded)]
            return
        prediction, allocate, sampling = choice.prediction, self._records.allocate, self._sampling
        room = waiting.next_base.buffer[waiting.start :] if keeps and waiting.next_base else None
        waiting.copied = room is not None

        def encode(part: slice) -> Bytes:
            if prediction is None:
                return encode_chunk(
                    pipeline, new[part], None if fit is None else fit[part], width=width,
                    allocate=allocate, sampling=sampling, keep=None if room is None else room[part],
                )  # fmt: skip
            assert fit is not None
            return encode_proven_step(
                pipeline, prediction, new[part], sources=[s[part] for s in (fit, *inputs)],
                width=width, allocate=allocate, sampling=sampling,
            )  # fmt: skip

        starts = range(0, len(new), CHUNK)
        some = len(starts) // (_TASKS * cpu_count()) or 1
        waiting.chunks = [
            self._pool.submit(_encoded, encode, starts[at : at + some])
            for at in range(0, len(starts), some)
        ]


def _encoded(encode: Callable[[slice], Bytes], starts: Sequence[int]) -> list[Bytes]:
    return [encode(slice(at, at + CHUNK)) for at in starts]
