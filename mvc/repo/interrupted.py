"""Checkouts whose process was killed: the next command completes them or takes them back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from mvc.io.replacement import finish_interrupted, one_at_a_time
from mvc.repo.context import Context

__all__ = ["PLANS", "checking_out", "finish_checkouts"]

PLANS = "checkouts"
"""The folder in ``.mvc`` of the plans of checkouts that are under way (``mvc.io.replacement``)."""


def finish_checkouts(context: Context) -> None:
    """Completes or takes back checkouts whose process was killed, and notes that in ``context``."""

    def check(path: Path, name: str) -> str:
        from mvc.repo.worktree.worktree import entry_at

        return entry_at(context, path, name).content_id.hex()

    store = context.store
    if store.writable:
        plans = store.folder / PLANS
        replaced, given_up = finish_interrupted(store.fs, plans, context.root, check)
        context.finished += tuple(replaced)
        context.given_up += tuple(given_up)


@contextmanager
def checking_out(context: Context, place: Path) -> Iterator[None]:
    """Completes interrupted checkouts, and keeps others with the same ``place`` waiting.

    ``place``: the file or folder to be written. Without permission to write ``.mvc`` nothing keeps
    two checkouts apart. Raises Busy.
    """
    store = context.store
    with ExitStack() as held:
        if store.writable:
            real = store.fs.realpath(place)
            held.enter_context(one_at_a_time(store.fs, store.folder / PLANS, real))
        finish_checkouts(context)
        yield
