"""Commits without content, published straight into the journal, to test what reads it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from mvc.ids import CommitId, ManifestId, Root
from mvc.model.commit import Commit
from mvc.model.statement import Deployment
from mvc.repo.handle import Handle
from mvc.repo.statements.live import check_deployment
from mvc.store.journal.entries import Entry, RefChange
from mvc.testing import FixedClock, UnsyncedFS
from tests.repo.working import new_context

SECOND = 1_000_000_000
START = 1_750_000_000 * SECOND


def repository(root: Path) -> Handle:
    """An empty repository whose clock stands at ``START``."""
    return new_context(root, FixedClock(START), UnsyncedFS())


def advance(context: Handle, seconds: float) -> None:
    clock = context.store.clock
    assert isinstance(clock, FixedClock)
    clock.advance(int(seconds * SECOND))


def commit(
    context: Handle,
    *parents: CommitId,
    branch: str = "main",
    time_ns: int | None = None,
    message: str = "",
    deploy: str | None = None,
    deploy_time: int | None = None,
    metrics: Mapping[str, float] | None = None,
) -> CommitId:
    """Publishes a commit on a branch, by default after its tip, and returns its id."""
    store = context.store
    made: list[Commit] = []

    def make() -> Entry:
        now = store.clock.now_ns()
        old = store.snapshot.ref(f"heads/{branch}")
        before = parents or ((old,) if isinstance(old, CommitId) else ())
        new = Commit(
            ManifestId(os.urandom(32)), Root(os.urandom(32)), before, "me",
            now if time_ns is None else time_ns, 0, message, metrics or {},
        )  # fmt: skip
        made[:] = [new]
        at = now if deploy_time is None else deploy_time
        statements = ()
        if deploy is not None:
            check_deployment(deploy, at)
            statements = (Deployment(subject=new.id, author="me", target=deploy, time_ns=at),)
        change = RefChange(f"heads/{branch}", old, new.id)
        return Entry("commit", now, commits=(new,), refs=(change,), statements=statements)

    store.publish(make)
    return made[0].id


def set_ref(context: Handle, name: str, value: CommitId | str | None) -> None:
    store = context.store

    def make() -> Entry:
        return Entry(
            "switch", store.clock.now_ns(), refs=(RefChange(name, store.snapshot.ref(name), value),)
        )

    store.publish(make)
