"""Checkouts whose process was killed: the next command completes them or takes them back.

A checkout that moves HEAD or a branch says so in its plan: whoever completes its files moves that
as well.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from functools import cache, partial
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
from mvc.repo.context import PLANS, Context
from mvc.repo.lookup.manifests import of_commit
from mvc.repo.lookup.refs import BRANCH, HEAD
from mvc.repo.refs import advance, move_head
from mvc.repo.worktree.worktree import entry_at
from mvc.store.journal.entries import RefValue

_FROM, _TO, _MADE, _MOVED = "from", "to", "made", "moves"
_BRANCH = "branch "


def planned_move(
    old: RefValue, new: RefValue, *, made: CommitId | None = None, branch: str | None = None
) -> dict[str, str]:
    """What a plan says of a move of HEAD, or of ``branch``.

    ``made``: where the branch ``new`` begins, if the move makes it.
    """
    begins = None if made is None else made.hex()
    said = {_FROM: _written(old), _TO: _written(new), _MADE: begins, _MOVED: branch}
    return {name: text for name, text in said.items() if text is not None}


def _written(value: RefValue) -> str:
    if value is None:
        return ""
    return f"{_BRANCH}{value}" if isinstance(value, str) else value.hex()


def _read(text: str) -> RefValue:
    """Raises ValueError for what no plan says."""
    if text.startswith(_BRANCH):
        return text.removeprefix(_BRANCH)
    return CommitId(bytes.fromhex(text)) if text else None


def _move(context: Context, said: Mapping[str, str]) -> None:
    """Moves HEAD, or a branch, as a plan says, unless it has moved since.

    Raises ValueError for nonsense.
    """
    old, new, made = (_read(said.get(name, "")) for name in (_FROM, _TO, _MADE))
    branch, store = said.get(_MOVED), context.store
    context.fresh()
    moved = HEAD if branch is None else BRANCH + branch
    if new is None or new == old or store.ref(moved) != old or isinstance(made, str):
        return
    tip = made or (store.ref(BRANCH + new) if isinstance(new, str) else new)
    if not isinstance(tip, CommitId) or not store.has_commit(tip):
        return
    with suppress(InvalidName, RefConflict):  # of the branch that was to be made
        if branch is None:
            move_head(context, new, made)
            context.interrupted.moved_head = True
        elif isinstance(new, CommitId) and not isinstance(old, str):
            advance(context, {branch: (old, new)}, "pull", note=branch)


def _sizes(context: Context, version: str) -> Iterator[tuple[str, int]]:
    """The content id and the size of each file of a version; without one, of all versions.

    Nothing for a version that is unknown, forgotten or damaged.
    """
    snapshot = context.fresh()
    with suppress(MvcError, ValueError):
        ids = (
            [CommitId(bytes.fromhex(version))]
            if version
            else [commit.id for e in snapshot.newest_first() for commit in e.entry.commits]
        )
        for id_ in ids:
            with suppress(DamagedData, StateForgotten, UnknownRevision):
                for entry in of_commit(context, id_).entries:
                    yield entry.content_id.hex(), entry.size


def finish_checkouts(context: Context) -> None:
    """Completes or takes back checkouts whose process was killed, and notes that in ``context``."""

    def check(path: Path, name: str) -> str:
        return entry_at(context.store.fs, path, name).content_id.hex()

    @cache
    def sizes(version: str) -> dict[str, int]:
        return dict(_sizes(context, version))

    store = context.store
    if store.writable:
        plans = store.folder / PLANS
        finish = Finish(
            context.root,
            lambda version, check: sizes(version).get(check),
            check,
            partial(_move, context),
        )
        for done in finish_interrupted(store.fs, plans, finish):
            context.interrupted.replaced += done.replaced
            context.interrupted.given_up += done.given_up
            context.interrupted.left_alone += done.left_alone


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
