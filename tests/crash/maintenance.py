"""Maintenance as the suites run it: short calls of the library, no grace."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from mvc.ids import CommitId
from mvc.maintenance.forget import choose, forget
from mvc.maintenance.gc import collect as collect_garbage
from mvc.maintenance.repack.goal import goal_of
from mvc.maintenance.repack.repack import repack as change_layout
from mvc.maintenance.retention import Retention
from mvc.repo.handle import Handle


def collect(context: Handle) -> None:
    collect_garbage(context.store, context.config, grace=timedelta(0))


def forget_named(context: Handle, *commits: CommitId) -> None:
    forget(context.store, context.config, choose(context.store, commits))


def keep_last(context: Handle, count: int) -> None:
    forget(context.store, context.config, choose(context.store, rules=Retention(last=count)))


def repack(
    context: Handle,
    interval: int | None = None,
    *,
    add: Sequence[CommitId] = (),
    remove: Sequence[CommitId] = (),
) -> None:
    goal = goal_of(
        context.store,
        context.config,
        interval=interval,
        add=tuple(add) or None,
        remove=tuple(remove) or None,
    )
    change_layout(context.store, context.config, goal)
