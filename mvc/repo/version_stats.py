"""How one version is stored, its size in bytes, and its recovery time in seconds."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from mvc.ids import CommitId


class VersionStats(Struct, frozen=True):
    """How one version is stored. ``mvc stats --versions`` prints these values.

    ``bytes``: maps the kind of data (full, delta, metadata) to the bytes that the version added.
    ``reset_point``: whether all tensors of the version are stored in full. ``deltas``: the largest
    number of deltas that must be decoded for one tensor. ``base``: the version that stores the full
    tensor from which these deltas start; None if unknown.

    ``kind``: ``full`` (all tensors are stored in full, and none was stored before, or the version
    was made a reset point), ``update`` (changed tensors are stored in full with this version, and
    unchanged tensors with an earlier version), ``delta`` (some changed tensors are stored as
    deltas), ``recipe`` (the weights were deleted; a training can compute them). ``seconds``:
    recovery time; for ``recipe``, including the training. ``price``: ``seconds``, plus the
    gigabytes in ``bytes`` times the setting ``store.storage_weight``; None without this setting.
    ``predicted``: the number of tensors that are stored as optimizer steps.
    """

    bytes: Mapping[str, int]
    reset_point: bool
    deltas: int
    base: CommitId | None
    kind: str
    seconds: float
    price: float | None
    predicted: int = 0
