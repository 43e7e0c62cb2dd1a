"""The figures of a repository for Prometheus: ``mvc stats --prometheus``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from mvc.repo.live import Live
from mvc.repo.prometheus import Metric, Sample, exposition
from mvc.report.stats import Stats

_SECOND = 1_000_000_000
_GAUGES = {
    "reset_points": "Versions that are stored in full.",
    "tensors": "Distinct tensors of versions.",
    "deployments": "Deployments on record.",
    "targets": "Targets that were ever deployed to.",
    "branches": "Branches.",
    "tags": "Tags.",
    "raw_bytes": "Bytes of all files of all versions as plain copies.",
    "deltas_worst": "Deltas to apply for the furthest tensor of any version.",
}
"""Fields of ``Stats`` that are one number, and what each means."""


def figures(root: Path, stats: Stats, live: Mapping[str, Live]) -> str:
    """The text; every value says of which repository it is. ``live``: by target."""
    return exposition(_metrics(stats, live), {"repository": str(root)})


def _metrics(stats: Stats, live: Mapping[str, Live]) -> Iterator[Metric]:
    states = {
        "stored": stats.versions - stats.forgotten - stats.absent - stats.dropped,
        "forgotten": stats.forgotten,
        "absent": stats.absent,
        "retrainable": stats.dropped,
    }
    yield _by("versions", "Versions by what is left of their states.", "state", states)
    yield _by("stored_bytes", "Bytes on disk by kind.", "kind", stats.bytes)
    for name, help_ in _GAUGES.items():
        yield Metric.gauge(f"mvc_{name}", help_, getattr(stats, name))
    times = {"mean": stats.recovery_mean, "worst": stats.recovery_worst}
    yield _by("recovery_seconds", "Estimated seconds to recover a version.", "of", times)
    yield Metric(
        "mvc_live_since_seconds", "gauge", "Since when a version is live, seconds since 1970.",
        [
            Sample(each.since_ns / _SECOND, {"target": target, "version": str(each.commit)})
            for target, each in sorted(live.items())
        ],
    )  # fmt: skip


def _by(name: str, help_: str, label: str, values: Mapping[str, float]) -> Metric:
    samples = [Sample(value, {label: key}) for key, value in values.items()]
    return Metric(f"mvc_{name}", "gauge", help_, samples)
