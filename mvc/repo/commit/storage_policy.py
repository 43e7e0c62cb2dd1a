"""Decides whether a commit is stored in full (as a reset point) or as deltas.

The setting ``store.max_recovery``, or an option of the commit, can limit the recovery time: the
seconds to restore a version. Then a version is stored in full if decoding its deltas would exceed
the limit. Without a limit, every ``store.reset_interval``-th version is stored in full. The setting
``store.storage_weight`` says how many seconds of decoding a stored gigabyte is worth. With this
setting, a version is also stored in full if the saved seconds are worth the bytes. Source: VSOL
thesis, section 3.2.8, which calls the limit MDTT.

A *chain* is a reset point and the deltas that follow the reset point. A *run* is a sequence of
versions that are stored as optimizer steps (``mvc.store.writing.units``). A run ends before a step
that would exceed the limit.
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
_SAMPLED = 8  # how many of the largest contents (tensors) of a version are examined
_UNBOUNDED = 10_000  # maximum number of versions in a chain if the recovery time is limited
_PATIENCE = 1.0  # seconds that decoding a run may take even if the model is small
_STEP = 130e-6  # seconds to decode one tensor of a step, even the shortest
_STEPPED = 5e8  # raw bytes of a run that are decoded per second
_SHORTEST = 4  # the limit of versions in a run is at least 4


def layout_of(config: Config, bound: float | None = None) -> Layout:
    """The layout that the settings name: which versions are bases, and the reset points' interval.

    ``bound``: a limit of the recovery time, instead of ``store.max_recovery``. With a limit,
    ``store.reset_interval`` is ignored.
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
    """How to store a child of ``parent``. Raises InvalidConfig if the limit cannot be met."""
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
    """How many versions a run of optimizer steps may have.

    The number is small if a model has many short tensors: recovery decodes every tensor of every
    version in the run, and each takes at least ``_STEP`` seconds.
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
    """Whether a reset point saves so many seconds of decoding that it is worth its bytes.

    ``weight``: how many seconds a stored gigabyte is worth. The estimate of the saved seconds
    assumes that each version is recovered once.
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
    """The chains to which the commit adds deltas.

    If the cache has chains, returns all of these. Otherwise, returns the chains of the largest
    contents of the changed files.
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
    """Estimates the recovery time of a child of ``parent`` in which all contents have changed."""

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
        """The recovery time of a child that is stored as deltas.

        ``predicted``: whether the deltas are optimizer steps.
        """
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
        """The payloads that recovery decodes to get the base of a delta.

        The delta is that of the piece at byte ``start`` of a content of the child.
        """
        graph = self._graph
        steps = graph.path(id_, start).steps  # includes payloads of a parameter's optimizer states
        if self._pipeline.forward_only or (predicted and _is_predictable(spec)):
            return steps
        base = self._layout.base(before_run(graph.chain(id_, start)), graph.next_sequence)
        return steps[: base.depth + 1]

    def _version(self, works: Iterable[tuple[int, float]]) -> float:
        return self._rates.version(works, self._files, self._nbytes)


def _is_predictable(spec: TensorSpec) -> bool:
    """Whether an optimizer step may predict a tensor. Predicting takes as long as decoding."""
    return spec.dtype in PREDICTED
