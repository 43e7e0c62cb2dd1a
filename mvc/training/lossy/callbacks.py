"""Validate values returned by user callbacks; errors name the callback."""

from __future__ import annotations

from typing import Any

from mvc.errors import WrongUsage

__all__ = ["number_from", "wrong_result"]


def number_from(value: Any) -> float | None:
    """``value`` as a float, also from a tensor or array with one entry; None if it is no number."""
    if isinstance(value, str | bytes):  # float() would parse these
        return None
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        return None


def wrong_result(function: str, value: Any, wanted: str) -> WrongUsage:
    """The error for a return value of ``function`` of a wrong type."""
    kind = type(value).__name__
    if isinstance(value, tuple):
        kind += f" ({', '.join(type(part).__name__ for part in value[:4])})"
    return WrongUsage(
        f"{function} returned an object of type {kind}: it must return {wanted}",
        hint=f"has {function} a return statement?" if value is None else None,
    )
