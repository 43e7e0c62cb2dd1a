"""What a repack tries to reach. A repack (``mvc repack``) encodes stored versions again.

The caller may name one aim, such as a maximum size. Otherwise the settings determine the goal.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import TypedDict, Unpack

from msgspec import Struct, field

from mvc.errors import WrongUsage
from mvc.ids import CommitId
from mvc.maintenance.retention import stored_versions
from mvc.maintenance.weights import Alternative
from mvc.repo.commit.storage_policy import layout_of
from mvc.repo.config import Config
from mvc.repo.lookup import availability
from mvc.repo.queries import queries
from mvc.repo.revisions import Rev, resolve
from mvc.store.store import Store
from mvc.store.writing.layout import Layout


class Aims(TypedDict, total=False):
    """The aims of a repack. At most one aim may be set. Without an aim, the settings decide.

    ``interval``: commits from one reset point to the next. ``max_recovery``: the largest allowed
    number of seconds to recover a version. ``max_size``: the largest allowed number of bytes of all
    packs. ``add``, ``remove``: versions that become reset points or stop being reset points.
    ``add_queried``: how many of the most requested versions become reset points.
    """

    interval: int | None
    max_recovery: float | None
    max_size: int | None
    add: Sequence[Rev] | None
    remove: Sequence[Rev] | None
    add_queried: int | None


class Goal(Struct, frozen=True):
    """The checked aim of the caller, or the goal of the settings. See ``Aims``.

    ``layout``: the layout of the settings, if it has skip deltas (deltas over several commits).
    ``weight``: the repack minimises the seconds to recover every version once, plus ``weight``
    seconds for each stored gigabyte. The repack may then drop the weights of the versions in
    ``alternatives``. ``bound``: with ``remove`` or ``weight``, the largest allowed number of
    seconds to recover a version.
    """

    interval: int | None = None
    max_recovery: float | None = None
    max_size: int | None = None
    add: tuple[CommitId, ...] = ()
    remove: tuple[CommitId, ...] = ()
    bound: float | None = None
    layout: Layout | None = None
    weight: float | None = None
    alternatives: Mapping[CommitId, Alternative] = field(default_factory=dict)

    def __str__(self) -> str:
        aims = {
            "storage-weight": self.weight,
            "interval": self.interval,
            "max-recovery": self.max_recovery,
            "layout": self.layout,
            "max-size": self.max_size,
        }
        for name, aim in aims.items():
            if aim is not None:
                return f"{name} {plain(aim) if isinstance(aim, float) else aim}"
        verb, ids = ("add", self.add) if self.add else ("remove", self.remove)
        return " ".join([verb, *(id_.short for id_ in ids)])


def plain(value: float, digits: int | None = None) -> str:
    """The text of a number without an exponent, rounded to ``digits`` significant digits."""
    text = repr(value) if digits is None else f"{value:.{digits}g}"
    whole, point, part = f"{Decimal(text):f}".partition(".")
    return whole + (point + part).rstrip("0").rstrip(".")


def goal_of(store: Store, config: Config, **aims: Unpack[Aims]) -> Goal:
    """The goal for the given aim. Without an aim, the goal of the settings.

    Raises WrongUsage for several aims or a wrong value, WeightsDropped if a version in ``add`` has
    dropped weights.
    """
    names = [name.replace("_", "-") for name, value in aims.items() if value is not None]
    if len(names) > 1:
        raise WrongUsage(f"{names[0]} and {names[1]} exclude each other", hint="set only one")
    bound = config.get("store.max_recovery")
    limit = None if bound is None else float(bound)
    if not names:
        return _of_settings(config, limit)
    interval, seconds, size = (aims.get("interval"), aims.get("max_recovery"), aims.get("max_size"))
    if interval is not None and interval < 1:
        raise WrongUsage("the interval must be at least 1 commit")
    if seconds is not None and not 0 < seconds < float("inf"):
        raise WrongUsage("max-recovery must be a number of seconds above 0")
    if size is not None and size < 0:
        raise WrongUsage("max-size must be a number of bytes, 0 or more")
    add, remove = _named(store, "add", aims.get("add")), _named(store, "remove", aims.get("remove"))
    queried = aims.get("add_queried")
    for commit in add:
        if (dropped := availability.dropped(store, commit)) is not None:
            raise availability.dropped_error(commit, dropped)
    return Goal(
        interval=interval,
        max_recovery=seconds,
        max_size=size,
        add=add if queried is None else _most_queried(store, queried),
        remove=remove,
        bound=limit,
    )


def _of_settings(config: Config, bound: float | None) -> Goal:
    weight = config.get("store.storage_weight")
    if weight is not None:
        return Goal(bound=bound, weight=float(weight))
    if bound is not None:
        return Goal(max_recovery=bound)
    layout = layout_of(config)
    return Goal(layout=layout) if layout.step else Goal(interval=layout.interval)


def _named(store: Store, aim: str, revs: Sequence[Rev] | None) -> tuple[CommitId, ...]:
    if revs is not None and not revs:
        raise WrongUsage(f"{aim} names no version")
    return tuple(resolve(store, rev) for rev in revs or ())


def _most_queried(store: Store, count: int) -> tuple[CommitId, ...]:
    """The most requested versions whose states are still stored."""
    if count < 1:
        raise WrongUsage("add-queried must be a number of versions, 1 or more")
    ids = queries(store).most(count, {commit.id for commit in stored_versions(store)})
    if not ids:
        raise WrongUsage("no version was requested yet", hint="name versions with --add")
    return tuple(ids)
