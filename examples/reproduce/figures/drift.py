"""Figures of the drift: docs/frontier.md and the experiment's README."""

from __future__ import annotations

from statistics import fmean

from .sources import Claim, Stated, report

__all__ = ["CLAIMS", "STATED"]


def mean(name: str, configuration: str, network: str, key: str) -> float:
    """Of a result's line, over its labels."""
    (line,) = (line for line in report(name)["lines"] if line["name"] == configuration)
    return fmean(line["cells"][network][key])


def ratio(name: str, first: str, other: str, network: str, key: str = "delta_bytes") -> float:
    return mean(name, first, network, key) / mean(name, other, network, key)


README = "examples/reproduce/drift/README.md"

CLAIMS = (
    Claim(
        README,
        "A `frontier` preset has {} (images) and {} (texts) of the delta bytes of the thesis's "
        "smallest preset for bound 0, and {} and {} for bound 0.1.",
        lambda: [
            ratio("drift-presets", first, other, network)
            for first, others in (
                ("frontier-0", ("vsol-0-slow", "vsol-0-slow")),
                ("frontier-0.1", ("vsol-0.1-slow", "vsol-0.1-slow")),
            )
            for other, network in zip(others, ("conv", "lstm"), strict=True)
        ],
    ),
)
STATED: tuple[Stated, ...] = ()
