"""Maintenance at its worst: every record goes to a new pack, every old pack is deleted."""

from __future__ import annotations

from mvc.maintenance.inventory import inventory
from mvc.maintenance.rewrite_plan import (
    RewritePlan,
    encoding_policy,
    executing,
    retry_on_rewrite,
)
from mvc.repo.context import Context
from mvc.store.journal.entries import Entry


def move_every_pack(context: Context) -> None:
    """Done again while other operations rewrite the repository."""
    store, policy = context.store, encoding_policy(context.config)

    def attempt() -> None:
        found = inventory(store.snapshot)
        plan = RewritePlan(packs=set(found.packs))
        with executing(store, policy, found, plan) as work:
            work.take_in()
            work.publish(Entry("repack", store.clock.now_ns(), "moved"))

    retry_on_rewrite(store.snapshot, attempt)
