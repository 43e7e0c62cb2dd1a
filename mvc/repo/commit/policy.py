"""Decides whether a version is stored in full (a reset point) or as deltas.

With ``store.max_recovery`` (MDTT; VSOL §3.2.8) no version may take longer to recover. A chain's
tail has a reset point on one side only, so a new version is stored in full as soon as one more
delta on every blob would pass the bound: R' = floor(MDTT / t). Without it, every
``store.reset_interval``-th version is a reset point.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress

from mvc.codecs.pipeline import Pipeline
from mvc.errors import DamagedData, InvalidConfig
from mvc.io.process import cpu_count
from mvc.model.manifest import FileEntry, Manifest
from mvc.repo.commit.request import CommitRequest
from mvc.repo.context import Context
from mvc.store.graph.cost import measure
from mvc.store.writing.choose import Policy

__all__ = ["chain_depth", "policy_of", "recovery_seconds", "within_bound"]

_SAMPLED = 8  # blobs, the largest of a version
_UNBOUNDED = 10_000  # deltas in a chain whose limit is in seconds


def policy_of(
    context: Context, request: CommitRequest, parent: Manifest, pipeline: Pipeline
) -> Policy:
    """How a commit on ``parent`` is stored; a reset point stores all of its blobs in full."""
    get = context.config.get
    bound, interval = get("store.max_recovery"), int(get("store.reset_interval"))
    reset = request.reset_point
    if bound is not None:
        interval = _UNBOUNDED
        reset = reset or not within_bound(context, parent, float(bound))
    elif not reset:
        reset = _depth(context, request, parent) + 1 >= interval
    return Policy(pipeline, interval, float(get("store.max_chain")), reset)


def _depth(context: Context, request: CommitRequest, parent: Manifest) -> int:
    """Deltas under the paths that the commit changes."""
    cached = [change.last.depth for change in request.changes if change.last is not None]
    if known := [depth for depth in cached if depth is not None]:
        return max(known)
    before = (parent.by_path.get(change.path) for change in request.changes)
    return chain_depth(context, [entry for entry in before if entry is not None])


def recovery_seconds(context: Context, manifest: Manifest) -> tuple[float, float, float]:
    """Estimated seconds to recover a version, to decode one more delta of it, and to recover it
    if it is stored in full.
    """
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
    """Whether a child that differs from ``parent`` everywhere may be stored as deltas.

    ``bound`` is in seconds. Raises InvalidConfig if a version stored in full exceeds it.
    """
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
    """The longest delta chain among the largest blobs of some files.

    A commit asks for the files it changes: the chains of the other files do not grow.
    """
    contents = {c.id: c.spec.nbytes for e in entries for c in e.contents}
    largest = sorted(contents, key=lambda id_: -contents[id_])[:_SAMPLED]
    depths = [0]
    for id_ in largest:
        with suppress(DamagedData):  # a damaged blob is no base of a new delta
            depths.append(context.store.graph.path(id_).depth)
    return max(depths)
