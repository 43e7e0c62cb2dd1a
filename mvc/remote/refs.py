"""Which refs a transfer moves: those that a push asks for, and those that a receiver allows."""

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

# -- what a push asks for ------------------------------------------------------------------------


class PushOptions(Struct, frozen=True):
    """``every``: all branches and tags. ``force``: refs also move back, from where the last fetch
    or push saw them. ``delete``: refs to delete there. ``dry_run``: only say what would go.
    ``partial``: also versions whose states neither side has.
    """

    every: bool = False
    force: bool = False
    delete: tuple[str, ...] = ()
    dry_run: bool = False
    partial: bool = False


class RefPlan(Struct, frozen=True):
    """The refs of a remote that are to move. ``tips``: what is named, moved or not.

    ``passed_over``: tags that name another version there; ``denied``: scopes that the caller lacks
    for others.
    """

    updates: tuple[RefUpdate, ...]
    tips: tuple[CommitId, ...]
    passed_over: tuple[str, ...] = ()
    denied: tuple[str, ...] = ()


def plan_updates(
    store: Store, remote: Remote, there: RemoteHead, refs: Sequence[str], *, options: PushOptions
) -> RefPlan:
    """Which refs are to move. Raises RefConflict if one of them must not, UnknownRevision."""
    theirs, names = there.refs, [ref for ref in refs if not ref.startswith(":")]
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
    gone = [_update(store, remote, theirs, (_deleted(remote, theirs, n), None)) for n in delete]
    moved = [_update(store, remote, theirs, row) for row in named.items()]
    moved = [update for update in moved if update.old != update.new]
    for update in (*gone, *(moved if options.force else ())):
        _check_seen(store, remote, update)
    refused = [] if options.force else [each for each in moved if each.change == "forced"]
    if refused:
        raise _rejected(store, remote, refused)
    return RefPlan((*gone, *moved), tuple(named.values()))


def with_tags(
    store: Store, remote: Remote, there: RemoteHead, plan: RefPlan, *, needed: Collection[CommitId]
) -> RefPlan:
    """Also tags of what is there then, and of data sets that a version needs."""
    theirs = (v for v in there.refs.values() if isinstance(v, CommitId))
    led_to = Ancestors(store.snapshot, filter(store.snapshot.has_commit, [*theirs, *plan.tips]))
    named, found = {update.name for update in plan.updates}, list[RefUpdate]()
    passed_over, denied = list[str](), list[str]()
    for ref in tags(store.fresh()) if plan.tips else ():
        update = _update(store, remote, there.refs, (TAG + ref.name, ref.commit))
        goes = ref.commit in led_to or (ref.name.startswith(DATA) and ref.commit in needed)
        if update.name in named or update.old == update.new or not goes:
            continue
        if update.change == "forced":
            passed_over.append(ref.name)
        elif allows(there.scopes, "push", update.name):
            found.append(update)
        else:
            denied.append(f"push:{update.name}")
    updates = (*plan.updates, *found)
    return RefPlan(updates, plan.tips, passed_over=tuple(passed_over), denied=tuple(denied))


def _current(store: Store) -> tuple[str, CommitId]:
    at = head(store.fresh())
    if at.branch is None:
        raise RefConflict("HEAD is on no branch", hint="name the branch or tag to push")
    if at.commit is None:
        raise UnknownRevision(
            f"nothing was committed on {at.branch} yet", hint="make a version with 'mvc commit'"
        )
    return BRANCH + at.branch, at.commit


def _find(store: Store, theirs: Mapping[str, RefValue], ref: str) -> tuple[str, CommitId]:
    """The full name there, and the version, of ``NAME`` or ``REV:NAME``."""
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
    """The full name of a ref there; one that is new is of the kind of its source."""
    kind = TAG if source.startswith(TAG) else BRANCH
    full = name if name.startswith((BRANCH, TAG)) else _there(theirs, name) or kind + name
    check_ref("branch or tag", full.removeprefix(BRANCH).removeprefix(TAG))
    return full


def _there(theirs: Mapping[str, RefValue], name: str) -> str | None:
    return next((full for full in (BRANCH + name, TAG + name) if full in theirs), None)


def _deleted(remote: Remote, theirs: Mapping[str, RefValue], name: str) -> str:
    full = _there(theirs, name)
    if full is None:
        raise UnknownRevision(
            f"{remote.name} has no branch or tag {printable(name[:100])}",
            hint=f"'mvc remote show {remote.name}' lists what it has",
        )
    return full


def _update(
    store: Store,
    remote: Remote,
    theirs: Mapping[str, RefValue],
    row: tuple[str, CommitId | None],
) -> RefUpdate:
    (name, new), old = row, theirs.get(row[0])
    there = old if isinstance(old, CommitId) else None
    change: Change = "new" if there is None else "deleted"
    if there is not None and new is not None:
        is_forward = advances(name) and leads_to(store.snapshot, new, there, {})
        change = "forward" if is_forward else "forced"
    local = f"{REMOTE}{remote.name}/{name.removeprefix(BRANCH).removeprefix(TAG)}"
    if name.startswith(TAG) and store.snapshot.ref(local) is None:
        local = name
    return RefUpdate(name, local, there, new, change=change)


def _check_seen(store: Store, remote: Remote, update: RefUpdate) -> None:
    """Raises RefConflict for a ref that somebody has moved since it was last seen."""
    if update.change in {"forced", "deleted"} and store.snapshot.ref(update.local) != update.old:
        at = "nowhere" if update.old is None else update.old.short
        raise RefConflict(
            f"{shown(update.name)} is not where the last fetch saw it: it is at {at} (stale info)",
            hint=f"'mvc fetch {remote.name}' and look at it, then push again",
        )


def _rejected(store: Store, remote: Remote, refused: Sequence[RefUpdate]) -> RefConflict:
    """In git's words."""
    words, hint = list[str](), "choose another name, or push it with --force"
    for each in refused:
        is_known = each.old is not None and store.snapshot.has_commit(each.old)
        why = "non-fast-forward" if is_known else "fetch first"
        words.append(f"{shown(each.name)} ({why if advances(each.name) else 'already exists'})")
    if all(advances(each.name) for each in refused):
        hint = (
            f"'mvc pull{remote.typed}' brings what is there and names the merge; or 'mvc switch -c "
            f"NAME', then 'mvc push{remote.typed}' gives versions that are only here a branch of "
            "their own"
        )
    return RefConflict(f"{remote.name} rejects {', '.join(words)}; nothing was pushed", hint=hint)


# -- what a receiver allows ------------------------------------------------------------------


def ref_changes(
    store: Store,
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
    """A ref as people name it: ``main``, ``origin/main``."""
    for prefix in (BRANCH, TAG, REMOTE):
        name = name.removeprefix(prefix)
    return printable(name)


def advances(name: str) -> bool:
    """Whether a ref moves on from version to version: a branch, or the tag of a data set."""
    return name.startswith((BRANCH, TAG + DATA))


def leads_to(
    snapshot: Snapshot, new: CommitId, old: CommitId, commits: Mapping[CommitId, Commit]
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
    raise InvalidName(f"no ref that a transfer may move: {printable(name[:100])}")


def _check_expected(move: Move, now: RefValue) -> None:
    if now == move.old:
        return
    at = f"at {now.short}" if isinstance(now, CommitId) else "gone"
    raise RefConflict(
        f"{shown(move.name)} has moved: it is {at} (fetch first)",
        hint="'mvc fetch' brings what is there; then push again",
    )


def _check_new(store: Store, move: Move, commits: Mapping[CommitId, Commit]) -> None:
    new = move.new
    if new is not None and new not in commits and not store.snapshot.has_commit(new):
        raise UnknownRevision(f"{shown(move.name)} would lead to {new.short}, which is not here")


def _check_namesake(store: Store, move: Move, after: Mapping[str, RefValue]) -> None:
    """A branch and a tag of one name would make revisions ambiguous."""
    pair = {BRANCH: (TAG, "tag"), TAG: (BRANCH, "branch")}
    for prefix, (other, kind) in pair.items():
        if move.new is None or not move.name.startswith(prefix):
            continue
        name = other + move.name.removeprefix(prefix)
        there = after[name] if name in after else store.snapshot.ref(name)
        if there is not None:
            raise RefConflict(
                f"there is a {kind} {shown(name)} already",
                hint="rename or delete one of the two, here or there",
            )


def _check_pushed(store: Store, move: Move) -> None:
    """What others may not do to a repository in which somebody works."""
    branch = move.name.removeprefix(BRANCH)
    if branch == move.name:
        return
    refuse_recorded(store, branch)
    if store.snapshot.ref(HEAD) != branch:
        return
    if move.new is None:
        raise RefConflict(
            f"{shown(branch)} is the current branch there, and is not deleted",
            hint="its owner switches to another one first",
        )
    if not store.bare:
        raise RefConflict(
            f"{shown(branch)} is checked out there, and its files would not follow",
            hint="push to another branch, or to a repository of 'mvc init --bare'; 'mvc config "
            "core.bare true' makes one of it",
        )


def _check_forward(snapshot: Snapshot, move: Move, commits: Mapping[CommitId, Commit]) -> None:
    old, new = move.old, move.new
    if move.force or old is None or new is None:
        return
    if not advances(move.name):
        raise RefConflict(
            f"there is a tag {shown(move.name)} already, at {old.short}",
            hint="a tag is made once: choose another name, or push it with --force",
        )
    if not leads_to(snapshot, new, old, commits):
        raise RefConflict(
            f"{shown(move.name)} is not moved: {new.short} does not follow {old.short} "
            "(non-fast-forward)",
            hint="'mvc pull' first, or push with --force",
        )
