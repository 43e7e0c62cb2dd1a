"""Figures in the text format of Prometheus, version 0.0.4."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Literal

from msgspec import Struct

CONTENT = "text/plain; version=0.0.4; charset=utf-8"


class Sample(Struct, frozen=True):
    """A value. ``suffix`` is added to the name of the metric, as of a histogram's buckets."""

    value: float
    labels: Mapping[str, str] = {}
    suffix: str = ""


class Metric(Struct, frozen=True):
    """A metric with its values; its name begins with ``mvc_``."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    help: str
    samples: Iterable[Sample]

    @classmethod
    def gauge(cls, name: str, help_: str, value: float) -> Metric:
        """One value that goes up and down."""
        return cls(name, "gauge", help_, (Sample(value),))


def exposition(metrics: Iterable[Metric], labels: Mapping[str, str] | None = None) -> str:
    """The text; every value has ``labels`` as well."""
    return "".join(f"{line}\n" for metric in metrics for line in _lines(metric, labels or {}))


def _lines(metric: Metric, shared: Mapping[str, str]) -> Iterator[str]:
    yield f"# HELP {metric.name} {metric.help}"
    yield f"# TYPE {metric.name} {metric.kind}"
    for sample in metric.samples:
        labels = ",".join(
            f'{key}="{_escaped(value)}"' for key, value in {**shared, **sample.labels}.items()
        )
        shown = f"{{{labels}}}" if labels else ""
        yield f"{metric.name}{sample.suffix}{shown} {sample.value:.17g}"


def _escaped(text: str) -> str:
    """A label's value, of which the format is UTF-8."""
    shown = text.encode("utf-8", "backslashreplace").decode()
    return shown.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
