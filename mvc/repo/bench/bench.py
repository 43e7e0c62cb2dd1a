"""bench: every pipeline on the user's own models, and which of them to use.

Nothing is written. Ratios come from all pairs of consecutive versions that are looked
at (their number is bounded), speeds from the newest of them: pipelines take turns on
one batch, the best of several rounds counts, so that they share the machine's noise.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mvc.codecs.pipeline import PRESETS, Pipeline
from mvc.errors import BadModelFile, WrongUsage
from mvc.io.files import FileSystem
from mvc.io.process import cpu_count
from mvc.limits import MIB
from mvc.model.names import printable
from mvc.repo.bench.advice import Advice, Row, Rules, Series, advise, costs
from mvc.repo.bench.run import Pair, Run
from mvc.repo.bench.versions import Version, find_versions, from_head
from mvc.repo.config import Config, load_config
from mvc.repo.context import Context, Progress

__all__ = ["MAX_BYTES", "PIPELINES", "Measured", "bench"]

MAX_BYTES = 256 * MIB
"""Tensor bytes that are looked at in one version, unless said otherwise."""

PIPELINES = (
    PRESETS["lossless"],
    "sub | zigzag | planes | zstd:huff",
    "xor | planes | zstd:huff",
    "xor | planes | zstd:1",
    "sub | zigzag | elide | planes | zstd:1",
    "sub | zigzag | elide | planes | zstd:3",
    "sub | zigzag | elide | planes | zstd:9",
    PRESETS["vsol"],
    "planes | zstd:huff",
    PRESETS["none"],
)
"""What is compared, besides the pipeline in use."""

_IN_ALL = 4  # all versions together: this many times the bytes of one


@dataclass(frozen=True)
class Measured:
    """What ``bench`` found. ``rows`` are in the order of ``PIPELINES``.

    ``versions``: how many were named; ``compared``: pairs of them that were looked at.
    ``raw_bytes``: tensor bytes of the newest, ``sampled`` those looked at. ``changed``: share
    that a version changes on average, None without pairs. ``copy``: bytes a second of a
    copy in memory.
    """

    rows: tuple[Row, ...]
    advice: Advice
    in_use: str
    newest: str
    base: str | None
    versions: int
    compared: int
    raw_bytes: int
    sampled: int
    changed: float | None
    copy: float
    threads: int
    rules: Rules
    notes: tuple[str, ...]


def bench(
    paths: Sequence[Path],
    *,
    context: Context | None = None,
    config: Config | None = None,
    fs: FileSystem | None = None,
    max_bytes: int = MAX_BYTES,
    progress: Progress | None = None,
) -> Measured:
    """Measures every pipeline on consecutive versions, or on one and its version at HEAD.

    ``paths`` are files, each a version, or folders of them. With a repository's ``context``
    its settings count, and one tracked file is compared with HEAD. Raises UnknownPath,
    WrongUsage, and BadModelFile where there are no bytes to measure.
    """
    if max_bytes < 1:
        raise WrongUsage("at least one byte of a version has to be looked at")
    files = context.store.fs if context is not None else fs or FileSystem()
    settings = context.config if context is not None else config
    settings = settings or load_config(files, None, None, {}, {})
    found = find_versions(files, paths)
    versions = [version for version in found if version.size]
    if not versions:
        raise BadModelFile(f"{printable(found[-1].label)} is empty: there is nothing to measure")
    pairs = _pairs(versions, context, max_bytes)
    in_use = Pipeline.parse(settings.get("commit.pipeline")).coding()
    pipelines = list(dict.fromkeys([*map(Pipeline.parse, PIPELINES), in_use]))
    run = Run(files, pipelines, max_bytes, progress)
    run.take(pairs)
    if not run.seen.newest:
        raise BadModelFile(f"{printable(versions[-1].label)} holds no tensors: nothing to measure")
    empty = [f"{printable(v.label)} is empty and left out" for v in found if not v.size]
    notes = (*empty, *dict.fromkeys(run.notes), *_on_bases(run, pairs[0]))
    series, rules = run.series(), _rules(settings)
    rows = tuple(_row(run, pipeline, series, rules) for pipeline in pipelines)
    old = pairs[0].old
    return Measured(
        rows,
        advise(rows, in_use.text),
        in_use.text,
        pairs[0].new.label,
        old.label if isinstance(old, Version) else None if old is None else "HEAD",
        len(versions),
        0 if old is None else len(pairs),
        series.raw,
        run.seen.newest,
        None if old is None else series.changed,
        run.seen.copy,
        cpu_count(),
        rules,
        notes,
    )


def _pairs(versions: Sequence[Version], context: Context | None, max_bytes: int) -> list[Pair]:
    """The newest pair first; of many, some that are spread evenly."""
    newest = versions[-1]
    if len(versions) == 1:
        return [Pair(newest, None if context is None else from_head(context, newest))]
    last = len(versions) - 1
    size = min(max_bytes, max(v.size for v in versions))
    count = min(last, max(1, _IN_ALL * max_bytes // size))
    chosen = [last - k * last // count for k in range(count)]
    return [Pair(versions[i], versions[i - 1]) for i in chosen]


def _on_bases(run: Run, newest: Pair) -> list[str]:
    """Why there are no deltas, where there are none."""
    name = printable(newest.new.label)
    if newest.old is None:
        return [
            "one version and nothing to compare it with, so only full records are measured; "
            "name two consecutive versions, or a tracked file that has changed since HEAD"
        ]
    if not run.seen.changed:
        same = (
            "the versions have the same tensors"
            if isinstance(newest.old, Version)
            else f"{name} is as at HEAD"
        )
        return [f"{same}, so only full records are measured"]
    if not run.seen.based:
        return ["the versions have no tensor in common, so every version is stored in full"]
    if not any(delta.chained for p in run.pipelines if (delta := run.delta(p))):
        return ["no delta saves a tenth, so every version is stored in full"]
    return []


def _rules(config: Config) -> Rules:
    bound = config.get("store.max_recovery")
    return Rules(
        int(config.get("store.reset_interval")),
        None if bound is None else float(bound),
        float(config.get("store.max_chain")),
    )


def _row(run: Run, pipeline: Pipeline, series: Series, rules: Rules) -> Row:
    delta, full = run.delta(pipeline), run.full(pipeline)
    preset = next((n for n in PRESETS if Pipeline.parse(n) == pipeline), None)
    takes_bases = pipeline.operator != "none"
    return Row(pipeline.text, preset, takes_bases, delta, full, costs(series, delta, full, rules))
