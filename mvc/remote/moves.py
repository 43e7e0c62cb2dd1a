"""Which moves of refs a receiver allows: fast-forward, from the value that the sender expects."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mvc.errors import InvalidName, RefConflict, UnknownRevision
from mvc.ids import CommitId
from mvc.model.commit import Commit
from mvc.names import DATA, REMOTE, check_ref, printable
from mvc.remote.remotes import check_name
from mvc.remote.transport import Move
from mvc.repo.context import Context
from mvc.repo.lookup.commits import Ancestors
from mvc.repo.lookup.refs import BRANCH, HEAD, TAG
from mvc.repo.recording import refuse_recorded
from mvc.store.journal.entries import RefChange, RefValue


def ref_changes(
    context: Context,
    moves: Sequence[Move],
    commits: Mapping[CommitId, Commit],
    *,
    local: bool = False,
) -> list[RefChange]:
    """The changes of refs that these moves are; valid only under the journal's lock.

    ``commits``: those that are published together with the moves. ``local``: the repository itself
    fetches, so its refs ``remotes/...`` move, too, and no rule of a push applies. A move that is
    made already is left out: its answer was lost. Raises InvalidName, RefConflict,
    UnknownRevision.
    """
    after: dict[str, RefValue] = {move.name: move.new for move in moves}
    if len(after) < len(moves):
        raise RefConflict("a ref is to move twice at once")
    changes = []
    for move in moves:
        _check_name(move.name, local)
        now = context.store.ref(move.name)
        if now == move.new:
            continue
        _check_expected(move, now)
        _check_new(context, move, commits)
        _check_namesake(context, move, after)
        if not local:
            _check_pushed(context, move)
            _check_forward(context, move, commits)
        changes.append(RefChange(move.name, now, move.new))
    return changes


def shown(name: str) -> str:
    """A ref as people name it: ``main``, ``origin/main``."""
    for prefix in (BRANCH, TAG, REMOTE):
        name = name.removeprefix(prefix)
    return printable(name)


def advances(name: str) -> bool:
    """Whether a ref moves on from version to version: a branch, or the tag of a data set."""
    return name.startswith((BRANCH, TAG + DATA))


def leads_to(
    context: Context, new: CommitId, old: CommitId, commits: Mapping[CommitId, Commit]
) -> bool:
    """Whether ``old`` is ``new`` or one of its ancestors; ``commits`` are not published yet."""
    seen, known, waiting = {new}, list[CommitId](), [new]
    while waiting:
        id_ = waiting.pop()
        if id_ not in commits:
            known.append(id_)
            continue
        fresh = set(commits[id_].parents) - seen
        seen |= fresh
        waiting += fresh
    return old in seen or old in Ancestors(context.store.snapshot, known)


def _check_name(name: str, local: bool) -> None:
    kinds = {BRANCH: "branch", TAG: "tag"} | ({REMOTE: "remote's ref"} if local else {})
    for prefix, kind in kinds.items():
        if name.startswith(prefix):
            name = name.removeprefix(prefix)
            if prefix == REMOTE:
                remote, _, name = name.partition("/")
                check_name(remote)
            check_ref(kind, name)
            return
    raise InvalidName(f"no ref that a transfer may move: {printable(name[:100])}")


def _check_expected(move: Move, now: RefValue) -> None:
    if now == move.old:
        return
    at = f"at {now.short}" if isinstance(now, CommitId) else "gone"
    raise RefConflict(
        f"{shown(move.name)} has moved: it is {at} (fetch first)",
        hint="'mvc fetch' brings what is there; then push again",
    )


def _check_new(context: Context, move: Move, commits: Mapping[CommitId, Commit]) -> None:
    new = move.new
    if new is not None and new not in commits and not context.store.has_commit(new):
        raise UnknownRevision(f"{shown(move.name)} would lead to {new.short}, which is not here")


def _check_namesake(context: Context, move: Move, after: Mapping[str, RefValue]) -> None:
    """A branch and a tag of one name would make revisions ambiguous."""
    pair = {BRANCH: (TAG, "tag"), TAG: (BRANCH, "branch")}
    for prefix, (other, kind) in pair.items():
        if move.new is None or not move.name.startswith(prefix):
            continue
        name = other + move.name.removeprefix(prefix)
        there = after[name] if name in after else context.store.ref(name)
        if there is not None:
            raise RefConflict(
                f"there is a {kind} {shown(name)} already",
                hint="rename or delete one of the two, here or there",
            )


def _check_pushed(context: Context, move: Move) -> None:
    """What others may not do to a repository in which somebody works."""
    branch = move.name.removeprefix(BRANCH)
    if branch == move.name:
        return
    refuse_recorded(context, branch)
    if context.store.ref(HEAD) != branch:
        return
    if move.new is None:
        raise RefConflict(
            f"{shown(branch)} is the current branch there, and is not deleted",
            hint="its owner switches to another one first",
        )
    if not context.bare:
        raise RefConflict(
            f"{shown(branch)} is checked out there, and its files would not follow",
            hint="push to another branch, or to a repository of 'mvc init --bare'; 'mvc config "
            "core.bare true' makes one of it",
        )


def _check_forward(context: Context, move: Move, commits: Mapping[CommitId, Commit]) -> None:
    old, new = move.old, move.new
    if move.force or old is None or new is None:
        return
    if not advances(move.name):
        raise RefConflict(
            f"there is a tag {shown(move.name)} already, at {old.short}",
            hint="a tag is made once: choose another name, or push it with --force",
        )
    if not leads_to(context, new, old, commits):
        raise RefConflict(
            f"{shown(move.name)} is not moved: {new.short} does not follow {old.short} "
            "(non-fast-forward)",
            hint="'mvc pull' first, or push with --force",
        )
