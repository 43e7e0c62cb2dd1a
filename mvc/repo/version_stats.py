"""How one version is stored, and how many bytes and seconds this takes."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from mvc.ids import CommitId


class VersionStats(Struct, frozen=True):
    """``bytes``: how many bytes were stored with a version, by kind (full, delta, metadata).

    ``reset_point``: whether the version is a reset point. ``deltas``: the largest number of deltas
    that must be decoded for one content (the data of a tensor). ``base``: the version with the full
    content from which these deltas start; None if there are no contents, or if that version is
    unknown.

    ``kind``: ``full``: every content is stored in full, and either no content was stored before, or
    the version was made a reset point. ``delta``: some changed contents are deltas. ``update``:
    changed contents are stored in full, the other contents were stored before. ``recipe``: the
    weights were dropped. ``seconds``: recovery time; for ``recipe``, the time to recover the base
    and to train. ``price``: the cost of bytes and seconds, as ``Stats.price``. ``predicted``:
    number of new contents that are stored as an optimizer step.
    """

    bytes: Mapping[str, int]
    reset_point: bool
    deltas: int
    base: CommitId | None
    kind: str
    seconds: float
    price: float | None
    predicted: int = 0
