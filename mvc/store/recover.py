"""Recovering objects: walk a path, decode its payloads, check the result's hash.

Where a path's payloads together are large, they are loaded and applied one after the
other, to bound memory; otherwise all of them are applied chunk by chunk.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar

from mvc.codecs import cast
from mvc.codecs.patch import decode_patch
from mvc.errors import DamagedData
from mvc.limits import MAX_MANIFEST, SLAB
from mvc.model.hashing import BlobHasher, blob_id
from mvc.model.manifest import Manifest
from mvc.model.tensor import TensorSpec
from mvc.store.decode import LOADED, apply_steps, in_order, short_name
from mvc.store.graph import Graph, Path, Step
from mvc.store.grouped import is_grouped, walk_together
from mvc.store.records import patch_extra
from mvc.store.view import View

__all__ = ["Recovery", "Request"]

_QUEUED = 256
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Request:
    """An object wanted in ``out``, a writable buffer of ``spec.nbytes`` bytes."""

    id: bytes
    spec: TensorSpec
    out: memoryview


class Recovery:
    """Materialises objects of one view. Safe across threads."""

    def __init__(self, view: View, graph: Graph, pool: ThreadPoolExecutor) -> None:
        self._packs = view.packs
        self._graph = graph
        self._pool = pool

    def fill(self, requests: Iterable[Request]) -> None:
        """Fills every request's buffer with verified bytes.

        Objects are spread over the threads; one that is alone is spread by its chunks.
        """
        wanted = list(requests)
        waiting: list[Future[None]] = []
        grouped: list[tuple[Request, Path]] = []
        try:
            for request in wanted:
                if request.spec.nbytes > SLAB or len(wanted) == 1:
                    self._one(request)
                    continue
                path = self._graph.path(request.id)
                if is_grouped(path) and _last_bridge(path.steps) is None:
                    grouped.append((request, path))
                else:
                    waiting.append(self._pool.submit(self._alone, request, path))
                if len(waiting) > _QUEUED:
                    _drain(waiting)
        finally:
            _drain(waiting)
        with suppress(DamagedData):  # then every object looks for a way of its own
            walk_together(self._packs, [(path, request.out) for request, path in grouped])
        for request, _ in grouped:
            if blob_id(request.spec, request.out, parallel=True) != request.id:
                self._one(request)

    def blob(self, id_: bytes, spec: TensorSpec) -> bytearray:
        """One object in memory of its own, verified."""
        out = bytearray(spec.nbytes)
        self.fill([Request(id_, spec, memoryview(out))])
        return out

    def manifest(self, id_: bytes) -> bytes:
        """A manifest's canonical bytes, verified."""
        _, data = self._by_sound_path(id_, 0, self._forward)
        if Manifest.id_of(data) != id_:
            raise _mismatch(id_)
        return data

    def piece(self, id_: bytes, start: int, out: memoryview, *, parallel: bool = True) -> Path:
        """Bytes [start, start + len(out)) of an object, one whole piece. Not verified by hash."""
        path, _ = self._by_sound_path(id_, start, lambda path: self._walk(path, out, parallel))
        return path

    def _by_sound_path(self, id_: bytes, start: int, walk: Callable[[Path], _T]) -> tuple[Path, _T]:
        """Walks the cheapest path; where a payload is damaged, the cheapest one around it.

        Where maintenance has moved what the path leads through, the search begins anew.
        """
        first: DamagedData | None = None
        while True:
            generation = self._graph.generation
            try:
                path = self._graph.path(id_, start)
            except DamagedData as error:
                raise first or error from None
            try:
                return path, walk(path)
            except DamagedData as error:
                if self._graph.outrun(generation):
                    continue
                first = first or error
                damaged = [step for step in path.steps if not self.is_sound(step)]
                if not damaged:
                    raise
                self._graph.distrust(damaged)

    def is_sound(self, step: Step) -> bool:
        """Whether a payload fits its checksum."""
        try:
            self._packs.payload(step.pack, step.offset, step.header, step.member)
        except DamagedData:
            return False
        return True

    def _one(self, request: Request, *, parallel: bool = True) -> None:
        """An object in pieces, each of them spread over the threads."""
        hasher = BlobHasher(request.spec, parallel=parallel)
        for start in range(0, max(request.spec.nbytes, 1), SLAB):
            part = request.out[start : start + SLAB]
            self.piece(request.id, start, part, parallel=parallel)
            hasher.update(part)
        if hasher.done() != request.id:
            raise _mismatch(request.id)

    def _alone(self, request: Request, path: Path) -> None:
        """A whole object in this thread, hashed chunk by chunk as it is finished.

        The object's hash covers its payloads; only where it does not fit are their own
        checksums asked, which tell the damaged one.
        """
        steps = path.steps
        if path.stored <= LOADED and not is_grouped(path) and _last_bridge(steps) is None:
            hasher = BlobHasher(request.spec)
            with suppress(DamagedData):
                apply_steps(self._packs, steps, request.out, in_order, hasher.update, check=False)
                if hasher.done() == request.id:
                    return
        self._one(request, parallel=False)

    # -- one path ----------------------------------------------------------------------

    def _walk(self, path: Path, out: memoryview, parallel: bool) -> None:
        steps = path.steps
        if steps[-1].member.nbytes != len(out) and not steps[-1].reverse:
            raise DamagedData(f"{short_name(steps[-1])} has a wrong length")
        last = _last_bridge(steps)
        if last is not None:
            self._cross(steps, last, out)
            steps = steps[last + 1 :]
        if is_grouped(path):
            walk_together(self._packs, [(Path(steps, 0.0), out)])
            return
        each = self._spread if parallel else in_order
        if path.stored <= LOADED:
            if steps:
                apply_steps(self._packs, steps, out, each)
            return
        for step in steps:
            apply_steps(self._packs, [step], out, each)

    def _spread(self, work: Callable[[int], None], starts: range) -> None:
        if len(starts) == 1:
            work(0)
        else:
            _drain([self._pool.submit(work, start) for start in starts])

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
        if steps[last].header.group:
            walk_together(self._packs, [(Path((steps[last],), 0.0), out)])
        else:
            apply_steps(self._packs, [steps[last]], out, in_order)

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
            payload = self._packs.payload(step.pack, step.offset, step.header, member)
            base = memoryview(data if member.base else b"")
            extra = patch_extra(step.header.members, member.kind)
            data = decode_patch(memoryview(payload), base, extra, member.nbytes)
        return data


def _last_bridge(steps: Sequence[Step]) -> int | None:
    """The last step that can only be walked forward; everything after it is undirected."""
    return max((i for i, s in enumerate(steps) if s.member.coding.bridge), default=None)


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
