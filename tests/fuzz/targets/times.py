"""Moments and spans as people write them."""

import contextlib
from datetime import UTC

from mvc.errors import InvalidTime
from mvc.times import format_age, format_time, parse_duration, parse_time

_NOW = 1_750_000_000_000_000_000


def run(data: bytes) -> None:
    text = data.decode("utf-8", "surrogateescape")
    with contextlib.suppress(InvalidTime):
        parse_duration(text)
    moment = parse_time(text, now_ns=_NOW, zone=UTC)
    assert parse_time(format_time(moment, 0), now_ns=_NOW) == moment
    assert format_age(moment, _NOW)


def seeds() -> list[bytes]:
    return [
        b"2026-11-20", b"2026-11-20T10:00:00.123456789Z", b"2 hours ago", b"1h30m", b"yesterday",
        b"1750000000", b"1750000000000", b"2 weeks", b"now", b"2026-11-20 10:00+01:00",
    ]  # fmt: skip
