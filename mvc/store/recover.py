"""Recovering objects: walk a path, decode its payloads, check the result's hash.

Deltas are applied chunk by chunk, all of a path's deltas to one chunk while it is in
the processor's cache, chunks in parallel. Where a path's payloads together are
large, they are loaded and applied one after the other instead, to bound memory.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from mvc.codecs import cast
from mvc.codecs.group import decode_group
from mvc.codecs.patch import decode_patch
from mvc.codecs.payload import Payload
from mvc.codecs.pipeline import Pipeline
from mvc.codecs.words import combine
from mvc.errors import DamagedData
from mvc.limits import CHUNK, MAX_MANIFEST, SLAB
from mvc.model.hashing import BlobHasher
from mvc.model.manifest import Manifest
from mvc.model.tensor import TensorSpec
from mvc.store.graph import Graph, Path, Step
from mvc.store.records import patch_extra
from mvc.store.view import View

__all__ = ["Recovery", "Request"]

_SMALL = 2 * CHUNK  # objects up to this size are one task each
_LOADED = 64 << 20  # payload bytes of one path that may be in memory together


@dataclass(frozen=True, slots=True)
class Request:
    """An object wanted in ``out``, a writable buffer of ``spec.nbytes`` bytes."""

    id: bytes
    spec: TensorSpec
    out: memoryview


class Recovery:
    """Materialises objects of one view. Safe across threads."""

    def __init__(self, view: View, graph: Graph, pool: ThreadPoolExecutor) -> None:
        self._view = view
        self._graph = graph
        self._pool = pool
        self._groups: dict[tuple[int, int], list[memoryview]] = {}
        self._group_lock = threading.Lock()

    def fill(self, requests: Iterable[Request]) -> None:
        """Fills every request's buffer with verified bytes."""
        waiting: list[Future[None]] = []
        try:
            for request in requests:
                if request.spec.nbytes <= _SMALL:
                    waiting.append(self._pool.submit(self._one, request, False))
                else:
                    self._one(request, True)
                if len(waiting) > 256:
                    _drain(waiting)
        finally:
            _drain(waiting)

    def blob(self, id_: bytes, spec: TensorSpec) -> bytearray:
        """One object in memory of its own, verified."""
        out = bytearray(spec.nbytes)
        self.fill([Request(id_, spec, memoryview(out))])
        return out

    def manifest(self, id_: bytes) -> bytes:
        """A manifest's canonical bytes, verified."""
        path = self._graph.path(id_)
        data = self._forward(path)
        if Manifest.id_of(data) != id_:
            raise _mismatch(id_)
        return data

    def piece(self, id_: bytes, start: int, out: memoryview, *, parallel: bool = True) -> Path:
        """Bytes [start, start + len(out)) of an object, one whole piece. Not verified by hash."""
        path = self._graph.path(id_, start)
        self._walk(path, out, parallel)
        return path

    def _one(self, request: Request, parallel: bool) -> None:
        hasher = BlobHasher(request.spec, parallel=parallel)
        size = request.spec.nbytes
        for start in range(0, max(size, 1), SLAB):
            part = request.out[start : start + SLAB]
            self.piece(request.id, start, part, parallel=parallel)
            hasher.update(part)
        if hasher.done() != request.id:
            raise _mismatch(request.id)

    # -- one path ----------------------------------------------------------------------

    def _walk(self, path: Path, out: memoryview, parallel: bool) -> None:
        steps = path.steps
        if steps[-1].member.nbytes != len(out) and not steps[-1].reverse:
            raise DamagedData(f"object {steps[-1].member.id.hex()[:10]} has a wrong length")
        last = max((i for i, s in enumerate(steps) if s.member.coding.bridge), default=None)
        if last is not None:
            self._cross(steps, last, out)
            steps = steps[last + 1 :]
        if not steps:
            return
        if path.stored <= _LOADED:
            self._apply(steps, out, parallel)
        else:
            for step in steps:
                self._apply([step], out, parallel)

    def _apply(self, steps: Sequence[Step], out: memoryview, parallel: bool) -> None:
        """A full record and equal-length deltas, or some of the deltas, chunk by chunk."""
        works = [self._prepare(step, len(out)) for step in steps]

        def chunk(start: int) -> None:
            part = out[start : start + CHUNK]
            for work in works:
                work(start, part)

        starts = range(0, len(out), CHUNK)
        if parallel and len(starts) > 1:
            _drain([self._pool.submit(chunk, start) for start in starts])
        else:
            for start in starts:
                chunk(start)

    def _prepare(self, step: Step, size: int) -> Callable[[int, memoryview], None]:
        """What one payload does to the chunk at a byte offset."""
        pipeline = Pipeline.parse(step.member.coding.pipeline)
        name = f"object {step.member.id.hex()[:10]} in pack {step.pack}"
        if step.member.nbytes != size:
            raise DamagedData(f"{name} has a wrong length")
        if step.header.group:
            return self._prepare_group(step, pipeline)
        data = self._view.packs.payload(step.pack, step.offset, step.header, step.member)
        payload = Payload(data, size)
        if payload.chunk_size != CHUNK and size > CHUNK:
            raise DamagedData(f"{name} is cut into chunks of a foreign size")

        def work(start: int, part: memoryview) -> None:
            encoded = payload.chunk(start // CHUNK)
            if step.member.base:
                pipeline.apply_chunk(encoded, part, payload.width, reverse=step.reverse)
            else:
                pipeline.decode_chunk(encoded, part, payload.width)

        return work

    def _prepare_group(self, step: Step, pipeline: Pipeline) -> Callable[[int, memoryview], None]:
        position = step.header.members.index(step.member)
        delta = self._group(step, pipeline)[position]

        def work(start: int, part: memoryview) -> None:
            piece = delta[start : start + len(part)]
            if step.member.base:
                combine(pipeline.operator, part, piece, 1, reverse=step.reverse)
            else:
                part[:] = piece

        return work

    def _group(self, step: Step, pipeline: Pipeline) -> list[memoryview]:
        """The decoded payload of a group record; the last few are kept."""
        key = (step.pack, step.offset)
        with self._group_lock:
            found = self._groups.get(key)
            if found is None:
                sizes = [m.nbytes for m in step.header.members]
                payload = self._view.packs.payload(step.pack, step.offset, step.header, step.member)
                found = decode_group(pipeline, memoryview(payload), sizes)
                while sum(len(v) for g in self._groups.values() for v in g) > _LOADED:
                    self._groups.pop(next(iter(self._groups)))
                self._groups[key] = found
        return found

    # -- bridges -----------------------------------------------------------------------

    def _cross(self, steps: Sequence[Step], last: int, out: memoryview) -> None:
        """Fills ``out`` from the steps up to and including the last forward one."""
        bridge = steps[last].member.coding.bridge
        before = Path(tuple(steps[:last]), 0.0)
        if bridge == "patch":
            data = self._forward(Path(tuple(steps[: last + 1]), 0.0))
            if len(data) != len(out):
                raise DamagedData("a patched object has a wrong length")
            out[:] = data
            return
        base = bytearray(_length(before))
        self._walk(before, memoryview(base), parallel=False)
        if bridge == "resize":
            common = min(len(base), len(out))
            out[:common] = memoryview(base)[:common]
            out[common:] = bytes(len(out) - common)
        else:
            source, _, to = bridge.removeprefix("cast:").partition(">")
            converted = memoryview(cast.cast(memoryview(base), source, to)).cast("B")
            if len(converted) != len(out):
                raise DamagedData("a converted object has a wrong length")
            out[:] = converted
        self._apply([steps[last]], out, parallel=False)

    def _forward(self, path: Path) -> bytes:
        """A path of patches: each one's dictionary is the object before it."""
        data = b""
        for i, step in enumerate(path.steps):
            member = step.member
            if member.coding.bridge != "patch":
                out = bytearray(member.nbytes)
                self._walk(Path(path.steps[: i + 1], 0.0), memoryview(out), parallel=False)
                data = bytes(out)
                continue
            if member.nbytes > max(MAX_MANIFEST, SLAB):
                raise DamagedData(f"object {member.id.hex()[:10]} is too large for a patch")
            payload = self._view.packs.payload(step.pack, step.offset, step.header, member)
            base = memoryview(data if member.base else b"")
            extra = patch_extra(step.header.members, member.kind)
            data = decode_patch(memoryview(payload), base, extra, member.nbytes)
        return data


def _length(path: Path) -> int:
    """Raw length of what a path leads to."""
    return path.steps[-1].member.nbytes


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
