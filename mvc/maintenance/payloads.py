"""Which stored payloads (encoded bytes of tensors) must be decoded to recover a version."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TypeVar

from mvc.store.recovery.rates import Part

_N = TypeVar("_N", bound=Hashable)


def decoded(
    wanted: Mapping[_N, int],
    last_step: Callable[[_N], tuple[int, Part, _N | None, Sequence[_N]]],
) -> list[tuple[int, list[Part]]]:
    """For each piece to decode: its raw bytes, and the payloads on its path.

    Includes the inputs of predictions that no path of a wanted piece contains. ``wanted``: maps a
    piece to its raw bytes. ``last_step``: returns for a piece its raw bytes, the last payload of
    its path, the piece before that payload, and the pieces from which an optimizer's step predicts
    it.
    """
    walks, done, waiting = list[tuple[int, list[Part]]](), set[_N](), list(wanted)
    for position, node in enumerate(waiting):  # inputs are appended meanwhile
        parts = list[Part]()
        current: _N | None = node
        while current is not None and (position < len(wanted) or current not in done):
            _, part, origin, inputs = last_step(current)
            parts.append(part)
            waiting += inputs
            done.add(current)
            current = origin
        if parts:
            walks.append((wanted.get(node) or last_step(node)[0], parts))
    return walks
