"""Maintenance at its worst: every record goes to a new pack, every old pack is deleted."""

from __future__ import annotations

from mvc.maintenance.graph import read_records
from mvc.maintenance.rewrite_plan import (
    RewritePlan,
    encoding_policy,
    retry_on_rewrite,
    rewrite,
)
from mvc.repo.handle import Handle
from mvc.store.journal.entries import Entry


def move_every_pack(context: Handle) -> None:
    """Done again while other operations rewrite the repository."""
    store, policy = context.store, encoding_policy(context.config)

    def attempt() -> None:
        found = read_records(store.snapshot)
        plan = RewritePlan(found, packs=set(found.packs))
        rewrite(
            store, policy, plan,
            operation=lambda: Entry("repack", store.clock.now_ns(), "moved"),
        )  # fmt: skip

    retry_on_rewrite(store.snapshot, attempt)
