"""The horizontal axis of the charts of ``mvc report``: times, version numbers or bytes."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Literal, TypeAlias, get_args

from msgspec import Struct

from mvc.errors import WrongUsage
from mvc.text import size
from mvc.times import format_time

By: TypeAlias = Literal["time", "version"]
Point: TypeAlias = tuple[int, float]
"""A position on the axis, and a value."""

_DAY, _MINUTE = 86_400 * 10**9, 60 * 10**9
_MARGIN = 50  # 1/50 of the axis stays free at its end, so that the live version is visible


def check_by(by: str | None) -> By | None:
    """Returns ``by``. Raises WrongUsage unless ``by`` is None, "time" or "version"."""
    if by is not None and by not in get_args(By):
        raise WrongUsage(f"the axis must be {' or '.join(get_args(By))}, not {by!r}")
    return by  # type: ignore[return-value]


class Axis(Struct, frozen=True):
    """The axis from the position ``low`` to ``high``.

    Positions are times in ns since 1970, or version numbers.
    """

    low: int
    high: int
    by: By = "time"

    @classmethod
    def of(cls, positions: Iterable[int], by: By = "time") -> Axis:
        """An axis that contains all ``positions``. Its length is at least one second or version."""
        known = list(positions) or [0]
        least = 10**9 if by == "time" else 1
        return cls(min(known), max(max(known), min(known) + least), by)

    def share(self, position: int) -> float:
        """Converts a position to a fraction of the axis, from 0 to 1."""
        length = self.high - self.low
        return min(1.0, max(0.0, (position - self.low) / (length + length / _MARGIN)))

    def ticks(self, count: int) -> list[tuple[float, str]]:
        """``count`` evenly spaced ticks: the position of each as a fraction of the axis, and its
        label.
        """
        span = self.high - self.low
        positions = [self.low + round(span * i / (count - 1)) for i in range(count)]
        return [(self.share(position), self.label(position)) for position in positions]

    def label(self, position: int) -> str:
        """The text for a position: a version number or a time.

        On an axis of more than 5 days, a time has the date. On an axis of more than 10 minutes, it
        has month, day, hour and minute. On a shorter axis, it has hour, minute and second.
        """
        if self.by == "version":
            return f"{position:,}"
        span = self.high - self.low
        whole = format_time(position, precise=False).replace("T", " ")
        if span > 5 * _DAY:
            return whole[:10]
        return whole[5:16] if span > 10 * _MINUTE else whole[11:19]

    @property
    def title(self) -> str:
        """The text below the axis.

        For a time axis whose labels have no year: the date at which the axis begins. For a longer
        time axis: an empty text.
        """
        if self.by == "version":
            return "version number"
        if self.high - self.low > 5 * _DAY:
            return ""
        return format_time(self.low, precise=False)[:10]

    def bins(self, points: Iterable[Point], count: int) -> dict[int, list[float]]:
        """Divides the axis into ``count`` equal parts. Maps the index of each part to the values of
        the points in this part. Omits values that are not finite (the list of a part may be empty),
        and parts without points.
        """
        bins: dict[int, list[float]] = {}
        for position, value in points:
            part = min(count - 1, int(self.share(position) * count))
            values = bins.setdefault(part, [])
            if math.isfinite(value):
                values.append(value)
        return dict(sorted(bins.items()))


class ByteAxis(Axis, frozen=True):
    """An axis whose positions are numbers of bytes."""

    title = "bytes of all packs"

    def label(self, position: int) -> str:
        return size(position)
