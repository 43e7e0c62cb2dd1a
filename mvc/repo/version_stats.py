"""How one version is stored, and what that costs."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from mvc.ids import CommitId


class VersionStats(Struct, frozen=True):
    """``bytes`` by kind (full, delta, metadata) that came with a version; its ``reset_point``.

    ``deltas`` lead from a full record, stored with the version ``base``, to the version's
    furthest content; ``base`` is None for a version without contents, or if that is not known.
    ``kind``: how the version is stored. ``full``: every content is in full, none was there before,
    or the whole was made a reset point; ``delta``: some of what changed is; ``update``: what
    changed is in full, the rest was there; ``recipe``: its weights were given up. ``seconds``: to
    recover it, of a recipe those of its training and of making its base. ``price``: both together,
    as ``Stats.price``. ``predicted``: of the contents that came with it those that are stored as
    an optimizer's step.
    """

    bytes: Mapping[str, int]
    reset_point: bool
    deltas: int
    base: CommitId | None
    kind: str
    seconds: float
    price: float | None
    predicted: int = 0
