"""The recovery bound (MDTT; VSOL §3.2.8): no version may take longer to come back.

A chain's tail has a reset point on one side only, so a new version is stored in full
as soon as one more delta on every blob would pass the bound: R' = floor(MDTT / t).
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress

from mvc.errors import DamagedData, InvalidConfig
from mvc.io.process import cpu_count
from mvc.model.manifest import FileEntry, Manifest
from mvc.repo.context import Context
from mvc.store.graph.cost import measure

__all__ = ["chain_depth", "recovery_seconds", "within_bound"]

_LOOKED_AT = 8  # the largest blobs of a version stand for it


def recovery_seconds(context: Context, manifest: Manifest) -> tuple[float, float, float]:
    """Estimated seconds to recover a version, to decode one delta of it, and all in full."""
    speed = measure()
    total = deltas = full = 0.0
    for entry in manifest.entries:
        for content in entry.contents:
            path = context.store.graph.path(content.id)
            total += sum(speed.seconds(step.member) for step in path.steps)
            deltas += content.spec.nbytes / speed.delta + speed.latency
            full += content.spec.nbytes / speed.full + speed.latency
    threads = cpu_count()
    return total / threads, deltas / threads, full / threads


def within_bound(context: Context, parent: Manifest, bound: float) -> bool:
    """Whether a child that differs from ``parent`` everywhere may be stored as deltas."""
    if not parent.entries:
        return True
    total, delta, full = recovery_seconds(context, parent)
    if full > bound:
        raise InvalidConfig(
            f"store.max_recovery is {bound:g} s, but one full version takes {full:.2g} s here",
            hint="raise store.max_recovery",
        )
    return total + delta <= bound


def chain_depth(context: Context, entries: Iterable[FileEntry]) -> int:
    """Deltas under some files of a version: the longest chain among their largest blobs.

    Of the files that a commit changes: the chains of the others do not grow, and would stay
    as long as they are, however often the changed ones were stored in full.
    """
    contents = {c.id: c.spec.nbytes for e in entries for c in e.contents}
    largest = sorted(contents, key=lambda id_: -contents[id_])[:_LOOKED_AT]
    depths = [0]
    for id_ in largest:
        with suppress(DamagedData):  # then nothing is coded against it
            depths.append(context.store.graph.path(id_).depth)
    return max(depths)
