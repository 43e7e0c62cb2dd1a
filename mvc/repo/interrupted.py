"""Completes or undoes checkouts whose process was killed. The next command does this.

A checkout first writes a file, its *plan* (``mvc.io.replacement``). If the checkout moves HEAD or a
branch, the plan contains this move. HEAD or the branch moves after all files are complete.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from pathlib import Path

from mvc.errors import (
    DamagedData,
    InvalidName,
    MvcError,
    RefConflict,
    StateForgotten,
    UnknownRevision,
)
from mvc.ids import CommitId
from mvc.io.replacement import Finish, finish_interrupted, one_at_a_time
from mvc.model.manifest import FileEntry
from mvc.repo.killed import PLANS, Interrupted
from mvc.repo.lookup.manifests import of_commit
from mvc.repo.lookup.refs import BRANCH, HEAD
from mvc.repo.refs import advance, move_head
from mvc.repo.worktree.worktree import entry_at
from mvc.store.journal.entries import RefValue
from mvc.store.store import Store

_FROM, _TO, _MADE, _MOVED, _BY = "from", "to", "made", "moves", "by"
_BRANCH = "branch "


def planned_move(
    old: RefValue,
    new: RefValue,
    *,
    start: CommitId | None = None,
    branch: str | None = None,
    operation: str | None = None,
) -> dict[str, str]:
    """The fields of a plan that describe a move of HEAD, or of ``branch``, by an operation.

    ``start``: the commit at which the move creates the branch ``new``.
    """
    begins = None if start is None else start.hex()
    fields: dict[str, str | None] = {_FROM: _written(old), _TO: _written(new), _MADE: begins}
    fields |= {_MOVED: branch, _BY: operation}
    return {name: text for name, text in fields.items() if text is not None}


def _written(value: RefValue) -> str:
    if value is None:
        return ""
    return f"{_BRANCH}{value}" if isinstance(value, str) else value.hex()


def _read(text: str) -> RefValue:
    """Inverse of ``_written``. Raises ValueError if ``text`` is invalid."""
    if text.startswith(_BRANCH):
        return text.removeprefix(_BRANCH)
    return CommitId(bytes.fromhex(text)) if text else None


def _move(store: Store, plan: Mapping[str, str]) -> bool:
    """Moves HEAD or a branch as planned. Returns whether HEAD moved.

    Does nothing if HEAD or the branch has moved since the plan was written. Raises ValueError for
    invalid fields.
    """
    old, new, start = (_read(plan.get(name, "")) for name in (_FROM, _TO, _MADE))
    branch, operation = plan.get(_MOVED), "merge" if plan.get(_BY) == "merge" else None
    store.fresh()
    moved = HEAD if branch is None else BRANCH + branch
    if new is None or new == old or store.snapshot.ref(moved) != old or isinstance(start, str):
        return False
    tip = start or (store.snapshot.ref(BRANCH + new) if isinstance(new, str) else new)
    if not isinstance(tip, CommitId) or not store.snapshot.has_commit(tip):
        return False
    with suppress(InvalidName, RefConflict):  # for example, another branch has the same name now
        if branch is None:
            move_head(store, new, start, operation or "checkout")
            return True
        if isinstance(new, CommitId) and not isinstance(old, str):
            advance(store, {branch: (old, new)}, operation or "pull", note=branch)
    return False


def _files(store: Store, version: str) -> Iterator[tuple[str, FileEntry]]:
    """Yields the content id (a hash of all bytes) and the entry of each file of a version.

    If ``version`` is empty, yields the files of all versions. Yields nothing for a version that is
    unknown, damaged, or whose state is not stored.
    """
    snapshot = store.fresh()
    with suppress(MvcError, ValueError):
        ids = (
            [CommitId(bytes.fromhex(version))]
            if version
            else [commit.id for e in snapshot.newest_first() for commit in e.entry.commits]
        )
        for id_ in ids:
            with suppress(DamagedData, StateForgotten, UnknownRevision):
                for entry in of_commit(store, id_).entries:
                    yield entry.content_id.hex(), entry


def finish_checkouts(store: Store) -> Interrupted:
    """Completes or undoes checkouts whose process was killed."""

    @cache
    def files(version: str) -> dict[str, FileEntry]:
        return dict(_files(store, version))

    def written(version: str, check: str, path: Path) -> bool:
        entry = files(version)[check]
        return entry_at(store.fs, path, entry.path, entry).content_id == entry.content_id

    def move(plan: Mapping[str, str]) -> None:
        result.moved_head |= _move(store, plan)

    result = Interrupted()
    if store.writable:
        plans = store.folder / PLANS
        finish = Finish(
            store.root,
            lambda version, check: getattr(files(version).get(check), "size", None),
            written,
            move,
        )
        for done in finish_interrupted(store.fs, plans, finish):
            result.replaced += done.replaced
            result.given_up += done.abandoned
            result.left_alone += done.left_alone
    return result


@contextmanager
def checking_out(store: Store, output: Path) -> Iterator[None]:
    """A ``with`` block in which no other checkout writes to ``output``.

    First completes or undoes interrupted checkouts. Raises Busy. If this process has no permission
    to write ``.mvc``, another checkout may write to ``output`` at the same time.
    """
    with ExitStack() as locks:
        if store.writable:
            real = store.fs.realpath(output)
            locks.enter_context(one_at_a_time(store.fs, store.folder / PLANS, real))
        finish_checkouts(store)
        yield
