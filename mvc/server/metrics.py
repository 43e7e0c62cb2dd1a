"""Counts requests and bytes since the start of ``mvc serve``, for the page ``/metrics``.

The page is in the text format 0.0.4 of Prometheus. A label has one of a few values, and never the
name of a repository or of a caller.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping

from mvc.version import installed_version

CONTENT = "text/plain; version=0.0.4; charset=utf-8"
_BOUNDS = (0.01, 0.1, 1.0, 10.0, 60.0)  # seconds, for the histogram of requests


class Counters:
    """The counters. Use them only in the thread of the event loop."""

    def __init__(self) -> None:
        self.sent = self.received = 0
        """Number of bytes in answers with versions, and number of bytes of pushed versions."""
        self._begun = time.time()
        self._requests = Counter[tuple[str, int]]()
        self._outcomes = Counter[str]()
        self._buckets = Counter[tuple[str, float]]()
        self._seconds = defaultdict[str, float](float)

    def answered(self, request: str, status: int, outcome: str, seconds: float) -> None:
        """Counts a request. ``outcome``: result of a push or of a fetch, else empty."""
        self._requests[request, status] += 1
        self._outcomes.update([outcome] if outcome else [])
        self._buckets.update((request, bound) for bound in _BOUNDS if seconds <= bound)
        self._seconds[request] += seconds

    def text(self, now: Mapping[str, int]) -> str:
        """The text of the page. ``now``: numbers of running requests and of open repositories."""
        requests = {
            f'{{request="{request}",status="{status}"}}': count
            for (request, status), count in sorted(self._requests.items())
        }
        outcomes = {f'{{outcome="{name}"}}': n for name, n in sorted(self._outcomes.items())}
        gauges = {f'{{what="{name}"}}': number for name, number in now.items()}
        version, begun = {f'{{version="{installed_version()}"}}': 1}, {"": self._begun}
        return "".join((
            _metric("info", "gauge", "The version of mvc.", version),
            _metric("start_time_seconds", "gauge", "Start of the server, Unix time.", begun),
            _metric("requests_total", "counter", "Answered requests.", requests),
            _metric(
                "request_seconds", "histogram", "Seconds from a request to the end of its answer.",
                dict(self._histogram()),
            ),
            _metric(
                "answers_total", "counter", "Answers with versions, and pushes, by result.",
                outcomes,
            ),
            _metric(
                "sent_bytes_total", "counter", "Bytes of answers with versions.", {"": self.sent}
            ),
            _metric(
                "received_bytes_total", "counter", "Bytes of pushed versions.",
                {"": self.received},
            ),
            _metric("now", "gauge", "Running requests and open repositories.", gauges),
        ))  # fmt: skip

    def _histogram(self) -> Iterator[tuple[str, float]]:
        totals = Counter[str]()
        for (request, _), count in self._requests.items():
            totals[request] += count
        for request, total in sorted(totals.items()):
            for bound in _BOUNDS:
                count = self._buckets[request, bound]
                yield f'_bucket{{request="{request}",le="{bound:g}"}}', count
            yield f'_bucket{{request="{request}",le="+Inf"}}', total
            yield f'_sum{{request="{request}"}}', self._seconds[request]
            yield f'_count{{request="{request}"}}', total


def _metric(name: str, kind: str, help_: str, samples: Mapping[str, float]) -> str:
    """The lines of a metric. ``samples`` maps labels to values."""
    lines = (
        f"# HELP mvc_serve_{name} {help_}",
        f"# TYPE mvc_serve_{name} {kind}",
        *(f"mvc_serve_{name}{labels} {value:.17g}" for labels, value in samples.items()),
    )
    return "".join(f"{line}\n" for line in lines)
