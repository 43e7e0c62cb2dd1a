"""Recovering objects: walk a path, decode its payloads, check the result's hash.

Where a path's payloads together are large, they are loaded and applied one after the
other, to bound memory; otherwise all of them are applied chunk by chunk.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor, Future
from contextlib import suppress
from typing import Protocol, TypeVar

from msgspec import Struct

from mvc.codecs import cast
from mvc.codecs.patch import decode_patch_into
from mvc.errors import DamagedData
from mvc.io.process import cpu_count
from mvc.limits import CHUNK, MAX_MANIFEST, PIECE
from mvc.model.hashing import BlobHasher, blob_id
from mvc.model.manifest import Manifest
from mvc.model.tensor import TensorSpec
from mvc.store.graph.search import Graph, Path, PathStep, Place
from mvc.store.packs.records import patch_extra
from mvc.store.recovery.decode import LOADED, apply_steps, in_order, short_name
from mvc.store.recovery.grouped import is_grouped, walk_together
from mvc.store.snapshot import Snapshot

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

    def __getitem__(self, part: slice, /) -> memoryview: ...


class Recovery:
    """Materialises objects of one snapshot. Safe across threads."""

    def __init__(
        self,
        snapshot: Snapshot,
        graph: Graph,
        pool: Executor,
        made: Mapping[bytes, Held] | None = None,
    ) -> None:
        """``made``: objects by id that are taken from there, whether they are stored or not.

        Paths begin there as well, where no cheaper one does.
        """
        self.packs = snapshot.packs
        self.graph = graph
        self.pool = pool
        self._made: Mapping[bytes, Held] = {} if made is None else made

    def fill(self, requests: Iterable[Request]) -> None:
        """Fills every request's buffer with verified bytes; DamagedData if one cannot be recovered.

        Objects are spread over the threads; one that is a large part of all by its chunks.
        """
        wanted = list(requests)
        total, threads = sum(request.spec.nbytes for request in wanted), cpu_count()
        waiting: list[Future[None]] = []
        grouped: list[tuple[Request, Path]] = []
        try:
            for request in wanted:
                if request.spec.nbytes > PIECE or len(wanted) == 1:
                    self._one(request)
                    continue
                try:
                    path = self.graph.path(request.id, 0, self._made)
                except DamagedData:
                    self._one(request)
                    continue
                if is_grouped(path) and _last_transform(path.steps) is None:
                    self._begin(path, 0, request.out)
                    grouped.append((request, path))
                elif by_chunks(request.spec.nbytes, total, threads):
                    self._one(request)
                else:
                    waiting.append(self.pool.submit(self._alone, request, path))
                if len(waiting) > _QUEUED:
                    _drain(waiting)
        finally:
            _drain(waiting)
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
        if (made := self._made.get(id_)) is not None:
            data = bytes(made[:MAX_MANIFEST])
            if Manifest.id_of(data) != id_:
                raise _mismatch(id_)
            return data
        try:
            _, whole = self._by_sound_path(id_, 0, self._whole)
            if Manifest.id_of(data := bytes(whole)) != id_:
                raise _mismatch(id_)
        except DamagedData as error:
            found = self._despite(id_, lambda whole: Manifest.id_of(bytes(whole)) == id_)
            if found is None:
                raise error
            data = bytes(found)
        return data

    def _despite(self, id_: bytes, proves: Callable[[memoryview], bool]) -> memoryview | None:
        """An object of one piece to which no path of sound payloads leads; None if it is lost.

        Decoding may not look at a flipped bit: then the payload is damaged, but what it decodes
        to is right, as the object's own hash ``proves``.
        """
        avoid: set[Place] = set()
        for _ in range(_DESPITE):
            try:
                path = self.graph.path(id_, avoid=avoid)
            except DamagedData:
                return None
            damaged = {step.place for step in path.steps if not self.is_sound(step)}
            if not damaged:
                return None
            with suppress(DamagedData):
                if proves(whole := self._whole(path, check=False)):
                    return whole
            avoid |= damaged
        return None

    def piece(self, id_: bytes, start: int, out: memoryview, *, parallel: bool = True) -> Path:
        """Bytes [start, start + len(out)) of an object, one whole piece. Not verified by hash.

        Also of a large skeleton that is stored whole, as mvc 0.1 did.
        """
        made = self._made.get(id_)
        if made is not None:
            self._begin(Path((), 0.0, id_), start, out)
            return Path((), 0.0)
        may_be_whole = start or len(out) == PIECE  # else the object is shorter than a piece
        if may_be_whole and any(s.member.nbytes > PIECE for s in self.graph.codings(id_, 0)):
            path, whole = self._by_sound_path(id_, 0, self._whole)
            if len(whole) >= start + len(out):
                out[:] = whole[start : start + len(out)]
                return path

        def walk(path: Path) -> None:
            self._walk(path, out, parallel, origin=self._origin(path, start))

        return self._by_sound_path(id_, start, walk)[0]

    def _origin(self, path: Path, start: int) -> memoryview | None:
        """The bytes at which a path begins that does not begin with a record."""
        if path.origin is None:
            return None
        return self._made[path.origin][start : start + PIECE]

    def _begin(self, path: Path, start: int, out: memoryview) -> None:
        """Fills ``out`` with the bytes at which a path begins that has no record."""
        if path.origin is not None:
            data = self._made[path.origin][start : start + len(out)]
            if len(data) != len(out):
                raise DamagedData("a delta has another length than what it starts from")
            out[:] = data

    def _whole(self, path: Path, *, check: bool = True) -> memoryview:
        """The object at the end of a path, in memory of its own."""
        out = _room(path.steps[-1])
        self._walk(path, out, parallel=False, check=check, origin=self._origin(path, 0))
        return out

    def _by_sound_path(self, id_: bytes, start: int, walk: Callable[[Path], _T]) -> tuple[Path, _T]:
        """Walks the cheapest path; where a payload is damaged, the cheapest one around it.

        If maintenance has moved a payload of the path meanwhile, the search is repeated.
        """
        first: DamagedData | None = None
        while True:
            generation = self.graph.generation
            try:
                path = self.graph.path(id_, start, self._made)
            except DamagedData as error:
                raise first or error from None
            try:
                return path, walk(path)
            except DamagedData as error:
                if self.graph.was_rewritten(generation):
                    continue
                first = first or error
                damaged = [step for step in path.steps if not self.is_sound(step)]
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
        try:
            self._checked(request, parallel)
        except DamagedData:
            if request.spec.nbytes > PIECE:
                raise
            found = self._despite(
                request.id,
                lambda whole: (
                    len(whole) == request.spec.nbytes and blob_id(request.spec, whole) == request.id
                ),
            )
            if found is None:
                raise
            request.out[:] = found

    def _checked(self, request: Request, parallel: bool) -> None:
        """An object in pieces, each of them spread over the threads."""
        hasher = BlobHasher(request.spec, parallel=parallel)
        for start in range(0, max(request.spec.nbytes, 1), PIECE):
            part = request.out[start : start + PIECE]
            self.piece(request.id, start, part, parallel=parallel)
            hasher.update(part)
        if hasher.done() != request.id:
            raise _mismatch(request.id)

    def _alone(self, request: Request, path: Path) -> None:
        """A whole object in this thread, hashed chunk by chunk as it is finished.

        The object's hash covers its payloads. Only where it does not match, their own checksums
        are computed, which tell the damaged one.
        """
        steps = path.steps
        if path.stored <= LOADED and not is_grouped(path) and _last_transform(steps) is None:
            hasher = BlobHasher(request.spec)
            with suppress(DamagedData):
                self._begin(path, 0, request.out)
                apply_steps(
                    self.packs, steps, request.out, in_order, done=hasher.update, check=False
                )
                if hasher.done() == request.id:
                    return
        self._one(request, parallel=False)

    # -- one path ----------------------------------------------------------------------

    def walk(
        self,
        path: Path,
        out: memoryview,
        origin: memoryview | None = None,
        *,
        parallel: bool = False,
    ) -> None:
        """Fills ``out`` along a path; with ``origin`` it begins at these bytes.

        ``parallel``: with the threads of the pool; else in this thread, which may be one of them.
        Nothing is compared with a hash. Raises DamagedData.
        """
        self._walk(path, out, parallel=parallel, origin=origin)

    def _walk(
        self,
        path: Path,
        out: memoryview,
        parallel: bool,
        check: bool = True,
        *,
        origin: memoryview | None = None,
    ) -> None:
        """Fills ``out``: from transform to transform, and straight on between them."""
        sections = _sections(path.steps) or [(None, ())]
        state = memoryview(b"") if origin is None else origin
        for i, (transform, straight) in enumerate(sections):
            last = i + 1 == len(sections)
            target = out if last else _room(transform or straight[0])
            if transform is not None:
                self._cross(transform, state, target, check)
            elif origin is not None:
                if len(state) != len(target):
                    raise DamagedData("a delta has another length than what it starts from")
                target[:] = state
            self._straight(straight, target, parallel and last, check)
            state = target

    def _straight(
        self, steps: Sequence[PathStep], out: memoryview, parallel: bool, check: bool
    ) -> None:
        """A full record, or nothing where ``out`` is filled already; then undirected deltas."""
        path = Path(tuple(steps), 0.0)
        if is_grouped(path):
            pool = self.pool if parallel else None
            walk_together(self.packs, [(path, out)], pool, check=check)
            return
        each = self._spread if parallel else in_order
        if path.stored <= LOADED:
            if steps:
                apply_steps(self.packs, steps, out, each, read=each, check=check)
            return
        for step in steps:
            apply_steps(self.packs, [step], out, each, check=check)

    def _spread(self, work: Callable[[int], None], starts: range) -> None:
        if len(starts) == 1:
            work(0)
        else:
            _drain([self.pool.submit(work, start) for start in starts])

    def _cross(self, step: PathStep, base: memoryview, out: memoryview, check: bool) -> None:
        """Fills ``out`` by one forward transform from the bytes of its base."""
        member = step.member
        if member.nbytes != len(out):
            raise DamagedData(f"{short_name(step)} has a wrong length")
        transform = member.coding.transform
        if transform == "patch":
            payload = self.packs.payload(step.pack, step.offset, step.header, member, check=check)
            extra = patch_extra(step.header.members, member.kind)
            old = base if member.base else memoryview(b"")
            decode_patch_into(memoryview(payload), old, extra, out)
            return
        if transform == "resize":
            common = min(len(base), len(out))
            out[:common] = base[:common]
            out[common:] = bytes(len(out) - common)
        else:
            source, _, to = transform.removeprefix("cast:").partition(">")
            if not cast.supported(source, to) or len(base) != len(out) * cast.RATIO:
                raise DamagedData(f"{short_name(step)} is converted from something else")
            out[:] = memoryview(cast.cast(base, source, to)).cast("B")
        self._straight([step], out, False, check)


def _sections(steps: Sequence[PathStep]) -> list[tuple[PathStep | None, tuple[PathStep, ...]]]:
    """A path cut at its forward transforms: each with the undirected steps after it."""
    starts = [i for i, step in enumerate(steps) if step.member.coding.transform]
    ends = [*starts[1:], len(steps)]
    sections: list[tuple[PathStep | None, tuple[PathStep, ...]]] = (
        [
            (steps[start], tuple(steps[start + 1 : end]))
            for start, end in zip(starts, ends, strict=True)
        ]
        if starts
        else []
    )
    first = starts[0] if starts else len(steps)
    return [(None, tuple(steps[:first])), *sections] if first else sections


def _room(step: PathStep) -> memoryview:
    """Memory for a step's result; DamagedData if it claims more than any object has."""
    if step.member.nbytes > max(MAX_MANIFEST, PIECE):
        raise DamagedData(f"{short_name(step)} claims {step.member.nbytes} bytes")
    return memoryview(bytearray(step.member.nbytes))


def _last_transform(steps: Sequence[PathStep]) -> int | None:
    """The last step that can only be walked forward; everything after it is undirected."""
    return max((i for i, s in enumerate(steps) if s.member.coding.transform), default=None)


def _drain(waiting: list[Future[None]]) -> None:
    """Waits for all, then raises the first failure."""
    failures = [error for future in waiting if (error := future.exception()) is not None]
    waiting.clear()
    if failures:
        raise failures[0]


def _mismatch(id_: bytes) -> DamagedData:
    return DamagedData(
        f"object {id_.hex()[:10]} does not match its hash after decoding",
        hint="run 'mvc fsck' to see which versions it touches",
    )
