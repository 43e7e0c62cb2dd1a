"""The goal of a repack."""

from __future__ import annotations

from collections.abc import Mapping, Sized
from decimal import Decimal

from msgspec import Struct, field

from mvc.errors import WrongUsage
from mvc.ids import CommitId
from mvc.maintenance.retention import stored_versions
from mvc.maintenance.weights import Alternative
from mvc.repo.commit.storage_policy import layout_of
from mvc.repo.config import Config
from mvc.repo.queries import queries
from mvc.store.store import Store
from mvc.store.writing.layout import Layout


class Goal(Struct, frozen=True):
    """The goal of a repack: one of the following.

    ``interval``: a reset point every so many commits. ``max_recovery``: bound on recovery in
    seconds. ``max_size``: bytes of all packs. ``add``, ``remove``: reset points. ``super_step``:
    commits that the longer deltas span. ``layout``: that of the settings, with skip deltas.
    ``bound``: seconds of recovery that ``remove`` and ``weight`` must keep. ``weight``: the lowest
    price, where a gigabyte is worth so many seconds of recovery; then weights of the versions in
    ``alternatives`` may be dropped.
    """

    interval: int | None = None
    max_recovery: float | None = None
    max_size: int | None = None
    add: tuple[CommitId, ...] = ()
    remove: tuple[CommitId, ...] = ()
    super_step: int | None = None
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
            "super-step": self.super_step,
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


def goal_of(
    store: Store,
    config: Config,
    *,
    interval: int | None = None,
    max_recovery: float | None = None,
    max_size: int | None = None,
    add: tuple[CommitId, ...] | None = None,
    remove: tuple[CommitId, ...] | None = None,
    add_queried: int | None = None,
    super_step: int | None = None,
) -> Goal:
    """The goal given, else the one of the settings. Raises WrongUsage for several or bad ones.

    ``add_queried``: how many of the stored versions that were asked for most are to be added.
    """
    given = check_aims(
        interval=interval, max_recovery=max_recovery, max_size=max_size, add=add, remove=remove,
        add_queried=add_queried, super_step=super_step,
    )  # fmt: skip
    if add_queried is not None:
        add = _most_queried(store, add_queried)
    if interval is not None and interval < 1:
        raise WrongUsage("an interval is at least 1 commit")
    if super_step is not None and super_step < 2:
        raise WrongUsage("a super-step spans at least 2 commits")
    if max_recovery is not None and not 0 < max_recovery < float("inf"):
        raise WrongUsage("max-recovery is a number of seconds above 0")
    if max_size is not None and max_size < 0:
        raise WrongUsage("max-size is a number of bytes from 0 on")
    bound = config.get("store.max_recovery")
    if not given:
        weight = config.get("store.storage_weight")
        if weight is not None:
            return Goal(bound=bound, weight=float(weight))
        if bound is not None:
            return Goal(max_recovery=float(bound))
        layout = layout_of(config)
        return Goal(layout=layout) if layout.step else Goal(interval=layout.interval)
    limit = None if bound is None else float(bound)
    return Goal(
        interval=interval,
        max_recovery=max_recovery,
        max_size=max_size,
        add=add or (),
        remove=remove or (),
        super_step=super_step,
        bound=limit,
    )


def check_aims(**aims: object) -> bool:
    """Whether an aim is given, None being none. Raises WrongUsage for two, and for an empty one."""
    given = [name.replace("_", "-") for name, value in aims.items() if value is not None]
    if len(given) > 1:
        raise WrongUsage(f"{given[0]} and {given[1]} exclude each other", hint="give one of them")
    if any(isinstance(value, Sized) and not len(value) for value in aims.values()):
        raise WrongUsage(f"{given[0]} names no version")
    return bool(given)


def _most_queried(store: Store, count: int) -> tuple[CommitId, ...]:
    """The versions asked for most often, of those that have their state."""
    if count < 1:
        raise WrongUsage("add-queried is a number of versions from 1 on")
    stored = {commit.id for commit in stored_versions(store)}
    found = queries(store).most(count, stored)
    if not found:
        raise WrongUsage("no version was asked for yet", hint="--add names versions")
    return tuple(found)
