"""What a server counts from its start on, for ``/metrics``.

Labels are of a few values each: neither names of repositories, nor of those who ask.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping

from mvc.server.prometheus import Metric, Sample, exposition
from mvc.version import installed_version

_BOUNDS = (0.01, 0.1, 1.0, 10.0, 60.0)  # seconds


class Counters:
    """Counted in the loop's thread alone."""

    def __init__(self) -> None:
        self.sent = self.received = 0
        """Bytes of frames, and of slices on their way in."""
        self._begun = time.time()
        self._requests = Counter[tuple[str, int]]()
        self._outcomes = Counter[str]()
        self._buckets = Counter[tuple[str, float]]()
        self._seconds = defaultdict[str, float](float)

    def answered(self, request: str, status: int, outcome: str, seconds: float) -> None:
        """Counts a request; ``outcome``: what became of a row of frames, else empty."""
        self._requests[request, status] += 1
        self._outcomes.update([outcome] if outcome else [])
        self._buckets.update((request, bound) for bound in _BOUNDS if seconds <= bound)
        self._seconds[request] += seconds

    def text(self, now: Mapping[str, int]) -> str:
        """All of it; ``now``: how many of what there are at the moment."""
        return exposition(self._metrics(now))

    def _metrics(self, now: Mapping[str, int]) -> Iterator[Metric]:
        yield Metric(
            "mvc_serve_info", "gauge", "The version of mvc that serves.",
            [Sample(1, {"version": installed_version()})],
        )  # fmt: skip
        yield Metric.gauge(
            "mvc_serve_start_time_seconds", "When the server began, seconds since 1970.",
            self._begun,
        )  # fmt: skip
        yield Metric(
            "mvc_serve_requests_total", "counter", "Requests that were answered.",
            [
                Sample(count, {"request": request, "status": str(status)})
                for (request, status), count in sorted(self._requests.items())
            ],
        )  # fmt: skip
        yield Metric(
            "mvc_serve_request_seconds", "histogram", "Seconds from a request to its answer's end.",
            list(self._histogram()),
        )  # fmt: skip
        yield Metric(
            "mvc_serve_answers_total", "counter",
            "Answers with versions, and pushes, by what became of them.",
            [Sample(n, {"outcome": each}) for each, n in sorted(self._outcomes.items())],
        )  # fmt: skip
        for name, help_, value in (
            ("sent", "Bytes of answers with versions.", self.sent),
            ("received", "Bytes of versions that came in.", self.received),
        ):
            yield Metric(f"mvc_serve_{name}_bytes_total", "counter", help_, [Sample(value)])
        yield Metric(
            "mvc_serve_now", "gauge", "What is under way, or open.",
            [Sample(number, {"what": what}) for what, number in now.items()],
        )  # fmt: skip

    def _histogram(self) -> Iterator[Sample]:
        totals = Counter[str]()
        for (request, _), count in self._requests.items():
            totals[request] += count
        for request, total in sorted(totals.items()):
            for bound in _BOUNDS:
                labels = {"request": request, "le": f"{bound:g}"}
                yield Sample(self._buckets[request, bound], labels, "_bucket")
            yield Sample(total, {"request": request, "le": "+Inf"}, "_bucket")
            yield Sample(self._seconds[request], {"request": request}, "_sum")
            yield Sample(total, {"request": request}, "_count")
