"""Decides which refs (branches and tags) a push or a fetch changes.

``plan_updates`` and ``with_tags`` find the changes that a push requests. ``ref_changes`` checks
requested changes in the repository that receives them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from msgspec import Struct

from mvc.errors import InvalidName, RefConflict, UnknownRevision
from mvc.ids import CommitId
from mvc.model.commit import Commit
from mvc.names import DATA, REMOTE, check_ref, printable
from mvc.remote.remotes import Remote, check_name
from mvc.remote.scopes import allows
from mvc.remote.transfer import Change, RefUpdate
from mvc.remote.transport import Move, RemoteHead
from mvc.repo.lookup.commits import Ancestors
from mvc.repo.lookup.refs import BRANCH, HEAD, TAG, branches, head, tags
from mvc.repo.recording import refuse_recorded
from mvc.repo.revisions import resolve
from mvc.store.journal.entries import RefChange, RefValue
from mvc.store.snapshot import Snapshot
from mvc.store.store import Store

# -- requested by a push -------------------------------------------------------------------------


class PushOptions(Struct, frozen=True):
    """Options of a push.

    ``every``: send all branches and tags. ``force``: a ref may move to a version that is no
    descendant of the ref's present version, unless the ref was moved since the last fetch.
    ``delete``: refs to delete at the remote. ``dry_run``: send nothing, and count what a push would
    send. ``partial``: send versions even if neither repository has their states.
    """

    every: bool = False
    force: bool = False
    delete: tuple[str, ...] = ()
    dry_run: bool = False
    partial: bool = False


class RefPlan(Struct, frozen=True):
    """The refs of a remote that a push changes.

    ``tips``: versions of all refs that the push names, including refs that do not move.
    ``passed_over``: tags that are not pushed, because the remote's tag has another version.
    ``denied``: scopes that the token lacks for tags that the push does not name. These tags are not
    pushed.
    """

    updates: tuple[RefUpdate, ...]
    tips: tuple[CommitId, ...]
    passed_over: tuple[str, ...] = ()
    denied: tuple[str, ...] = ()


def plan_updates(
    store: Store, remote: Remote, head: RemoteHead, refs: Sequence[str], *, options: PushOptions
) -> RefPlan:
    """The refs that a push changes.

    Raises UnknownRevision, and RefConflict for a change that is not allowed.
    """
    theirs, names = head.refs, [ref for ref in refs if not ref.startswith(":")]
    delete = [*options.delete, *(ref[1:] for ref in refs if ref.startswith(":"))]
    if options.every:
        named = {
            **{BRANCH + ref.name: ref.commit for ref in branches(store.fresh())},
            **{TAG + ref.name: ref.commit for ref in tags(store.fresh())},
        }
    elif names or delete:
        named = dict(_find(store, theirs, name) for name in names)
    else:
        named = dict([_current(store)])
    deleted = [_update(store, remote, theirs, (_deleted(remote, theirs, n), None)) for n in delete]
    moved = [_update(store, remote, theirs, row) for row in named.items()]
    moved = [update for update in moved if update.old != update.new]
    for update in (*deleted, *(moved if options.force else ())):
        _check_seen(store, remote, update)
    refused = [] if options.force else [row for row in moved if row.change == "forced"]
    if refused:
        raise _rejected(store, remote, refused)
    return RefPlan((*deleted, *moved), tuple(named.values()))


def with_tags(
    store: Store, remote: Remote, head: RemoteHead, plan: RefPlan, *, needed: Collection[CommitId]
) -> RefPlan:
    """Adds to a plan the tags of all versions that the remote has after the push.

    ``needed``: versions of data sets, whose tags are added, too.
    """
    theirs = (v for v in head.refs.values() if isinstance(v, CommitId))
    led_to = Ancestors(store.snapshot, filter(store.snapshot.has_commit, [*theirs, *plan.tips]))
    named, added = {update.name for update in plan.updates}, list[RefUpdate]()
    passed_over, denied = list[str](), list[str]()
    for ref in tags(store.fresh()) if plan.tips else ():
        update = _update(store, remote, head.refs, (TAG + ref.name, ref.commit))
        goes = ref.commit in led_to or (ref.name.startswith(DATA) and ref.commit in needed)
        if update.name in named or update.old == update.new or not goes:
            continue
        if update.change == "forced":
            passed_over.append(ref.name)
        elif allows(head.scopes, "push", update.name):
            added.append(update)
        else:
            denied.append(f"push:{update.name}")
    updates = (*plan.updates, *added)
    return RefPlan(updates, plan.tips, passed_over=tuple(passed_over), denied=tuple(denied))


def _current(store: Store) -> tuple[str, CommitId]:
    at = head(store.fresh())
    if at.branch is None:
        raise RefConflict("HEAD is detached", hint="name the branch or tag to push")
    if at.commit is None:
        raise UnknownRevision(f"{at.branch} has no version yet", hint="make one: 'mvc commit'")
    return BRANCH + at.branch, at.commit


def _find(store: Store, theirs: Mapping[str, RefValue], ref: str) -> tuple[str, CommitId]:
    """For ``NAME`` or ``REV:NAME``, the full name of the ref at the remote, and its new version."""
    name, has_other, other = ref.rpartition(":") if ":" in ref else (ref, "", "")
    for full in (BRANCH + name, TAG + name, name):
        value = store.snapshot.ref(full)
        if isinstance(value, CommitId) and full.startswith((BRANCH, TAG)):
            return _renamed(theirs, full, other) if has_other else full, value
    if has_other:
        return _renamed(theirs, BRANCH, other), resolve(store, name)
    raise UnknownRevision(
        f"there is no branch or tag {printable(name[:100])}",
        hint="'mvc branch' and 'mvc tag' list them; "
        f"'mvc branch {printable(name[:100])} REV' makes one",
    )


def _renamed(theirs: Mapping[str, RefValue], source: str, name: str) -> str:
    """The full name of the remote's ref ``name``.

    If the remote has no such ref, the new ref is a tag if ``source`` is a tag, else a branch.
    """
    kind = TAG if source.startswith(TAG) else BRANCH
    full = name if name.startswith((BRANCH, TAG)) else _full_name(theirs, name) or kind + name
    check_ref("branch or tag", full.removeprefix(BRANCH).removeprefix(TAG))
    return full


def _full_name(theirs: Mapping[str, RefValue], name: str) -> str | None:
    return next((full for full in (BRANCH + name, TAG + name) if full in theirs), None)


def _deleted(remote: Remote, theirs: Mapping[str, RefValue], name: str) -> str:
    full = _full_name(theirs, name)
    if full is None:
        raise UnknownRevision(
            f"{remote.name} has no branch or tag {printable(name[:100])}",
            hint=f"'mvc remote show {remote.name}' lists its branches and tags",
        )
    return full


def _update(
    store: Store,
    remote: Remote,
    theirs: Mapping[str, RefValue],
    row: tuple[str, CommitId | None],
) -> RefUpdate:
    (name, new), old = row, theirs.get(row[0])
    previous = old if isinstance(old, CommitId) else None
    change: Change = "new" if previous is None else "deleted"
    if previous is not None and new is not None:
        is_forward = advances(name) and leads_to(store.snapshot, new, previous, {})
        change = "forward" if is_forward else "forced"
    local = f"{REMOTE}{remote.name}/{name.removeprefix(BRANCH).removeprefix(TAG)}"
    if name.startswith(TAG) and store.snapshot.ref(local) is None:
        local = name
    return RefUpdate(name, local, previous, new, change=change)


def _check_seen(store: Store, remote: Remote, update: RefUpdate) -> None:
    """Raises RefConflict if the remote's ref was moved since the last fetch."""
    if update.change in {"forced", "deleted"} and store.snapshot.ref(update.local) != update.old:
        now = "is deleted" if update.old is None else f"is now at {update.old.short}"
        raise RefConflict(
            f"{shown(update.name)} was moved since the last fetch: it {now} (stale info)",
            hint=f"'mvc fetch {remote.name}', check the new versions, then push again",
        )


def _rejected(store: Store, remote: Remote, refused: Sequence[RefUpdate]) -> RefConflict:
    """The error for refused updates, in the words of git."""
    words, hint = list[str](), "choose another name, or push it with --force"
    for update in refused:
        is_known = update.old is not None and store.snapshot.has_commit(update.old)
        why = "non-fast-forward" if is_known else "fetch first"
        words.append(f"{shown(update.name)} ({why if advances(update.name) else 'already exists'})")
    if all(advances(update.name) for update in refused):
        hint = (
            f"'mvc pull{remote.typed}' fetches its versions and names the merge; or 'mvc switch -c "
            f"NAME', then 'mvc push{remote.typed}' pushes yours to a new branch"
        )
    return RefConflict(f"{remote.name} rejects {', '.join(words)}; nothing was pushed", hint=hint)


# -- allowed by the receiver -----------------------------------------------------------------


def ref_changes(
    store: Store,
    moves: Sequence[Move],
    commits: Mapping[CommitId, Commit],
    *,
    local: bool = False,
) -> list[RefChange]:
    """Checks requested moves, and returns the changes. Call it under the journal's lock.

    ``commits``: versions that are published together with the moves. ``local``: True for a fetch,
    which may move tracking refs, and for which the rules for pushes do not apply. A move is skipped
    if the ref is already at the new version, because a client repeats a push whose answer was lost.
    Raises InvalidName, RefConflict, UnknownRevision.
    """
    after: dict[str, RefValue] = {move.name: move.new for move in moves}
    if len(after) < len(moves):
        raise RefConflict("one request moves a ref twice")
    changes = []
    for move in moves:
        _check_name(move.name, local)
        now = store.snapshot.ref(move.name)
        if now == move.new:
            continue
        _check_expected(move, now)
        _check_new(store, move, commits)
        _check_namesake(store, move, after)
        if not local:
            _check_pushed(store, move)
            _check_forward(store.snapshot, move, commits)
        changes.append(RefChange(move.name, now, move.new))
    return changes


def shown(name: str) -> str:
    """A ref as users write it: ``main``, ``origin/main``."""
    for prefix in (BRANCH, TAG, REMOTE):
        name = name.removeprefix(prefix)
    return printable(name)


def advances(name: str) -> bool:
    """Whether a ref may move to a descendant of its version: a branch or the tag of a data set."""
    return name.startswith((BRANCH, TAG + DATA))


def leads_to(
    snapshot: Snapshot, new: CommitId, old: CommitId, commits: Mapping[CommitId, Commit]
) -> bool:
    """Whether ``old`` is ``new`` or an ancestor of ``new``.

    ``commits``: versions that are not yet published.
    """
    seen, known, waiting = {new}, list[CommitId](), [new]
    while waiting:
        id_ = waiting.pop()
        if id_ not in commits:
            known.append(id_)
            continue
        fresh = set(commits[id_].parents) - seen
        seen |= fresh
        waiting += fresh
    return old in seen or old in Ancestors(snapshot, known)


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
    raise InvalidName(f"a transfer must not change the ref {printable(name[:100])}")


def _check_expected(move: Move, now: RefValue) -> None:
    if now == move.old:
        return
    at = f"is now at {now.short}" if isinstance(now, CommitId) else "was deleted"
    raise RefConflict(
        f"{shown(move.name)} {at} (fetch first)",
        hint="'mvc fetch' brings the new versions; then push again",
    )


def _check_new(store: Store, move: Move, commits: Mapping[CommitId, Commit]) -> None:
    new = move.new
    if new is not None and new not in commits and not store.snapshot.has_commit(new):
        raise UnknownRevision(
            f"{shown(move.name)} cannot move to {new.short}: this repository lacks that version"
        )


def _check_namesake(store: Store, move: Move, after: Mapping[str, RefValue]) -> None:
    """Refuses a branch and a tag with the same name, because revisions would be ambiguous."""
    for prefix, (other, kind) in {BRANCH: (TAG, "tag"), TAG: (BRANCH, "branch")}.items():
        if move.new is None or not move.name.startswith(prefix):
            continue
        name = other + move.name.removeprefix(prefix)
        existing = after[name] if name in after else store.snapshot.ref(name)
        if existing is not None:
            raise RefConflict(
                f"a {kind} named {shown(name)} already exists",
                hint="rename or delete one of the two",
            )


def _check_pushed(store: Store, move: Move) -> None:
    """Refuses to change a branch that is checked out, or to which a training commits now."""
    branch = move.name.removeprefix(BRANCH)
    if branch == move.name:
        return
    refuse_recorded(store, branch)
    if store.snapshot.ref(HEAD) != branch:
        return
    if move.new is None:
        raise RefConflict(
            f"{shown(branch)} is the remote's current branch and cannot be deleted",
            hint="switch that repository to another branch first",
        )
    if not store.bare:
        raise RefConflict(
            f"{shown(branch)} is checked out at the remote; a push would not update its files",
            hint="push to another branch, or to a bare repository: 'mvc init --bare', or there "
            "'mvc config core.bare true'",
        )


def _check_forward(snapshot: Snapshot, move: Move, commits: Mapping[CommitId, Commit]) -> None:
    old, new = move.old, move.new
    if move.force or old is None or new is None:
        return
    if not advances(move.name):
        raise RefConflict(
            f"the tag {shown(move.name)} already exists, at {old.short}",
            hint="choose another name, or push it with --force",
        )
    if not leads_to(snapshot, new, old, commits):
        raise RefConflict(
            f"{shown(move.name)} was not moved: {new.short} is no descendant of {old.short} "
            "(non-fast-forward)",
            hint="'mvc pull' first, or push with --force",
        )
