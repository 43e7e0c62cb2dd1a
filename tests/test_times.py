from __future__ import annotations

import contextlib
import time
from datetime import UTC, datetime, timedelta, timezone
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mvc.errors import InvalidTime, WrongUsage
from mvc.times import (
    check_moment,
    format_age,
    format_time,
    local_zone_minutes,
    moment_of,
    parse_duration,
    parse_time,
)

SECOND = 1_000_000_000
NOW = 1_750_000_000 * SECOND
BERLIN = ZoneInfo("Europe/Berlin")


def ns(*fields: int, nanoseconds: int = 0) -> int:
    return int(datetime(*fields, tzinfo=UTC).timestamp()) * SECOND + nanoseconds  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2026-11-20T10:00:00Z", ns(2026, 11, 20, 10)),
        ("2026-11-20t10:00z", ns(2026, 11, 20, 10)),
        ("2026-11-20 10:00 +01:00", ns(2026, 11, 20, 9)),
        ("2026-11-20T10:00-0530", ns(2026, 11, 20, 15, 30)),
        ("2026-11-20T10:00+02", ns(2026, 11, 20, 8)),
        ("2026-11-20T10:00:00.5Z", ns(2026, 11, 20, 10, nanoseconds=SECOND // 2)),
        ("2026-11-20T10:00:00.123456789Z", ns(2026, 11, 20, 10, nanoseconds=123456789)),
        ("1960-01-01T00:00:00.25Z", ns(1960, 1, 1, nanoseconds=SECOND // 4)),
        ("20261120", ns(2026, 11, 20)),
        ("now", NOW),
        (" Now ", NOW),
        ("yesterday", NOW - 86_400 * SECOND),
        # NOW is Sunday, 2025-06-15T15:06:40Z
        ("10:00", ns(2025, 6, 15, 10)),
        ("23:59:30", ns(2025, 6, 15, 23, 59, 30)),
        ("today 9:05", ns(2025, 6, 15, 9, 5)),
        ("yesterday 10:00", ns(2025, 6, 14, 10)),
        ("Yesterday at 10:00", ns(2025, 6, 14, 10)),
        ("last tuesday 10:00", ns(2025, 6, 10, 10)),
        ("last tue at 10:00", ns(2025, 6, 10, 10)),
        ("last sunday 10:00", ns(2025, 6, 8, 10)),
        ("last saturday", NOW - 86_400 * SECOND),
        ("last sunday", NOW - 7 * 86_400 * SECOND),
        ("2026-11-17T10", ns(2026, 11, 17, 10)),
        ("2026-11-17 10", ns(2026, 11, 17, 10)),
        ("2026-11-17T10Z", ns(2026, 11, 17, 10)),
        ("2026-11-17T10+02", ns(2026, 11, 17, 8)),
        ("2025-06-10 19:03:50 UTC", ns(2025, 6, 10, 19, 3, 50)),
        ("2025-06-10 19:03:50 gmt", ns(2025, 6, 10, 19, 3, 50)),
        ("2025-06-10 19:03:50 Europe/Berlin", ns(2025, 6, 10, 17, 3, 50)),
        ("20250610T190350Z", ns(2025, 6, 10, 19, 3, 50)),
        ("20250610T1903", ns(2025, 6, 10, 19, 3)),
        ("20250610t190350.5+02", ns(2025, 6, 10, 17, 3, 50, nanoseconds=SECOND // 2)),
        ("Tue, 10 Jun 2025 19:03:50 +0000", ns(2025, 6, 10, 19, 3, 50)),
        ("Tue, 10 Jun 2025 19:03:50 GMT", ns(2025, 6, 10, 19, 3, 50)),
        ("Tue Jun 10 19:03:50 UTC 2025", ns(2025, 6, 10, 19, 3, 50)),
        ("Tue Jun 10 19:03:50 2025 +0200", ns(2025, 6, 10, 17, 3, 50)),
        ("Tue Jun  3 19:03:50 2025", ns(2025, 6, 3, 19, 3, 50)),
        ("10 June 2025", ns(2025, 6, 10)),
        ("Jun 10 2025 07:03 Europe/Berlin", ns(2025, 6, 10, 5, 3)),
        ("Jun 10 19:03:50", ns(2025, 6, 10, 19, 3, 50)),
        ("Jun 15 15:06:41", ns(2024, 6, 15, 15, 6, 41)),  # a second from NOW is not yet
        ("Nov 28 19:03:50", ns(2024, 11, 28, 19, 3, 50)),
        ("Feb 29 10:00", ns(2024, 2, 29, 10)),
        ("Fri Feb 28 10:00", ns(2025, 2, 28, 10)),
        ("Wed Feb 28 10:00", ns(2024, 2, 28, 10)),
        ("-5m", NOW - 300 * SECOND),
        ("-1h30m", NOW - 5400 * SECOND),
        ("noon", ns(2025, 6, 15, 12)),
        ("yesterday noon", ns(2025, 6, 14, 12)),
        ("2025-06-14 noon", ns(2025, 6, 14, 12)),
        ("2025-06-14 Midnight", ns(2025, 6, 14)),
        ("last tuesday at midnight", ns(2025, 6, 10)),
        ("2 hours ago", NOW - 7200 * SECOND),
        ("an hour ago", NOW - 3600 * SECOND),
        ("1h30m ago", NOW - 5400 * SECOND),
        ("1 day and 2 hours ago", NOW - 26 * 3600 * SECOND),
        ("1.5 hours ago", NOW - 5400 * SECOND),
        ("1750000000", NOW),
        ("08000000000", 8 * 10**18),
        ("1750000000123", NOW + 123_000_000),
        ("1750000000000000007", NOW + 7),
    ],
)
def test_known_answers(text: str, expected: int) -> None:
    assert parse_time(text, now_ns=NOW, zone=UTC) == expected


def test_a_time_without_a_zone_is_local() -> None:
    assert parse_time("2026-11-20", now_ns=NOW, zone=BERLIN) == ns(2026, 11, 19, 23)
    assert parse_time("2026-07-20T10:00", now_ns=NOW, zone=BERLIN) == ns(2026, 7, 20, 8)


def test_the_day_of_a_time_is_local() -> None:
    evening = ns(2025, 6, 14, 23)  # Sunday already, in Berlin
    assert parse_time("0:30", now_ns=evening, zone=BERLIN) == ns(2025, 6, 14, 22, 30)
    assert parse_time("yesterday 12:00", now_ns=evening, zone=BERLIN) == ns(2025, 6, 14, 10)
    assert parse_time("last saturday 12:00", now_ns=evening, zone=BERLIN) == ns(2025, 6, 14, 10)
    with pytest.raises(
        InvalidTime, match="does not exist in Europe/Berlin: the clocks went forward"
    ):
        parse_time("today 2:30", now_ns=ns(2026, 3, 29, 12), zone=BERLIN)
    with pytest.raises(InvalidTime):
        parse_time("yesterday 10:00", now_ns=-(1 << 63), zone=UTC)


@pytest.fixture
def _in_berlin(monkeypatch: pytest.MonkeyPatch):  # type: ignore[no-untyped-def]
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.usefixtures("_in_berlin")
@pytest.mark.parametrize("zone", [None, BERLIN])
@pytest.mark.parametrize(
    "day, why, readings",
    [
        (
            "2026-10-25",
            "happened twice in Europe/Berlin: the clocks went back",
            ["02:30:00+02:00", "02:30:00+01:00"],
        ),
        (
            "2026-03-29",
            "does not exist in Europe/Berlin: the clocks went forward",
            ["01:30:00+01:00", "03:30:00+02:00"],
        ),
    ],
)
def test_a_time_of_no_one_moment_is_refused_with_both_readings(
    day: str, why: str, readings: list[str], zone: ZoneInfo | None
) -> None:
    with pytest.raises(InvalidTime, match=why) as caught:
        parse_time(f"{day}T02:30", now_ns=NOW, zone=zone)
    named = (caught.value.hint or "").removeprefix("write ").split(" or ")
    assert sorted(named) == sorted(f"{day}T{reading}" for reading in readings)
    for reading in named:
        parse_time(reading, now_ns=NOW)


@pytest.mark.usefixtures("_in_berlin")
def test_the_systems_zone() -> None:
    assert parse_time("2026-07-20T10:00", now_ns=NOW) == ns(2026, 7, 20, 8)
    assert local_zone_minutes(ns(2026, 7, 20)) == 120
    assert format_time(ns(2026, 1, 20, 9)) == "2026-01-20T10:00:00+01:00"


@pytest.mark.parametrize(
    "text",
    [
        "", "foo", "2026-02-30", "2026-11-20T25:00", "2026-11-20T10:00:60", "2026-11-20T1",
        "25:00", "10:60", "today", "last", "last week", "last tuesday 25:00", "yesterday10:00",
        "yesterday 10", "tuesday 10:00", "last tuesdayx 10:00", "10:00Z", "yesterday at",
        "Mon, 10 Jun 2025 19:03:50", "30 Feb 2025", "Feb 30", "Jun 10 Jul", "Jun 10 10:00 11:00",
        "Jun 2025", "10:00 Jun", "10 Marvel 2025", "Ju 10", "-5", "-", "--5m", "-5m ago",
        "2025-06-10 10:00 Europe/Nowhere", "2025-06-10 10:00 ../etc/passwd",
        "2025-06-10 10:00 Europe/../Berlin", "2025-06-10 10:00 CET", "20250610T10", "20251310T1000",
        "noon noon", "noonish",
        "2026-11-20T10:00+25:00", "2026-11-20T10:00+10:60", "2 hours", "hours ago", " ago",
        "2 parsecs ago", "2026-11-20T10:00:00.1234567890Z", "٢٠٢٦-١١-٢٠", "9" * 20, "-5",
        "2500-01-01T00:00Z", "0001-01-01", "9" * 15 + " weeks ago", "x" * 5000, "1e5 hours ago",
        "2026-11-20T10:00Z\n--", "tomorrow", "20261320", "12345678", "²", "1..5 hours ago",
    ],
)  # fmt: skip
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(InvalidTime) as caught:
        parse_time(text, now_ns=NOW, zone=UTC)
    assert len(caught.value.message) < 200


moments = st.integers(-(1 << 63), (1 << 63) - 1)


@given(moments, st.integers(-14 * 60, 14 * 60))
def test_what_is_formatted_is_parsed_back(moment: int, zone: int) -> None:
    assert parse_time(format_time(moment, zone), now_ns=0) == moment


@given(moments)
def test_local_times_are_parsed_back(moment: int) -> None:
    assert parse_time(format_time(moment), now_ns=0) == moment


@given(moments, st.integers(-14 * 60, 14 * 60))
def test_imprecise_times_are_cut_not_rounded(moment: int, zone: int) -> None:
    text = format_time(moment, zone, precise=False)
    assert len(text) == len("2026-11-20T10:00:00+00:00")
    assert format_time(moment, zone).startswith(text[:19])


@given(st.datetimes(datetime(1700, 1, 1), datetime(2200, 1, 1)), st.integers(-840, 840))
def test_parsing_agrees_with_the_standard_library(wall: datetime, zone: int) -> None:
    moment = wall.replace(tzinfo=timezone(timedelta(minutes=zone)))
    since = moment - datetime(1970, 1, 1, tzinfo=UTC)
    expected = (since.days * 86_400 + since.seconds) * SECOND + since.microseconds * 1000
    assert parse_time(moment.isoformat(), now_ns=0) == expected


@given(st.text(max_size=60))
def test_any_text_is_a_time_or_refused(text: str) -> None:
    with contextlib.suppress(InvalidTime):
        check_moment(parse_time(text, now_ns=NOW))


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("14d", 14 * 86_400), ("2 weeks", 14 * 86_400), ("36h", 129_600), ("90 s", 90),
     ("1h30m", 5400),
     ("0.5 min", 30), ("1 week, 1 day", 8 * 86_400)],
)  # fmt: skip
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "d", "14", "14 x", "-3d", "3d ago", "two weeks", "1d" * 60])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(InvalidTime):
        parse_duration(text)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "just now"), (0.9, "just now"), (1, "1 second ago"), (119, "1 minute ago"),
     (7200, "2 hours ago"), (86_400 * 6, "6 days ago"), (86_400 * 14, "2 weeks ago"),
     (86_400 * 365 * 3, "3 years ago"), (-300, "in 5 minutes")],
)  # fmt: skip
def test_ages(seconds: float, text: str) -> None:
    assert format_age(NOW - int(seconds * SECOND), NOW) == text


@given(st.datetimes(datetime(1700, 1, 1), datetime(2200, 1, 1), timezones=st.just(UTC)))
def test_a_datetime_is_read_exactly(moment: datetime) -> None:
    expected = parse_time(moment.isoformat(), now_ns=NOW)
    assert moment_of(moment, now_ns=NOW) == expected
    assert moment_of(moment.astimezone(BERLIN), now_ns=NOW) == expected


def test_moments_of_other_types() -> None:
    assert moment_of(5, now_ns=NOW) == 5
    assert moment_of("now", now_ns=NOW) == NOW
    for value in (True, 1.5, None):
        with pytest.raises(WrongUsage):
            moment_of(value, now_ns=NOW)  # type: ignore[arg-type]
