"""How one version is stored, and its cost."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from mvc.ids import CommitId


class VersionStats(Struct, frozen=True):
    """``bytes`` by kind (full, delta, metadata) that came with a version; whether it is a
    ``reset_point``.

    ``deltas``: the longest chain of deltas to one of its contents, from a full record stored with
    version ``base`` (None: no contents, or unknown). ``kind``: ``full``: every content is in full,
    and none was stored before, or it was made a reset point; ``delta``: some changed contents are
    deltas; ``update``: changed contents are in full, the others were stored before; ``recipe``: its
    weights were dropped. ``seconds``: recovery time, for a recipe that of training and its base.
    ``price``: bytes and time, as ``Stats.price``. ``predicted``: new contents stored as an
    optimizer step.
    """

    bytes: Mapping[str, int]
    reset_point: bool
    deltas: int
    base: CommitId | None
    kind: str
    seconds: float
    price: float | None
    predicted: int = 0
