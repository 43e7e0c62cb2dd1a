"""Recovers a piece of a stored object by decoding a full record, then deltas.

A piece is at most 32 MiB of an object, such as a tensor. A payload is the encoded form of a piece:
either the piece itself (a full record) or its delta from another piece, the base. With a transform,
such as a change of dtype, the base is converted before the delta is applied. The path to a piece is
the list of payloads from the full record to the piece.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from threading import Lock

import numpy as np

from mvc.codecs import cast
from mvc.codecs.patch import decode_patch_into
from mvc.errors import DamagedData
from mvc.io.process import cpu_count
from mvc.limits import MAX_MANIFEST, PIECE
from mvc.store.graph.search import Path, PathStep
from mvc.store.packs.reader import PackReader
from mvc.store.packs.records import patch_extra
from mvc.store.recovery.decode import LOADED, apply_steps, in_order, short_name
from mvc.store.recovery.grouped import is_grouped, walk_together

SHORT = 64 << 10
"""Bytes up to which passing work to a thread takes more time than the work itself."""


class Walker:
    """Decodes payloads of a repository's packs. Safe across threads."""

    def __init__(self, packs: PackReader, pool: Executor) -> None:
        self.packs = packs
        self.pool = pool

    def walk(
        self,
        steps: Sequence[PathStep],
        out: memoryview,
        origin: memoryview | None = None,
        *,
        parallel: bool = False,
        check: bool = True,
    ) -> None:
        """Decodes the steps of a path, and writes the result into ``out``.

        Not for predicted pieces (``mvc.store.graph.plan``). With ``origin``, the first step is a
        delta from the bytes of ``origin``. ``parallel``: use the threads of the pool. The calling
        thread must not be one of these threads. Without ``check``, checksums of payloads are
        ignored, and the caller checks the result. Raises DamagedData.
        """
        parallel = parallel and len(out) > SHORT
        sections = _sections(steps) or [(None, ())]
        state = memoryview(b"") if origin is None else origin
        for i, (transform, straight) in enumerate(sections):
            last = i + 1 == len(sections)
            target = out if last else room_for(transform or straight[0])
            if transform is not None:
                self._cross(transform, state, target, check)
            elif origin is not None:
                if len(state) != len(target):
                    raise DamagedData("a delta has another length than its base")
                target[:] = state
            self._straight(straight, target, parallel=parallel and last, check=check)
            state = target

    def _straight(
        self, steps: Sequence[PathStep], out: memoryview, *, parallel: bool, check: bool
    ) -> None:
        """Decodes steps without transforms into ``out``.

        If the first step is a delta, ``out`` contains the base of this delta at the call.
        """
        path = Path(tuple(steps), 0.0)
        if is_grouped(path):
            pool = self.pool if parallel else None
            walk_together(self.packs, [(path, out)], pool, check=check)
            return
        run = self.spread if parallel else in_order
        if path.stored <= LOADED:
            if steps:
                apply_steps(self.packs, steps, out, run, check=check)
            return
        for step in steps:
            apply_steps(self.packs, [step], out, run, check=check)

    def spread(self, begin: Callable[[int], Callable[[], None]], starts: range) -> None:
        """Calls ``begin(start)()`` for each start, in this thread and idle threads of the pool."""
        left, lock = map(begin, starts), Lock()

        def begun() -> Callable[[], None] | None:
            with lock:
                return next(left, None)

        def some() -> None:
            for work in iter(begun, None):
                work()

        helpers = [self.pool.submit(some) for _ in range(min(len(starts), cpu_count()) - 1)]
        try:
            some()
        finally:
            drain([helper for helper in helpers if not helper.cancel()])

    def _cross(self, step: PathStep, base: memoryview, out: memoryview, check: bool) -> None:
        """Decodes a step with a transform, such as a delta from a base of another dtype."""
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
                raise DamagedData(f"{short_name(step)} is converted from another type or size")
            out[:] = memoryview(cast.cast(base, source, to)).cast("B")
        self._straight([step], out, parallel=False, check=check)


def _sections(steps: Sequence[PathStep]) -> list[tuple[PathStep | None, tuple[PathStep, ...]]]:
    """Divides a path into sections: a step with a transform, then the steps without transforms.

    If the first step of the path has no transform, the first section begins with None.
    """
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


def room_for(step: PathStep) -> memoryview:
    """Memory for a step's result. Raises DamagedData if the result is larger than any piece."""
    if step.member.nbytes > max(MAX_MANIFEST, PIECE):
        raise DamagedData(f"{short_name(step)} claims {step.member.nbytes} bytes")
    return np.empty(step.member.nbytes, np.uint8).data


def drain(waiting: list[Future[None]]) -> None:
    """Waits for all futures, then raises the first error."""
    failures = [error for future in waiting if (error := future.exception()) is not None]
    waiting.clear()
    if failures:
        raise failures[0]
