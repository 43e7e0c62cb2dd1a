"""Recovers stored objects, such as tensors: decodes them and checks their hashes.

Large objects are stored in pieces of 32 MiB. The encoded bytes of a piece are a *payload*. The
*path* to a piece is a full record, then deltas. If the payloads of a path are small in total, they
are loaded together, and decoded chunk by chunk (1 MiB). Otherwise they are loaded and decoded one
by one, to bound memory. Some objects are predicted from other objects, such as weights from Adam's
moments. ``mvc.store.graph.plan`` plans how to recover such objects.
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
_DESPITE = 8  # maximum number of paths that ``_despite`` tries
_T = TypeVar("_T")


class Request(Struct, frozen=True):
    """An object to recover into ``out``, a writable buffer of ``spec.nbytes`` bytes."""

    id: bytes
    spec: TensorSpec
    out: memoryview


def by_chunks(nbytes: int, total: int, threads: int) -> bool:
    """Whether an object of ``nbytes`` is so large that several threads decode it together.

    ``total``: raw bytes of all objects to recover.
    """
    return nbytes > PIECE or (nbytes > CHUNK and nbytes * threads > total)


class Available(Protocol):
    """The bytes of an object outside the packs: in memory or in a file."""

    def __getitem__(self, part: slice, /) -> memoryview:
        """The bytes of ``part``; fewer at the object's end."""


@runtime_checkable
class InFile(Available, Protocol):
    """An object whose bytes can be read directly into a buffer."""

    def read_into(self, start: int, out: memoryview) -> None:
        """Fills ``out`` from byte ``start``. Raises DamagedData if the object is shorter."""


class Recovery:
    """Recovers objects of one snapshot (the repository up to some entry). Safe across threads."""

    def __init__(
        self,
        packs: PackReader,
        graph: Graph,
        pool: Executor,
        provided: Mapping[bytes, Available] | None = None,
    ) -> None:
        """``provided``: maps ids to objects that are not decoded. Paths may begin at them."""
        self.packs = packs
        self._walker = Walker(self.packs, pool)
        self.graph = graph
        self.pool = pool
        self.by_products = ByProducts()
        self._provided: Mapping[bytes, Available] = {} if provided is None else provided

    def fill_from(self, available: Mapping[bytes, Available], requests: Sequence[Request]) -> bool:
        """As ``fill``, but paths may begin at ``available`` objects. Returns False if this fails.

        So a caller that recovers one version after another decodes only one delta for each version.
        """
        objects = {**self._provided, **available}
        try:
            Recovery(self.packs, self.graph, self.pool, objects).fill(requests)
        except DamagedData:
            return False
        return True

    def fill(self, requests: Iterable[Request]) -> None:
        """Fills every request's buffer with verified bytes. Raises DamagedData.

        Each thread decodes other objects. The chunks of a very large object are divided among the
        threads.
        """
        wanted = list(requests)
        total, threads = sum(request.spec.nbytes for request in wanted), cpu_count()
        waiting: list[Future[None]] = []
        grouped: list[tuple[Request, Path]] = []
        predicted: list[tuple[Request, Path]] = []
        try:
            for request in wanted:
                nbytes = request.spec.nbytes
                if (piece := self.by_products.pop(request.id, 0, nbytes)) is not None:
                    waiting.append(self.pool.submit(self._copied, request, piece))
                    continue
                if nbytes <= SHORT and self.at_once(request):
                    continue
                if len(wanted) == 1:
                    self._one(request)
                    continue
                try:
                    path = self.graph.path(request.id, 0, self._provided)
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
        with suppress(DamagedData):  # after damage, the loop below recovers each object separately
            walk_together(self.packs, [(path, request.out) for request, path in grouped], self.pool)
        for request, _ in grouped:
            if blob_id(request.spec, request.out, parallel=True) != request.id:
                self._one(request)

    def blob(self, id_: bytes, spec: TensorSpec) -> bytearray:
        """The bytes of one object in new memory, verified."""
        self.require(id_, spec)
        out = bytearray(spec.nbytes)
        self.fill([Request(id_, spec, memoryview(out))])
        return out

    def require(self, id_: bytes, spec: TensorSpec) -> None:
        """Raises DamagedData unless every piece of an object of several pieces is stored.

        Call it before you allocate memory for a large object, because a forged manifest may claim
        any size.
        """
        if id_ in self._provided:
            return
        if spec.nbytes > PIECE and not self.graph.stores(id_, spec.nbytes):
            raise DamagedData(
                f"object {id_.hex()[:10]} of {spec.nbytes} bytes is not stored",
                hint="run 'mvc fsck' to list the affected versions",
            )

    def manifest(self, id_: bytes) -> bytes:
        """A manifest's canonical bytes, verified."""

        def proves(data: memoryview) -> bool:
            return Manifest.id_of(bytes(data)) == id_

        provided = self._provided.get(id_)
        try:
            if provided is None:
                manifest = self._by_sound_path(id_, 0, self._target_of)
            else:
                manifest = provided[:MAX_MANIFEST]
            if not proves(manifest):
                raise mismatch(id_)
        except DamagedData as error:
            manifest = self._despite(id_, proves, error)
        return bytes(manifest)

    def _despite(
        self, id_: bytes, proves: Callable[[memoryview], bool], error: DamagedData
    ) -> memoryview:
        """Recovers an object of one piece from damaged payloads. Raises ``error`` if this fails.

        A damaged payload has a wrong checksum, but sometimes its decoded bytes are right.
        ``proves``: whether the hash of the decoded bytes is the object's id.
        """
        avoid: set[Place] = set()
        with suppress(DamagedData):  # no path is left
            for _ in range(_DESPITE):
                piece_plan = plan(self.graph, [id_], avoid=avoid)
                damaged = {step.place for step in piece_plan.steps if not self.is_sound(step)}
                if not damaged:
                    break
                with suppress(DamagedData):
                    if proves(data := self._target_of(piece_plan, check=False)):
                        return data
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
        """Fills ``out`` with the piece at ``start`` of an object. Does not check the object's hash.

        Without ``check``, payload checksums are ignored, and only the cheapest path is tried. Then
        the caller must check the object's hash. If the method raises DamagedData, the caller must
        call it again with ``check``.
        """
        if id_ in self._provided:
            self._begin(id_, start, out)
            return
        if (cached := self.by_products.pop(id_, start, len(out), checked=check)) is not None:
            out[:] = cached
            return
        walk = partial(self._run, outs={id_: out}, parallel=parallel, check=check)
        if check:
            self._by_sound_path(id_, start, walk)
        else:
            walk(plan(self.graph, [id_], start, self._provided))

    def _begin(self, origin: bytes | None, start: int, out: memoryview) -> None:
        """Fills ``out`` with a piece of the provided object ``origin``, at which a path begins.

        If ``origin`` is None, does nothing.
        """
        source = None if origin is None else self._provided[origin]
        if isinstance(source, InFile):
            source.read_into(start, out)
        elif source is not None:
            data = source[start : start + len(out)]
            if len(data) != len(out):
                raise DamagedData("a delta has another length than its base")
            out[:] = data

    def _run(
        self,
        piece_plan: PiecePlan,
        outs: Mapping[bytes, memoryview],
        *,
        parallel: bool,
        check: bool,
    ) -> None:
        """Executes a plan. If ``by_products`` is in use, adds the inputs of predictions to it."""
        match piece_plan.actions:
            case [Action(base=bytes(), inputs=()) as only] if only.by_chunks and only.id in outs:
                # A single path from a provided object: apply its deltas to the buffer in ``outs``.
                self._begin(only.base, piece_plan.start, outs[only.id])
                self._walker.walk(only.steps, outs[only.id], parallel=parallel, check=check)
                return
        origins = {
            id_: self._provided[id_][piece_plan.start : piece_plan.start + PIECE]
            for id_ in piece_plan.origins
        }
        wanted = piece_plan.by_products if self.by_products.wanted else set()
        extra = {
            action.id: room_for(action.steps[-1])
            for action in piece_plan.actions
            if action.id in wanted
        }
        pieces = {**extra, **outs}
        carry_out(self._walker, piece_plan, pieces, origins, parallel=parallel, check=check)
        self.by_products.add(piece_plan.start, extra, checked=check)

    def _target_of(self, piece_plan: PiecePlan, *, check: bool = True) -> memoryview:
        """Executes a plan for one object. Returns the object's piece in new memory."""
        out = room_for(piece_plan.actions[-1].steps[-1])
        self._run(piece_plan, {piece_plan.targets[0]: out}, parallel=False, check=check)
        return out

    def _by_sound_path(self, id_: bytes, start: int, walk: Callable[[PiecePlan], _T]) -> _T:
        """Calls ``walk`` with the cheapest plan.

        If payloads are damaged, calls ``walk`` again with a plan that avoids these payloads. If gc
        or repack has moved the payloads meanwhile, calls ``walk`` again with a new plan.
        """
        first: DamagedData | None = None
        while True:
            generation = self.graph.generation
            try:
                piece_plan = plan(self.graph, [id_], start, self._provided)
            except DamagedData as error:
                raise first or error from None
            try:
                return walk(piece_plan)
            except DamagedData as error:
                if self.graph.was_rewritten(generation):
                    continue
                first = first or error
                damaged = [step for step in piece_plan.steps if not self.is_sound(step)]
                if not damaged:
                    raise
                self.graph.exclude(damaged)

    def is_sound(self, step: PathStep) -> bool:
        try:
            self.packs.payload(step.pack, step.offset, step.header, step.member)
        except DamagedData:
            return False
        return True

    def _one(self, request: Request, *, parallel: bool = True) -> None:
        """Recovers an object from undamaged payloads, or else from damaged payloads
        (``_despite``).
        """

        def proves(whole: memoryview) -> bool:
            return len(whole) == request.spec.nbytes and blob_id(request.spec, whole) == request.id

        try:
            self._checked(request, parallel)
        except DamagedData as error:
            if request.spec.nbytes > PIECE:
                raise
            request.out[:] = self._despite(request.id, proves, error)

    def _checked(self, request: Request, parallel: bool) -> None:
        """Recovers an object piece by piece. Raises DamagedData if its hash is wrong."""
        hasher = BlobHasher(request.spec, parallel=parallel)
        for start in range(0, max(request.spec.nbytes, 1), PIECE):
            part = request.out[start : start + PIECE]
            self.piece(request.id, start, part, parallel=parallel)
            hasher.update(part)
        if hasher.done() != request.id:
            raise mismatch(request.id)

    def _together(self, requests: Sequence[Request], *, parallel: bool = True) -> None:
        """Recovers objects that are predicted from each other, by one plan.

        Then recovers each object whose hash is wrong separately.
        """
        first = {request.id: request for request in reversed(requests)}
        with suppress(DamagedData):
            for start in range(0, max(requests[0].spec.nbytes, 1), PIECE):
                outs = {i: r.out[start : start + PIECE] for i, r in first.items()}
                piece_plan = plan(self.graph, list(outs), start, self._provided)
                self._run(piece_plan, outs, parallel=parallel, check=False)
        for request in requests:
            twin = first[request.id]
            if twin is not request and twin.spec == request.spec:
                request.out[:] = twin.out
            if blob_id(request.spec, request.out, parallel=parallel) != request.id:
                self._one(request, parallel=parallel)

    def _copied(self, request: Request, piece: memoryview) -> None:
        """Fills a request with ``piece``, which was recovered earlier for a prediction."""
        request.out[:] = piece
        if blob_id(request.spec, request.out) != request.id:
            self._one(request, parallel=False)

    def _alone(self, request: Request, path: Path) -> None:
        if not self._proven(request, path):
            self._one(request, parallel=False)

    def at_once(self, request: Request) -> bool:
        """Recovers a whole object by its cheapest path in this thread.

        Returns False if this fails.
        """
        try:
            path = self.graph.path(request.id, 0, self._provided)
        except DamagedData:
            return False
        return self._proven(request, path)

    def _proven(self, request: Request, path: Path) -> bool:
        """Decodes a whole object along a simple path; returns whether its hash matches.

        Payload checksums are ignored, because the object's hash covers the decoded bytes. Returns
        False without decoding if the path has large or grouped payloads, or transforms.
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
        """As ``piece``, for several objects whose codings depend on each other."""
        piece_plan = plan(self.graph, list(outs), start, self._provided)
        self._run(piece_plan, outs, parallel=True, check=True)

    def walk(
        self,
        walks: Sequence[tuple[Path, memoryview]],
        available: Pieces,
        *,
        parallel: bool = False,
    ) -> None:
        """Recovers the piece of each path into the buffer of the path. Does not check hashes.

        All pieces must have the same offset in their objects. ``available``: pieces at which paths
        may begin. ``parallel``: use the threads of the pool. The calling thread must not be one of
        these threads. Raises DamagedData.
        """
        outs = {self.graph.end_of(path.steps[-1]): out for path, out in walks}
        paths = [path for path, _ in walks]
        piece_plan = plan(
            self.graph, list(outs), paths[0].steps[-1].member.start, available, along=paths
        )
        pieces = {id_: available[id_] for id_ in piece_plan.origins}
        carry_out(self._walker, piece_plan, outs, pieces, parallel=parallel)


def _last_transform(steps: Sequence[PathStep]) -> int | None:
    """Index of the last step with a transform, such as a change of dtype; None without one."""
    return max((i for i, s in enumerate(steps) if s.member.coding.transform), default=None)


def mismatch(id_: bytes) -> DamagedData:
    """The error for an object whose recovered bytes have another hash."""
    return DamagedData(
        f"object {id_.hex()[:10]} does not match its hash after decoding",
        hint="run 'mvc fsck' to list the affected versions",
    )


def piece_reader(
    piece: Callable[[bytes, int, memoryview], None], id_: bytes, spec: TensorSpec
) -> Callable[[int, int], memoryview]:
    """Returns a function that reads the pieces of an object into the same memory."""
    room = np.empty(min(PIECE, spec.nbytes), np.uint8).data

    def read(start: int, length: int) -> memoryview:
        piece(id_, start, room[:length])
        return room[:length]

    return read
