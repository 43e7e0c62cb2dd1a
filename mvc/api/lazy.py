"""Core modules that an operation imports on first use, so that commands start fast."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

__all__ = [
    "attached", "average", "backup", "checkout", "commit", "diff", "export", "fetch", "forget",
    "fsck", "gc", "goal", "identify", "interrupted", "leftovers", "log", "merge", "nearest",
    "oplog", "overview", "plan", "protection", "pull", "push", "rates", "reader", "receipts",
    "record", "refs", "remotes", "repack", "repair", "request", "retention", "rollback", "scratch",
    "signatures", "states", "stats", "status", "super_steps", "transport", "undo", "unsent",
    "versions", "weights", "worktree",
]  # fmt: skip

if TYPE_CHECKING:
    from mvc.maintenance import (
        backup,
        forget,
        gc,
        leftovers,
        overview,
        receipts,
        retention,
        stats,
        weights,
    )
    from mvc.maintenance.fsck import fsck
    from mvc.maintenance.repack import goal, repack, super_steps
    from mvc.maintenance.repair import repair
    from mvc.remote import fetch, pull, push, refs, remotes, unsent
    from mvc.remote.transports.bucket import transport
    from mvc.repo import attached, average, interrupted, scratch
    from mvc.repo.checkout import checkout, export, reader, states, versions
    from mvc.repo.commit import commit, request
    from mvc.repo.diff import diff, nearest
    from mvc.repo.history import log
    from mvc.repo.merge import merge, plan
    from mvc.repo.oplog import oplog, undo
    from mvc.repo.statements import protection, record, rollback, signatures
    from mvc.repo.worktree import identify, status, worktree
    from mvc.store.recovery import rates
else:
    _IN = {
        "mvc.maintenance": ("backup", "forget", "gc", "leftovers", "overview", "receipts",
                            "retention", "stats", "weights"),
        "mvc.maintenance.fsck": ("fsck",),
        "mvc.maintenance.repack": ("goal", "repack", "super_steps"),
        "mvc.maintenance.repair": ("repair",),
        "mvc.remote": ("fetch", "pull", "push", "refs", "remotes", "unsent"),
        "mvc.remote.transports.bucket": ("transport",),
        "mvc.repo": ("attached", "average", "interrupted", "scratch"),
        "mvc.repo.checkout": ("checkout", "export", "reader", "states", "versions"),
        "mvc.repo.commit": ("commit", "request"),
        "mvc.repo.diff": ("diff", "nearest"),
        "mvc.repo.history": ("log",),
        "mvc.repo.merge": ("merge", "plan"),
        "mvc.repo.oplog": ("oplog", "undo"),
        "mvc.repo.statements": ("protection", "record", "rollback", "signatures"),
        "mvc.repo.worktree": ("identify", "status", "worktree"),
        "mvc.store.recovery": ("rates",),
    }  # fmt: skip
    _PACKAGES = {module: package for package, modules in _IN.items() for module in modules}

    def __getattr__(name: str) -> object:
        if name in _PACKAGES:
            return import_module(f"{_PACKAGES[name]}.{name}")
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
