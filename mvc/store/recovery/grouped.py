"""Recovering from group records, in which one payload holds many tensors.

Tensors with the same path are walked in lockstep, so that every group payload on
it is decoded once for all of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from mvc.codecs.group import decode_group
from mvc.codecs.words import combine
from mvc.errors import DamagedData
from mvc.limits import PIECE, RECORD
from mvc.store.graph.search import Path, Step
from mvc.store.packs.reader import PackReader
from mvc.store.recovery.decode import apply_steps, in_order, pipeline_of, short_name

__all__ = ["is_grouped", "walk_together"]

_MOST = 4 * (RECORD + PIECE)
"""Raw bytes of a group: a record is written once it has RECORD, the last piece included."""


def is_grouped(path: Path) -> bool:
    """Whether any payload on the path is shared."""
    return any(step.header.group for step in path.steps)


def walk_together(
    packs: PackReader, walks: Iterable[tuple[Path, memoryview]], *, check: bool = True
) -> None:
    """Fills each buffer along its path. No path may need a forward transform.

    Without ``check`` the payloads' checksums are left to the caller, who checks the result.
    """
    clusters: dict[tuple[tuple[int, int, bool], ...], list[tuple[Path, memoryview]]] = {}
    for path, out in walks:
        route = tuple((step.pack, step.offset, step.reverse) for step in path.steps)
        clusters.setdefault(route, []).append((path, out))
    for cluster in clusters.values():
        for level in range(len(cluster[0][0].steps)):
            together = [(path.steps[level], out) for path, out in cluster]
            if together[0][0].header.group:
                _apply_group(packs, together, check)
            else:
                for step, out in together:
                    apply_steps(packs, [step], out, in_order, check=check)


def _apply_group(
    packs: PackReader, together: Sequence[tuple[Step, memoryview]], check: bool
) -> None:
    step = together[0][0]
    pipeline = pipeline_of(step)
    payload = packs.payload(step.pack, step.offset, step.header, step.member, check=check)
    sizes = [member.nbytes for member in step.header.members]
    if sum(sizes) > _MOST or any(len(out) != each.member.nbytes for each, out in together):
        raise DamagedData(f"{short_name(step)} claims another length than there can be")
    decoded = decode_group(pipeline, payload, sizes)
    places = {id(member): i for i, member in enumerate(step.header.members)}
    for each, out in together:
        delta, width = decoded[places[id(each.member)]]
        if each.member.base:
            combine(pipeline.operator, out, delta, width, reverse=each.reverse)
        else:
            out[:] = delta
