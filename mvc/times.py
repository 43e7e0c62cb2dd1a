"""Parses and formats moments and durations in the forms of docs/commands.md.

A moment is a number of nanoseconds since 1970 (UTC). If a local time occurs twice or never because
the clocks changed, InvalidTime is raised with a hint that names the two possible moments.
"""

from __future__ import annotations

import math
import os
import re
from datetime import UTC, datetime, time, timedelta, timezone, tzinfo
from typing import TYPE_CHECKING, Any, TypeAlias

from mvc.errors import InvalidTime, WrongUsage
from mvc.names import printable

if TYPE_CHECKING:
    from fractions import Fraction


Time: TypeAlias = int | str | datetime
"""Nanoseconds since 1970, a text such as ``2026-11-20T10:00Z`` or ``2 hours ago``, or a datetime.

A ``datetime`` without a zone is in local time.
"""

_SECOND = 1_000_000_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_EARLIEST, _LATEST = -(1 << 63), (1 << 63) - 1
_MAX_TEXT = 100
_UNITS = {"second": 1, "minute": 60, "hour": 3600, "day": 86_400, "week": 604_800}
_SHORT = {"s": "second", "sec": "second", "m": "minute", "min": "minute",
          "h": "hour", "hr": "hour", "d": "day", "w": "week"}  # fmt: skip
_ISO = (  # patterns are compiled on first use: few commands parse a time
    r"(?ai)(\d{4})-(\d\d)-(\d\d)"
    r"(?:[T ](\d\d)(?::(\d\d)(?::(\d\d)(?:[.,](\d{1,9}))?)?)?"
    r"\s?(Z|UTC|GMT|[+-]\d\d(?::?\d\d)?|[a-z_]+/[a-z0-9_/+-]+)?)?"
)
_COMPACT = r"(?ai)(\d{4})(\d\d)(\d\d)(?:T(\d\d)(\d\d)(\d\d)?(.*))?"
_PARTS = {  # parts of 'Sat, 28 Nov 2026 19:03:50 +0000' that are no names of days or months
    "day": r"(?a)\d\d?",
    "year": r"(?a)\d{4}",
    "time": r"(?a)\d\d:\d\d(?::\d\d(?:\.\d{1,9})?)?",
    "zone": r"(?ai)Z|UTC|GMT|[+-]\d\d:?\d\d|[a-z_]+/[a-z0-9_/+-]+",
}
_ON_DAY = (
    r"(?a)(?:(today|yesterday|last\s+[a-z]{3,9})(?:\s+|$))?"
    r"(?:(?:at\s+)?(\d\d?):(\d\d)(?::(\d\d))?)?"
)
_WEEKDAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_MONTHS = ("january", "february", "march", "april", "may", "june", "july", "august",
           "september", "october", "november", "december")  # fmt: skip
_HOURS = {"noon": "12:00", "midnight": "00:00"}
_PART = r"(?a)\s*(?:and\s+)?(an?\b|\d{1,15}(?:\.\d{1,9})?)\s*([a-z]+)\s*,?"
FORMS = {
    "2026-11-20": "midnight of that day",
    "2026-11-20T10:00, 2026-11-20 10:00:30.5, 2026-11-20T10": "local time, up to nine fraction "
    "digits",
    "2026-11-20T10:00Z, ...+01:00": "with an offset from UTC",
    "10:00, today 10:00, yesterday 10:00": "that local time of today or yesterday",
    "last tuesday 10:00, last tue 10:00": "that local time of the newest Tuesday before today",
    "noon, yesterday midnight": "`noon` is 12:00 and `midnight` is 00:00, in all forms above",
    "2026-11-20 10:00 UTC, ... Europe/Berlin": "a time in this zone; the next two forms "
    "may have a zone, too",
    "20261120T100000Z": "a time without `-` and `:`",
    "20 Nov 2026 10:00:00 +0000, Nov 20 10:00:00": "a time as in mail, in the output of "
    "`date` and in logs, in any order. Without a year, it is the newest that is not in the future",
    "now, 2 hours ago, 1h30m ago, -5m": "this moment, or a moment before it",
    "yesterday, last tuesday": "a day without a time means now minus 24 hours for each day "
    "since then. `yesterday` is 24 hours ago",
    "20261120": "eight digits are a date, as `2026-11-20`",
    "1763632800": "other numbers count from 1970: with up to 11 digits in seconds, 12 to 14 in "
    "milliseconds, 15 or more in nanoseconds",
}
"""Maps each accepted form of a moment to its meaning. Help and documentation list these forms."""
_FORMS = (
    "write 2026-11-20T10:00, 2026-11-20T10:00:00Z, '20 Nov 2026 10:00', 10:00, 'yesterday 10:00', "
    "'last tuesday 10:00', '2 hours ago' or now"
)


def parse_time(text: str, *, now_ns: int, zone: tzinfo | None = None) -> int:
    """Parses a moment in a form of docs/commands.md. Raises InvalidTime.

    ``zone``: the zone of times that name no zone. None means the system's zone.
    """
    word = text.strip().lower()
    if len(word) > _MAX_TEXT:
        raise _unreadable(text)
    if word == "now":
        return check_moment(now_ns, text)
    if compact := re.fullmatch(_COMPACT, text.strip()):
        year, month, day, hour, minute, second, rest = compact.groups()
        text = f"{year}-{month}-{day}"
        text += f"T{hour}:{minute}:{second or '00'}{rest}" if hour else ""
    elif word.isascii() and word.isdigit():
        unit = _SECOND if len(word) <= 11 else 1_000_000 if len(word) <= 14 else 1
        return check_moment(int(word) * unit, text)
    if word.endswith(" ago") or word.startswith("-"):
        span = _span(word.removesuffix(" ago") if word.endswith(" ago") else word[1:])
        if span is None:
            raise _unreadable(text)
        return check_moment(now_ns - int(span * _SECOND), text)
    day, space, hour = text.strip().rpartition(" ")
    written = f"{day}{space}{_HOURS.get(hour.lower(), hour)}"
    if match := re.fullmatch(_ISO, written):
        return check_moment(_iso(match, text, zone), text)
    if written and (match := re.fullmatch(_ON_DAY, written.lower())):
        return check_moment(_on_day(match, text, now_ns, zone), text)
    return check_moment(_written(text, now_ns, zone), text)


def moment_of(value: int | str | datetime, *, now_ns: int) -> int:
    """A moment in ns since 1970, from an integer, a text or a ``datetime``.

    A ``datetime`` without a zone is in local time. Raises InvalidTime; WrongUsage if ``value`` has
    another type.
    """
    if isinstance(value, str):
        return parse_time(value, now_ns=now_ns)
    if isinstance(value, datetime):
        if value.utcoffset() is None:
            return parse_time(value.replace(tzinfo=None).isoformat(), now_ns=now_ns)
        since = value - datetime(1970, 1, 1, tzinfo=UTC)
        return check_moment(since // timedelta(microseconds=1) * 1000, value.isoformat())
    if isinstance(value, int) and not isinstance(value, bool):
        return check_moment(value)
    raise WrongUsage(
        f"a moment is a text, a datetime or whole nanoseconds, not a {type(value).__name__}",
        hint="for example '2026-11-20T10:00', or datetime.now()",
    )


def within(time_ns: int, since: int | None, until: int | None) -> bool:
    """Whether a moment is from ``since`` to ``until``. A bound that is None has no effect."""
    return (since is None or since <= time_ns) and (until is None or time_ns <= until)


def parse_duration(text: str) -> float:
    """A duration in seconds: ``14d``, ``2 weeks``, ``36h``, ``1h30m``. Raises InvalidTime."""
    span = _span(text.strip().lower()) if len(text) <= _MAX_TEXT else None
    if span is None:
        raise InvalidTime(
            f"not a duration: {printable(text[:_MAX_TEXT])!r}",
            hint="write a number and a unit: 90s, 30m, 36h, 14d, '2 weeks'",
        )
    return float(span)


def check_moment(time_ns: int, text: str | None = None) -> int:
    """``time_ns`` if it fits 64 signed bits (the years 1678 to 2262). Raises InvalidTime."""
    if not _EARLIEST <= time_ns <= _LATEST:
        shown = str(time_ns) if text is None else printable(text)
        raise InvalidTime(
            f"this time is out of range: {shown}", hint="times from 1678 to 2262 are supported"
        )
    return time_ns


def nearest(now_ns: int) -> int:
    """The valid moment that is nearest to a clock's time."""
    return max(_EARLIEST, min(now_ns, _LATEST))


def datetime_of(time_ns: int) -> datetime:
    """A moment in the system's zone, truncated to microseconds."""
    zone = timezone(timedelta(minutes=local_zone_minutes(time_ns)))
    return (_EPOCH + timedelta(microseconds=time_ns // 1000)).astimezone(zone)


def format_time(time_ns: int, zone_minutes: int | None = None, *, precise: bool = True) -> str:
    """A moment in ISO 8601 with its offset from UTC. ``parse_time`` is the inverse.

    ``zone_minutes``: the offset from UTC; None means the system's zone. The fraction of the second
    has no trailing zeros. The fraction is omitted unless ``precise``.
    """
    if zone_minutes is None:
        zone_minutes = local_zone_minutes(time_ns)
    seconds, fraction = divmod(time_ns, _SECOND)
    zone = timezone(timedelta(minutes=zone_minutes))
    moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=seconds)
    text = moment.astimezone(zone).isoformat()
    if not fraction or not precise:
        return text
    return f"{text[:19]}.{fraction:09d}".rstrip("0") + text[19:]


def whole_second(time_ns: int) -> int:
    """The first whole second that is not before a moment."""
    return -(-time_ns // _SECOND) * _SECOND


def format_age(time_ns: int, now_ns: int) -> str:
    """The time between two moments (ns) in one unit: ``3 hours ago``, ``in 5 minutes``."""
    seconds = abs(now_ns - time_ns) // _SECOND
    if seconds < 1:
        return "just now"
    unit, length = next(
        (unit, length) for unit, length in reversed(_UNITS.items()) if seconds >= length
    )
    if unit == "week" and seconds >= 2 * 365 * 86_400:
        unit, length = "year", 365 * 86_400
    count = seconds // length
    amount = f"{count} {unit}{'s' if count != 1 else ''}"
    return f"{amount} ago" if time_ns <= now_ns else f"in {amount}"


def local_zone_minutes(time_ns: int) -> int:
    """The system zone's offset from UTC at a moment, in whole minutes."""
    seconds = time_ns // _SECOND
    try:
        offset = datetime.fromtimestamp(seconds, UTC).astimezone().utcoffset()
    except (OverflowError, OSError, ValueError):  # outside the calendar of the C library
        return 0
    return int((offset or timedelta()).total_seconds() // 60)


def _unreadable(text: str) -> InvalidTime:
    return InvalidTime(f"not a time: {printable(text[:_MAX_TEXT])!r}", hint=_FORMS)


def _span(text: str) -> Fraction | None:
    """Seconds in ``1h30m`` or ``2 weeks``; None if the text has another form."""
    from decimal import Decimal
    from fractions import Fraction

    total, at = Fraction(0), 0
    while match := re.compile(_PART).match(text, at):
        number, word = match.groups()
        unit = _SHORT.get(word, word.removesuffix("s"))
        if unit not in _UNITS:
            return None
        total += Fraction(1 if number in {"a", "an"} else Decimal(number)) * _UNITS[unit]
        at = match.end()
    return total if at and at == len(text) else None


def _written(text: str, now_ns: int, zone: tzinfo | None) -> int:
    """The moment of a text such as ``20 Nov 2026 10:00``.

    Without a year, it is the newest moment that is not in the future.
    """
    parts: dict[str, Any] = {}
    for word in text.replace(",", " ").split():
        kind, value = _part(word)
        if not kind or kind in parts:
            raise _unreadable(text)
        parts[kind] = value
    if "month" not in parts or "day" not in parts:
        raise _unreadable(text)
    tomorrow = datetime(1970, 1, 2) + timedelta(microseconds=now_ns // 1000)
    years = range(tomorrow.year, tomorrow.year - 9, -1)
    for year in [int(parts["year"])] if "year" in parts else years:
        try:
            date = datetime(year, parts["month"] + 1, int(parts["day"]))
        except ValueError:  # the 29th of February of another year
            continue
        if "year" not in parts and date > tomorrow:
            continue
        iso = f"{date.isoformat()[:10]}T{parts.get('time', '00')} {parts.get('zone', '')}".rstrip()
        match = re.fullmatch(_ISO, iso)
        if match and parts.get("weekday", date.weekday()) == date.weekday():
            moment = _iso(match, text, zone)
            if "year" in parts or moment <= now_ns:
                return moment
    raise InvalidTime(f"there is no such time: {printable(text)}", hint=_FORMS)


def _part(word: str) -> tuple[str, Any]:
    """The kind and the value of a part of a date. For any other word, the kind is empty."""
    for kind, names in (("month", _MONTHS), ("weekday", _WEEKDAYS)):
        if (number := _abbreviated(word, names)) is not None:
            return kind, number
    return next((kind for kind, form in _PARTS.items() if re.fullmatch(form, word)), ""), word


def _abbreviated(word: str, names: tuple[str, ...]) -> int | None:
    """The index of the name that begins with ``word``. None if there is no such name.

    A ``word`` of fewer than three letters matches no name.
    """
    indices = (i for i, name in enumerate(names) if name.startswith(word.lower()))
    return next(indices, None) if len(word) >= 3 else None


def _iso(match: re.Match[str], text: str, zone: tzinfo | None) -> int:
    *fields, fraction, offset = match.groups()
    try:
        wall = datetime(*(int(field or 0) for field in fields))  # type: ignore[arg-type]
    except ValueError as e:
        raise InvalidTime(f"there is no such time: {printable(text)} ({e})", hint=_FORMS) from e
    nanoseconds = int((fraction or "").ljust(9, "0"))
    if offset and "/" in offset:
        zone, offset = _zone(offset, text), None
    shift = _offset_seconds(offset, text) if offset else _unambiguous(wall, zone, text)
    return (_seconds(wall) - shift) * _SECOND + nanoseconds


def _on_day(match: re.Match[str], text: str, now_ns: int, zone: tzinfo | None) -> int:
    """The moment of ``10:00``, ``yesterday`` or ``last tuesday 10:00``.

    Without a time of day, a day counts as 24 hours: ``yesterday`` is 24 hours before now.
    """
    day, hour, *rest = match.groups()
    try:
        today = datetime.fromtimestamp(now_ns // _SECOND, UTC).astimezone(zone)
    except (OverflowError, OSError, ValueError) as e:
        raise InvalidTime(f"this time is out of range: {printable(text)}") from e
    back = _days_back(day or "today", today.weekday(), text)
    if hour is None:
        if not back:
            raise _unreadable(text)
        return now_ns - back * 86_400 * _SECOND
    hours, minutes, seconds = (int(field or 0) for field in (hour, *rest))
    try:
        date = today.date() - timedelta(days=back)
        wall = datetime.combine(date, time(hours, minutes, seconds))
    except (ValueError, OverflowError) as e:
        raise InvalidTime(f"there is no such time: {printable(text)} ({e})", hint=_FORMS) from e
    shift = _unambiguous(wall, zone, text)
    return (_seconds(wall) - shift) * _SECOND


def _days_back(day: str, today: int, text: str) -> int:
    """How many days before today ``day`` was. ``today``: the weekday of today, 0 for Monday."""
    if day in {"today", "yesterday"}:
        return int(day == "yesterday")
    weekday = _abbreviated(day.split()[-1], _WEEKDAYS)
    if weekday is None:
        raise _unreadable(text)
    return (today - weekday - 1) % 7 + 1


def _zone(name: str, text: str) -> tzinfo:
    from zoneinfo import ZoneInfo

    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):  # OSError: ``name`` is a folder of the zone database
        raise InvalidTime(
            f"there is no time zone {printable(name)}: {printable(text)}",
            hint="write it as Europe/Berlin, or an offset from UTC: +01:00",
        ) from None


def _offset_seconds(offset: str, text: str) -> int:
    if offset.upper() in {"Z", "UTC", "GMT"}:
        return 0
    digits = offset[1:].replace(":", "").ljust(4, "0")
    hours, minutes = int(digits[:2]), int(digits[2:])
    if hours > 23 or minutes > 59:
        raise InvalidTime(f"there is no such offset from UTC: {printable(text)}", hint=_FORMS)
    return (hours * 3600 + minutes * 60) * (-1 if offset[0] == "-" else 1)


def _unambiguous(wall: datetime, zone: tzinfo | None, text: str) -> int:
    """The offset of ``wall`` from UTC in seconds.

    Raises InvalidTime if the local time ``wall`` occurs twice or never.
    """
    try:
        first, second = (_shift(wall.replace(fold=fold), zone) for fold in (0, 1))
    except (OverflowError, OSError, ValueError) as e:
        raise InvalidTime(f"this time is out of range: {printable(text)}") from e
    if first == second:
        return first
    utc = _seconds(wall)
    # If the clocks skip ``wall``, the offset before the change gives a moment after the change, and
    # the offset after the change gives a moment before it.
    shown = (first, second) if first > second else (second, first)
    readings = [
        format_time((utc - used) * _SECOND, in_force // 60)
        for used, in_force in zip((first, second), shown, strict=True)
    ]
    place = getattr(zone, "key", None) or os.environ.get("TZ") or "the local time zone"
    problem, change = (
        ("happened twice", "back") if first > second else ("does not exist", "forward")
    )
    raise InvalidTime(
        f"{printable(text)} {problem} in {printable(place)}: the clocks went {change}",
        hint=f"write {readings[0]} or {readings[1]}",
    )


def _shift(wall: datetime, zone: tzinfo | None) -> int:
    if zone is None:
        return _seconds(wall) - int(wall.timestamp())
    offset = zone.utcoffset(wall.replace(tzinfo=zone))
    return int((offset or timedelta()).total_seconds())


def _seconds(wall: datetime) -> int:
    """Whole seconds from 1970 to a time without a zone, read as UTC."""
    return (wall.replace(tzinfo=UTC) - _EPOCH) // timedelta(seconds=1)


def check_seconds(name: str, value: float) -> None:
    """Raises WrongUsage unless ``value`` is a finite number of seconds from 0 on."""
    if not 0 <= value < math.inf:
        raise WrongUsage(f"{name} is a number of seconds, 0 or more, not {value!r}")
