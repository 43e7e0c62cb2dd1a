"""Decides whether a version is stored in full (a reset point) or as deltas.

With ``store.max_recovery`` (MDTT; VSOL §3.2.8) no version may take longer to recover. A chain's
tail has a reset point on one side only, so a new version is stored in full as soon as the delta
that the layout wants would pass the bound, for all blobs together; in a chain R' = floor(MDTT / t).
Without it, every ``store.reset_interval``-th version is a reset point.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace

from mvc.codecs.pipeline import Pipeline
from mvc.errors import DamagedData, InvalidConfig
from mvc.io.process import cpu_count
from mvc.model.manifest import Manifest
from mvc.repo.commit.request import CommitRequest
from mvc.repo.config import Config
from mvc.repo.context import Context
from mvc.store.graph.cost import measure
from mvc.store.graph.search import Link
from mvc.store.writing.choose import Policy
from mvc.store.writing.layout import Layout

__all__ = ["layout_of", "policy_of", "recovery_seconds", "within_bound"]

_SAMPLED = 8  # blobs, the largest of a version
_UNBOUNDED = 10_000  # deltas in a chain whose limit is in seconds


def layout_of(config: Config) -> Layout:
    """The layout of the settings; without an interval where recovery times are bounded."""
    text = str(config.get("store.layout"))
    if config.get("store.max_recovery") is not None:
        return replace(Layout.parse(text), interval=_UNBOUNDED)
    interval = config.get("store.reset_interval")
    return Layout.parse(text, None if interval is None else int(interval))


def policy_of(
    context: Context, request: CommitRequest, parent: Manifest, pipeline: Pipeline
) -> Policy:
    """How a commit on ``parent`` is stored; a reset point stores all of its blobs in full."""
    get = context.config.get
    layout, bound = layout_of(context.config), get("store.max_recovery")
    if bound is not None:
        reset = request.reset_point or not within_bound(context, parent, float(bound), layout)
    else:
        sequence = context.store.graph.next_sequence
        chains = _chains(context, request, parent)
        reset = request.reset_point or any(layout.ends(chain, sequence) for chain in chains)
    return Policy(pipeline, layout, float(get("store.max_chain")), reset)


def _chains(
    context: Context, request: CommitRequest, parent: Manifest
) -> Iterable[tuple[Link, ...]]:
    """The chains of the paths that the commit changes: those of the other paths do not grow.

    As far as they are known in memory, else those of the largest blobs.
    """
    cached = [change.last for change in request.changes if change.last is not None]
    if known := [chain for last in cached for chain in last.chains()]:
        return known
    before = (parent.by_path.get(change.path) for change in request.changes)
    contents = {c.id: c.spec.nbytes for e in before if e is not None for c in e.contents}
    found = []
    for id_ in sorted(contents, key=lambda id_: -contents[id_])[:_SAMPLED]:
        with suppress(DamagedData):  # a damaged blob is no base of a new delta
            found.append(context.store.graph.chain(id_))
    return found


def recovery_seconds(context: Context, manifest: Manifest, layout: Layout) -> tuple[float, float]:
    """Estimated seconds to recover a child of a version that differs from it everywhere.

    Stored as deltas, and stored in full.
    """
    speed, graph = measure(), context.store.graph
    total = full = 0.0
    for entry in manifest.entries:
        for content in entry.contents:
            base = layout.base(graph.chain(content.id), graph.next_sequence)
            steps = graph.path(content.id).steps[: base.depth + 1]
            total += sum(speed.seconds(step.member) for step in steps)
            total += content.spec.nbytes / speed.delta + speed.latency
            full += content.spec.nbytes / speed.full + speed.latency
    threads = cpu_count()
    return total / threads, full / threads


def within_bound(context: Context, parent: Manifest, bound: float, layout: Layout) -> bool:
    """Whether a child that differs from ``parent`` everywhere may be stored as deltas.

    ``bound`` is in seconds. Raises InvalidConfig if a version stored in full exceeds it.
    """
    if not parent.entries:
        return True
    seconds, full = recovery_seconds(context, parent, layout)
    if full > bound:
        raise InvalidConfig(
            f"store.max_recovery is {bound:g} s, but one full version takes {full:.2g} s here",
            hint="raise store.max_recovery",
        )
    return seconds <= bound
