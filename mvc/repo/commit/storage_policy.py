"""Whether a commit is stored in full (a reset point) or as deltas, by the settings.

With ``store.max_recovery`` (MDTT; VSOL §3.2.8), or the request's bound, no version may take longer
to recover. A chain's tail has a reset point on one side only, so a new version is stored in full as
soon as its delta would exceed the bound for all contents together; with equal times that is after
as many as fit (R'). A run of optimizer steps ends before a step that would exceed the bound.
Without a bound every ``store.reset_interval``-th version is a reset point. With
``store.storage_weight``, a version is also a reset point once its chain has cost as much.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from heapq import nlargest

from msgspec.structs import replace

from mvc.codecs.optim import PREDICTED
from mvc.errors import DamagedData, InvalidConfig
from mvc.ids import BlobId
from mvc.limits import PIECE
from mvc.model.hashing import pieces
from mvc.model.manifest import Manifest
from mvc.model.tensor import TensorSpec
from mvc.pipelines.pipeline import Pipeline
from mvc.repo.commit.inputs import Inputs
from mvc.repo.config import Config
from mvc.repo.handle import Recent
from mvc.store.graph.search import Link, PathStep
from mvc.store.store import Store
from mvc.store.writing.full_or_delta import Policy, exactly
from mvc.store.writing.layout import RUN, Layout, before_run

_FLOATS = TensorSpec("float32", ())
_SAMPLED = 8  # the largest contents of a version
_UNBOUNDED = 10_000  # versions in a chain whose limit is in seconds
_PATIENCE = 1.0  # seconds that the number of payloads in a run may cost
_STEP = 130e-6  # seconds to apply a predicted payload, however short it is
_STEPPED = 5e8  # raw bytes of a run per second
_SHORTEST = 4  # versions in a run


def layout_of(config: Config, bound: float | None = None) -> Layout:
    """The layout of the settings; without an interval if recovery times are bounded.

    ``bound``: seconds, instead of ``store.max_recovery``.
    """
    text = str(config.get("store.layout"))
    if bound is not None or config.get("store.max_recovery") is not None:
        return replace(Layout.parse(text), interval=_UNBOUNDED)
    interval = config.get("store.reset_interval")
    return Layout.parse(text, None if interval is None else int(interval))


def storage_policy(
    store: Store,
    config: Config,
    recent: Recent,
    inputs: Inputs,
    parent: Manifest,
) -> Policy:
    """How to store a commit on ``parent``. Raises InvalidConfig for an impossible bound."""
    get, bound = config.get, inputs.request.options.max_recovery
    pipeline = Pipeline.parse(inputs.request.pipeline or str(get("commit.pipeline"))).coding()
    layout, reset = layout_of(config, bound), inputs.request.options.reset_point
    if bound is None:
        bound = get("store.max_recovery")
    run = _run_of_many(parent)
    if bound is not None:
        after = _After(store, parent, pipeline, layout)
        after.check(float(bound))
        reset = reset or after.seconds(predicted=False) > bound
        run = 0 if reset or after.seconds(predicted=True) > bound else run
    weight, saving, chains = get("store.storage_weight"), 0.0, list[tuple[Link, ...]]()
    if not reset and (bound is None or weight is not None):
        chains = list(_chains(store, recent, inputs, parent))
    if bound is None:
        sequence = store.graph.next_sequence
        reset = reset or any(layout.ends(chain, sequence) for chain in chains)
    if weight is not None:
        saving = _seconds(store, pipeline, PIECE) * 1e9 / (PIECE * weight)
        reset = reset or _is_paid(store, chains, pipeline, layout, weight=float(weight))
    return Policy(
        exactly(pipeline), layout, float(get("store.max_chain")), reset=reset, saving=saving,
        run=run,
    )  # fmt: skip


def _run_of_many(parent: Manifest) -> int:
    """Most versions in a run of optimizer steps; fewer if there are many short tensors.

    All payloads of a run are decoded; each takes ``_STEP`` even if it saves no bytes.
    """
    payloads = sum(len(entry.contents) for entry in parent.entries)
    seconds = max(_PATIENCE, RUN * sum(entry.size for entry in parent.entries) / _STEPPED)
    return max(_SHORTEST, min(RUN, int(seconds / (_STEP * max(payloads, 1)))))


def _seconds(store: Store, pipeline: Pipeline, nbytes: int) -> float:
    rates = store.rates
    return rates.decoding([(nbytes, rates.coding(pipeline, nbytes, _FLOATS))])


def _is_paid(
    store: Store,
    chains: Iterable[tuple[Link, ...]],
    pipeline: Pipeline,
    layout: Layout,
    *,
    weight: float,
) -> bool:
    """Whether full records now would save as many seconds of decoding as they cost.

    Counts one recovery of every version since the chains began, including the next one. If versions
    continue like that, the resulting interval has the lowest price.
    """
    sequence, saved, full = store.graph.next_sequence, 0.0, 0
    for chain in chains:
        if chain and chain[-1].depth:
            seconds = _seconds(store, pipeline, chain[-1].nbytes)
            saved += seconds * layout.saved(chain, sequence)
            full += chain[0].stored
    return full > 0 and saved * 1e9 >= weight * full


def _chains(
    store: Store, recent: Recent, inputs: Inputs, parent: Manifest
) -> Iterable[tuple[Link, ...]]:
    """The chains of the paths that the commit changes; those of other paths do not grow.

    All chains in the cache, or else those of the largest contents.
    """
    caches = recent.caches.in_use.values()
    if known := [chain for cache in caches for chain in cache.chains()]:
        return known
    paths = {change.path for change in inputs.changes}
    entries = (entry for entry in parent.entries if entry.path in paths)
    contents = {c.id: c.spec.nbytes for entry in entries for c in entry.contents}
    chains = []
    for id_ in nlargest(_SAMPLED, contents, key=contents.__getitem__):
        with suppress(DamagedData):  # a damaged content is no base of a new delta
            chains.append(store.graph.chain(id_))
    return chains


class _After:
    """The recovery time of a child of ``parent`` that differs from it everywhere."""

    def __init__(self, store: Store, parent: Manifest, pipeline: Pipeline, layout: Layout) -> None:
        self._rates, self._graph = store.rates, store.graph
        self._pipeline = pipeline
        self._layout = layout
        self._files = len(parent.entries)
        self._nbytes = sum(entry.size for entry in parent.entries)
        self._pieces = [
            (content.id, content.spec, start, length)
            for entry in parent.entries
            for content in entry.contents
            for start, length in pieces(content.spec)
        ]

    def check(self, bound: float) -> None:
        """Raises InvalidConfig if even a version stored in full exceeds ``bound``."""
        rates, full = self._rates, exactly(self._pipeline).full()
        works = [(size, rates.coding(full, size, spec)) for _, spec, _, size in self._pieces]
        least = self._version(works)
        if self._files and least > bound:
            raise InvalidConfig(
                f"max_recovery is {bound:g} s, but restoring a version that is stored in full "
                f"takes {least:.2g} s here: {self._version(()):.2g} s to open the "
                f"repository and write, {rates.decoding(works):.2g} s to decode",
                hint="raise it ('mvc config store.max_recovery', or this commit's option), "
                "or choose a pipeline that decodes faster",
            )

    def seconds(self, *, predicted: bool) -> float:
        """For a child stored as deltas or, if ``predicted``, as optimizer steps from ``parent``."""
        if not self._files:
            return 0.0
        walks = [
            (length, spec, self._steps(id_, spec, start, predicted=predicted))
            for id_, spec, start, length in self._pieces
        ]
        under, works = self._rates.works(walks), list[tuple[int, float]]()
        for (size, seconds), (_, spec, _) in zip(under, walks, strict=True):
            more = self._rates.coding(self._pipeline, size, spec)
            works.append((size, seconds + more * (1 + (predicted and _is_predictable(spec)))))
        return self._version(works)

    def _steps(
        self, id_: BlobId, spec: TensorSpec, start: int, *, predicted: bool
    ) -> Sequence[PathStep]:
        """The payloads that lead to the base of a child's piece."""
        graph = self._graph
        steps = graph.path(id_, start).steps  # includes all decoded tensors of its unit
        if self._pipeline.forward_only or (predicted and _is_predictable(spec)):
            return steps
        base = self._layout.base(before_run(graph.chain(id_, start)), graph.next_sequence)
        return steps[: base.depth + 1]

    def _version(self, works: Iterable[tuple[int, float]]) -> float:
        return self._rates.version(works, self._files, self._nbytes)


def _is_predictable(spec: TensorSpec) -> bool:
    """Whether it may belong to an optimizer's unit; a prediction costs as much as a delta."""
    return spec.dtype in PREDICTED
