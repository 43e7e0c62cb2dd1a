"""Modules of the core, for the package ``mvc.api``. A module is imported when it is first used, so
that commands start fast.
"""

# mypy: implicit-reexport
# ruff: noqa: F401

from __future__ import annotations

from typing import TYPE_CHECKING

from mvc.faces import face

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
    __getattr__ = face(__name__, {name: package for package in _IN for name in _IN[package]})
