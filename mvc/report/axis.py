"""The x axis of charts: time, or the numbers of versions. It ends with the data."""

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
"""A place on the axis, and a value."""

_DAY, _MINUTE = 86_400 * 10**9, 60 * 10**9
_MARGIN = 50  # one of so many parts stays free behind the data, so that what is live now is seen


def check_by(by: str | None) -> By | None:
    """``by`` if it names an axis, or is None. Raises WrongUsage."""
    if by is not None and by not in get_args(By):
        raise WrongUsage(f"an axis is one of {', '.join(get_args(By))}, not {by!r}")
    return by  # type: ignore[return-value]


class Axis(Struct, frozen=True):
    """The places from ``low`` to ``high``: ns since 1970, or the numbers of versions."""

    low: int
    high: int
    by: By = "time"

    @classmethod
    def of(cls, places: Iterable[int], by: By = "time") -> Axis:
        """An axis that all these places lie on."""
        known = list(places) or [0]
        least = 10**9 if by == "time" else 1
        return cls(min(known), max(max(known), min(known) + least), by)

    def share(self, place: int) -> float:
        """Where a place lies, from 0 to 1."""
        length = self.high - self.low
        return min(1.0, max(0.0, (place - self.low) / (length + length / _MARGIN)))

    def ticks(self, count: int) -> list[tuple[float, str]]:
        """Evenly between the ends: the share and the label of each."""
        span = self.high - self.low
        places = [self.low + round(span * i / (count - 1)) for i in range(count)]
        return [(self.share(place), self.label(place)) for place in places]

    def label(self, place: int) -> str:
        """A version's number; a moment as far as the length of the axis tells moments apart."""
        if self.by == "version":
            return f"{place:,}"
        span = self.high - self.low
        whole = format_time(place, precise=False).replace("T", " ")
        if span > 5 * _DAY:
            return whole[:10]
        return whole[5:16] if span > 10 * _MINUTE else whole[11:19]

    @property
    def title(self) -> str:
        """What the labels leave out: the date, where they are times of day."""
        if self.by == "version":
            return "number of the version"
        if self.high - self.low > 5 * _DAY:
            return ""
        return format_time(self.low, precise=False)[:10]

    def bins(self, points: Iterable[Point], count: int) -> dict[int, list[float]]:
        """The values in each of ``count`` equal parts of the axis, in order; finite ones.

        A part that has others only is empty.
        """
        found: dict[int, list[float]] = {}
        for place, value in points:
            part = min(count - 1, int(self.share(place) * count))
            values = found.setdefault(part, [])
            if math.isfinite(value):
                values.append(value)
        return dict(sorted(found.items()))


class ByteAxis(Axis, frozen=True):
    """The places are numbers of bytes."""

    title = "bytes of all packs"

    def label(self, place: int) -> str:
        return size(place)
