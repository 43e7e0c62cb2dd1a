"""What a server counts from its start on, for ``/metrics``: the text format of Prometheus, 0.0.4.

Labels are of a few values each: neither names of repositories, nor of those who ask.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping

from mvc.version import installed_version

CONTENT = "text/plain; version=0.0.4; charset=utf-8"
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
        requests = {
            f'{{request="{request}",status="{status}"}}': count
            for (request, status), count in sorted(self._requests.items())
        }
        outcomes = {f'{{outcome="{each}"}}': n for each, n in sorted(self._outcomes.items())}
        under_way = {f'{{what="{what}"}}': number for what, number in now.items()}
        version, begun = {f'{{version="{installed_version()}"}}': 1}, {"": self._begun}
        return "".join((
            _metric("info", "gauge", "The version of mvc that serves.", version),
            _metric(
                "start_time_seconds", "gauge", "When the server began, seconds since 1970.", begun
            ),
            _metric("requests_total", "counter", "Requests that were answered.", requests),
            _metric(
                "request_seconds", "histogram", "Seconds from a request to its answer's end.",
                dict(self._histogram()),
            ),
            _metric(
                "answers_total", "counter",
                "Answers with versions, and pushes, by what became of them.", outcomes,
            ),
            _metric(
                "sent_bytes_total", "counter", "Bytes of answers with versions.", {"": self.sent}
            ),
            _metric(
                "received_bytes_total", "counter", "Bytes of versions that came in.",
                {"": self.received},
            ),
            _metric("now", "gauge", "What is under way, or open.", under_way),
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
    """A metric; ``samples``: its values by what follows the name."""
    lines = (
        f"# HELP mvc_serve_{name} {help_}",
        f"# TYPE mvc_serve_{name} {kind}",
        *(f"mvc_serve_{name}{labels} {value:.17g}" for labels, value in samples.items()),
    )
    return "".join(f"{line}\n" for line in lines)
