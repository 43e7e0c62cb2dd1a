"""Which payloads the recovery of a version decodes."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TypeVar

from mvc.store.recovery.rates import Part

_N = TypeVar("_N", bound=Hashable)


def decoded(
    wanted: Mapping[_N, int],
    last_step: Callable[[_N], tuple[int, Part, _N | None, Sequence[_N]]],
) -> list[tuple[int, list[Part]]]:
    """The raw bytes and the payloads of pieces, and of their inputs that no way leads through.

    ``wanted``: the raw bytes of each piece. ``last_step``: of the way to a piece the raw bytes and
    the last payload, the piece before it, and those from which an optimizer's step predicts it.
    """
    walks, done, waiting = list[tuple[int, list[Part]]](), set[_N](), list(wanted)
    for place, node in enumerate(waiting):  # inputs are added behind
        parts = list[Part]()
        at: _N | None = node
        while at is not None and (place < len(wanted) or at not in done):
            _, part, origin, inputs = last_step(at)
            parts.append(part)
            waiting += inputs
            done.add(at)
            at = origin
        if parts:
            walks.append((wanted.get(node) or last_step(node)[0], parts))
    return walks
