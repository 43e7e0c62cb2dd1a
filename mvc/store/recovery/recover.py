"""Recovering objects: walk a path, decode its payloads, check the result's hash.

Where a path's payloads together are large, they are loaded and applied one after the
other, to bound memory; otherwise all of them are applied chunk by chunk. Objects that are predicted
from each other are recovered by one plan.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor, Future
from contextlib import suppress
from functools import partial
from typing import Protocol, TypeVar, runtime_checkable

import numpy as np
from msgspec import Struct

from mvc.errors import DamagedData
from mvc.io.process import cpu_count
from mvc.limits import CHUNK, MAX_MANIFEST, PIECE
from mvc.model.hashing import BlobHasher, blob_id
from mvc.model.manifest import Manifest
from mvc.model.tensor import TensorSpec
from mvc.store.graph.plan import Action, PiecePlan, Pieces, is_predicted, plan, related
from mvc.store.graph.search import Graph, Path, PathStep, Place
from mvc.store.packs.reader import PackReader
from mvc.store.recovery.by_products import ByProducts
from mvc.store.recovery.decode import LOADED, apply_steps, in_order
from mvc.store.recovery.grouped import is_grouped, walk_together
from mvc.store.recovery.planned import carry_out
from mvc.store.recovery.walk import SHORT, Walker, drain, room_for

_QUEUED = 256
_DESPITE = 8  # paths over damaged payloads that are tried before an object is given up
_T = TypeVar("_T")


class Request(Struct, frozen=True):
    """An object wanted in ``out``, a writable buffer of ``spec.nbytes`` bytes."""

    id: bytes
    spec: TensorSpec
    out: memoryview


def by_chunks(nbytes: int, total: int, threads: int) -> bool:
    """Whether an object is spread over the threads by its chunks, and not beside others.

    ``total``: raw bytes of all that are wanted with it. One thread would still be at it when
    the others have done the rest.
    """
    return nbytes > PIECE or (nbytes > CHUNK and nbytes * threads > total)


class Held(Protocol):
    """The bytes of an object that lies elsewhere than in a pack: in memory, or in a file."""

    def __getitem__(self, part: slice, /) -> memoryview:
        """These bytes; fewer where the object ends."""


@runtime_checkable
class HeldInFile(Held, Protocol):
    """Bytes that can be read to where they are needed."""

    def read_into(self, start: int, out: memoryview) -> None:
        """Fills ``out`` from byte ``start`` on. Raises DamagedData if there are fewer."""


class Recovery:
    """Materialises objects of one snapshot. Safe across threads."""

    def __init__(
        self,
        packs: PackReader,
        graph: Graph,
        pool: Executor,
        made: Mapping[bytes, Held] | None = None,
    ) -> None:
        """``made``: objects by id that are taken from there, whether they are stored or not.

        Paths begin there as well, where no cheaper one does.
        """
        self.packs = packs
        self._walker = Walker(self.packs, pool)
        self.graph = graph
        self.pool = pool
        self.by_products = ByProducts()
        self._made: Mapping[bytes, Held] = {} if made is None else made

    def fill_from(self, held: Mapping[bytes, Held], requests: Sequence[Request]) -> bool:
        """As ``fill``, with paths that may begin at what is held; False if that fails.

        A chain of n versions costs n deltas where each is recovered from the one before.
        """
        try:
            Recovery(self.packs, self.graph, self.pool, {**self._made, **held}).fill(requests)
        except DamagedData:
            return False
        return True

    def fill(self, requests: Iterable[Request]) -> None:
        """Fills every request's buffer with verified bytes; DamagedData if one cannot be recovered.

        Objects are spread over the threads; one that is a large part of all by its chunks.
        """
        wanted = list(requests)
        total, threads = sum(request.spec.nbytes for request in wanted), cpu_count()
        waiting: list[Future[None]] = []
        grouped: list[tuple[Request, Path]] = []
        predicted: list[tuple[Request, Path]] = []
        try:
            for request in wanted:
                nbytes = request.spec.nbytes
                if (made := self.by_products.take(request.id, 0, nbytes)) is not None:
                    waiting.append(self.pool.submit(self._given, request, made))
                    continue
                if nbytes <= SHORT and self.at_once(request):
                    continue
                if len(wanted) == 1:
                    self._one(request)
                    continue
                try:
                    path = self.graph.path(request.id, 0, self._made)
                except DamagedData:
                    self._one(request)
                    continue
                straight = nbytes <= PIECE and _last_transform(path.steps) is None
                if is_predicted(path):
                    predicted.append((request, path))
                elif straight and is_grouped(path):
                    self._begin(path.origin, 0, request.out)
                    grouped.append((request, path))
                elif by_chunks(nbytes, total, threads):
                    self._one(request)
                else:
                    waiting.append(self.pool.submit(self._alone, request, path))
                if len(waiting) > _QUEUED:
                    drain(waiting)
            for numbers in related(self.graph, [path for _, path in predicted]):
                together = [predicted[i][0] for i in numbers]
                nbytes = sum(request.spec.nbytes for request in together)
                if by_chunks(nbytes, total, threads):
                    self._together(together)
                else:
                    waiting.append(self.pool.submit(self._together, together, parallel=False))
        finally:
            drain(waiting)
        with suppress(DamagedData):  # then every object is recovered by itself
            walk_together(self.packs, [(path, request.out) for request, path in grouped], self.pool)
        for request, _ in grouped:
            if blob_id(request.spec, request.out, parallel=True) != request.id:
                self._one(request)

    def blob(self, id_: bytes, spec: TensorSpec) -> bytearray:
        """One object in memory of its own, verified."""
        self.require(id_, spec)
        out = bytearray(spec.nbytes)
        self.fill([Request(id_, spec, memoryview(out))])
        return out

    def require(self, id_: bytes, spec: TensorSpec) -> None:
        """DamagedData if any piece of an object is stored nowhere.

        Call it before memory is allocated for a large object: a forged manifest may claim any
        size, but what is stored in packs takes up at least some bytes there.
        """
        if id_ in self._made:
            return
        if spec.nbytes > PIECE and not self.graph.stores(id_, spec.nbytes):
            raise DamagedData(
                f"object {id_.hex()[:10]} of {spec.nbytes} bytes is not stored",
                hint="run 'mvc fsck' to see which versions it touches",
            )

    def manifest(self, id_: bytes) -> bytes:
        """A manifest's canonical bytes, verified."""

        def proves(data: memoryview) -> bool:
            return Manifest.id_of(bytes(data)) == id_

        made = self._made.get(id_)
        try:
            if made is None:
                whole = self._by_sound_path(id_, 0, self._whole)
            else:
                whole = made[:MAX_MANIFEST]
            if not proves(whole):
                raise mismatch(id_)
        except DamagedData as error:
            whole = self._despite(id_, proves, error)
        return bytes(whole)

    def _despite(
        self, id_: bytes, proves: Callable[[memoryview], bool], error: DamagedData
    ) -> memoryview:
        """An object of one piece to which no path of sound payloads leads; ``error`` if it is lost.

        Decoding may not look at a flipped bit: then the payload is damaged, but what it decodes
        to is right, as the object's own hash ``proves``.
        """
        avoid: set[Place] = set()
        with suppress(DamagedData):  # of no path left
            for _ in range(_DESPITE):
                way = plan(self.graph, [id_], avoid=avoid)
                damaged = {step.place for step in way.steps if not self.is_sound(step)}
                if not damaged:
                    break
                with suppress(DamagedData):
                    if proves(whole := self._whole(way, check=False)):
                        return whole
                avoid |= damaged
        raise error

    def piece(
        self,
        id_: bytes,
        start: int,
        out: memoryview,
        *,
        parallel: bool = True,
        check: bool = True,
    ) -> None:
        """Bytes [start, start + len(out)) of an object, one whole piece. Not verified by hash.

        Without ``check`` the payloads' checksums are left to the caller, who checks the hash, and
        asks again with it after DamagedData: only then another path is searched.
        """
        if id_ in self._made:
            self._begin(id_, start, out)
            return
        if (made := self.by_products.take(id_, start, len(out), checked=check)) is not None:
            out[:] = made
            return
        walk = partial(self._run, outs={id_: out}, parallel=parallel, check=check)
        if check:
            self._by_sound_path(id_, start, walk)
        else:
            walk(plan(self.graph, [id_], start, self._made))

    def _begin(self, origin: bytes | None, start: int, out: memoryview) -> None:
        """Fills ``out`` with the bytes at which a path begins that has no record."""
        held = None if origin is None else self._made[origin]
        if isinstance(held, HeldInFile):
            held.read_into(start, out)
        elif held is not None:
            data = held[start : start + len(out)]
            if len(data) != len(out):
                raise DamagedData("a delta has another length than what it starts from")
            out[:] = data

    def _run(
        self, way: PiecePlan, outs: Mapping[bytes, memoryview], *, parallel: bool, check: bool
    ) -> None:
        """Fills the buffers, and keeps what else was made of the same version if it is wanted."""
        match way.actions:
            case [Action(base=bytes(), inputs=()) as only] if only.by_chunks and only.id in outs:
                self._begin(only.base, way.start, outs[only.id])  # it is changed where it lies
                self._walker.walk(only.steps, outs[only.id], parallel=parallel, check=check)
                return
        origins = {id_: self._made[id_][way.start : way.start + PIECE] for id_ in way.origins}
        wanted = way.by_products if self.by_products.wanted else set()
        others = {
            action.id: room_for(action.steps[-1]) for action in way.actions if action.id in wanted
        }
        pieces = {**others, **outs}
        carry_out(self._walker, way, pieces, origins, parallel=parallel, check=check)
        self.by_products.add(way.start, others, checked=check)

    def _whole(self, way: PiecePlan, *, check: bool = True) -> memoryview:
        """The object at the end of a plan, in memory of its own."""
        out = room_for(way.actions[-1].steps[-1])
        self._run(way, {way.targets[0]: out}, parallel=False, check=check)
        return out

    def _by_sound_path(self, id_: bytes, start: int, walk: Callable[[PiecePlan], _T]) -> _T:
        """Walks the cheapest path; where a payload is damaged, the cheapest one around it.

        If maintenance has moved a payload of the path meanwhile, the search is repeated.
        """
        first: DamagedData | None = None
        while True:
            generation = self.graph.generation
            try:
                way = plan(self.graph, [id_], start, self._made)
            except DamagedData as error:
                raise first or error from None
            try:
                return walk(way)
            except DamagedData as error:
                if self.graph.was_rewritten(generation):
                    continue
                first = first or error
                damaged = [step for step in way.steps if not self.is_sound(step)]
                if not damaged:
                    raise
                self.graph.exclude(damaged)

    def is_sound(self, step: PathStep) -> bool:
        """Whether a payload fits its checksum."""
        try:
            self.packs.payload(step.pack, step.offset, step.header, step.member)
        except DamagedData:
            return False
        return True

    def _one(self, request: Request, *, parallel: bool = True) -> None:
        """Recovers an object from sound payloads; one of a single piece also by ``_despite``."""

        def proves(whole: memoryview) -> bool:
            return len(whole) == request.spec.nbytes and blob_id(request.spec, whole) == request.id

        try:
            self._checked(request, parallel)
        except DamagedData as error:
            if request.spec.nbytes > PIECE:
                raise
            request.out[:] = self._despite(request.id, proves, error)

    def _checked(self, request: Request, parallel: bool) -> None:
        """An object in pieces, each of them spread over the threads."""
        hasher = BlobHasher(request.spec, parallel=parallel)
        for start in range(0, max(request.spec.nbytes, 1), PIECE):
            part = request.out[start : start + PIECE]
            self.piece(request.id, start, part, parallel=parallel)
            hasher.update(part)
        if hasher.done() != request.id:
            raise mismatch(request.id)

    def _together(self, requests: Sequence[Request], *, parallel: bool = True) -> None:
        """Objects that are predicted from each other; those that fail their hash by themselves."""
        first = {request.id: request for request in reversed(requests)}
        with suppress(DamagedData):
            for start in range(0, max(requests[0].spec.nbytes, 1), PIECE):
                outs = {id_: each.out[start : start + PIECE] for id_, each in first.items()}
                way = plan(self.graph, list(outs), start, self._made)
                self._run(way, outs, parallel=parallel, check=False)
        for request in requests:
            twin = first[request.id]
            if twin is not request and twin.spec == request.spec:
                request.out[:] = twin.out
            if blob_id(request.spec, request.out, parallel=parallel) != request.id:
                self._one(request, parallel=parallel)

    def _given(self, request: Request, made: memoryview) -> None:
        """An object that was made on the way to another one."""
        request.out[:] = made
        if blob_id(request.spec, request.out) != request.id:
            self._one(request, parallel=False)

    def _alone(self, request: Request, path: Path) -> None:
        """A whole object in this thread."""
        if not self._proven(request, path):
            self._one(request, parallel=False)

    def at_once(self, request: Request) -> bool:
        """Whether the cheapest path alone led to a whole object, by this thread."""
        try:
            path = self.graph.path(request.id, 0, self._made)
        except DamagedData:
            return False
        return self._proven(request, path)

    def _proven(self, request: Request, path: Path) -> bool:
        """Whether a path leads to a whole object; hashed chunk by chunk as it is finished.

        The object's hash covers its payloads. Only where it does not match, their own checksums
        are computed, which tell the damaged one.
        """
        steps = path.steps
        if path.stored > LOADED or is_grouped(path) or _last_transform(steps) is not None:
            return False
        with suppress(DamagedData):
            self._begin(path.origin, 0, request.out)
            if request.spec.nbytes <= SHORT:
                apply_steps(self.packs, steps, request.out, in_order, check=False)
                return blob_id(request.spec, request.out) == request.id
            hasher = BlobHasher(request.spec)
            apply_steps(self.packs, steps, request.out, in_order, done=hasher.update, check=False)
            return hasher.done() == request.id
        return False

    def pieces(self, outs: Mapping[bytes, memoryview], start: int) -> None:
        """As ``piece`` of each object in ``outs``, whose codings build on each other."""
        way = plan(self.graph, list(outs), start, self._made)
        self._run(way, outs, parallel=True, check=True)

    def walk(
        self,
        walks: Sequence[tuple[Path, memoryview]],
        held: Pieces,
        *,
        parallel: bool = False,
    ) -> None:
        """Fills buffers along paths to pieces of one start, and along others from which these are
        predicted.

        ``held``: pieces at which they may begin. ``parallel``: with the threads of the pool; else
        in this thread, which may be one of them. Nothing is compared with a hash. Raises
        DamagedData.
        """
        outs = {self.graph.end_of(path.steps[-1]): out for path, out in walks}
        paths = [path for path, _ in walks]
        way = plan(self.graph, list(outs), paths[0].steps[-1].member.start, held, along=paths)
        pieces = {id_: held[id_] for id_ in way.origins}
        carry_out(self._walker, way, outs, pieces, parallel=parallel)


def _last_transform(steps: Sequence[PathStep]) -> int | None:
    """The last step that can only be walked forward; everything after it is undirected."""
    return max((i for i, s in enumerate(steps) if s.member.coding.transform), default=None)


def mismatch(id_: bytes) -> DamagedData:
    """The error for an object that was recovered to bytes of another hash."""
    return DamagedData(
        f"object {id_.hex()[:10]} does not match its hash after decoding",
        hint="run 'mvc fsck' to see which versions it touches",
    )


def piece_reader(
    piece: Callable[[bytes, int, memoryview], None], id_: bytes, spec: TensorSpec
) -> Callable[[int, int], memoryview]:
    """Reads pieces of an object one after the other into the same memory."""
    room = np.empty(min(PIECE, spec.nbytes), np.uint8).data

    def read(start: int, length: int) -> memoryview:
        piece(id_, start, room[:length])
        return room[:length]

    return read
