"""Lists the payloads (encoded bytes of tensors) that must be decoded to recover a version."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TypeVar

from mvc.store.recovery.rates import Part

_N = TypeVar("_N", bound=Hashable)


def decoded(
    wanted: Mapping[_N, int],
    last_step: Callable[[_N], tuple[int, Part, _N | None, Sequence[_N]]],
) -> list[tuple[int, list[Part]]]:
    """Returns, for each piece to decode, its size and the payloads that recover it.

    ``wanted``: maps the pieces of a version to their sizes. ``last_step``: takes a piece; returns
    its size, the payload that yields the piece, the piece from which this payload starts (None for
    a full record), and input pieces, from which an optimizer's step predicts the piece. The result
    includes input pieces that are not wanted, with the payloads that no earlier item has.
    """
    walks, done, waiting = list[tuple[int, list[Part]]](), set[_N](), list(wanted)
    for position, node in enumerate(waiting):  # the loop appends inputs to ``waiting``
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
