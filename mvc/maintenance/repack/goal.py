"""The goal of a repack: the aims that it may be given, and what the settings ask for."""

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
    """What a repack may aim at: one of these, None being none; without one the settings count.

    ``interval``: a reset point every so many commits. ``max_recovery``: seconds within which every
    version is recovered. ``max_size``: bytes of all packs. ``add``, ``remove``: reset points.
    ``add_queried``: how many of the versions asked for most often become reset points.
    """

    interval: int | None
    max_recovery: float | None
    max_size: int | None
    add: Sequence[Rev] | None
    remove: Sequence[Rev] | None
    add_queried: int | None


class Goal(Struct, frozen=True):
    """One of the aims, checked, or what the settings ask for.

    ``layout``: that of the settings, with skip deltas. ``weight``: the lowest price, where a
    gigabyte is worth so many seconds of recovery; then weights of the versions in ``alternatives``
    may be dropped. ``bound``: seconds of recovery that ``remove`` and ``weight`` must keep.
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
    """A number without an exponent (``0.00001``), rounded to ``digits`` significant digits."""
    text = repr(value) if digits is None else f"{value:.{digits}g}"
    whole, point, part = f"{Decimal(text):f}".partition(".")
    return whole + (point + part).rstrip("0").rstrip(".")


def goal_of(store: Store, config: Config, **aims: Unpack[Aims]) -> Goal:
    """The aim given, else the goal of the settings.

    Raises WrongUsage for several aims or a bad one; WeightsDropped for a version to ``add`` that
    has none.
    """
    given = [name.replace("_", "-") for name, value in aims.items() if value is not None]
    if len(given) > 1:
        raise WrongUsage(f"{given[0]} and {given[1]} exclude each other", hint="give one of them")
    bound = config.get("store.max_recovery")
    limit = None if bound is None else float(bound)
    if not given:
        return _of_settings(config, limit)
    interval, seconds, size = (aims.get("interval"), aims.get("max_recovery"), aims.get("max_size"))
    if interval is not None and interval < 1:
        raise WrongUsage("an interval is at least 1 commit")
    if seconds is not None and not 0 < seconds < float("inf"):
        raise WrongUsage("max-recovery is a number of seconds above 0")
    if size is not None and size < 0:
        raise WrongUsage("max-size is a number of bytes from 0 on")
    add, remove = _named(store, "add", aims.get("add")), _named(store, "remove", aims.get("remove"))
    queried = aims.get("add_queried")
    for commit in add:
        if (gone := availability.dropped(store, commit)) is not None:
            raise availability.dropped_error(commit, gone)
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
    """The versions asked for most often, of those that have their state."""
    if count < 1:
        raise WrongUsage("add-queried is a number of versions from 1 on")
    found = queries(store).most(count, {commit.id for commit in stored_versions(store)})
    if not found:
        raise WrongUsage("no version was asked for yet", hint="--add names versions")
    return tuple(found)
