"""Which refs a transfer moves: those that a push asks for, and those that a receiver allows."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cached_property

from msgspec import Struct

from mvc.errors import InvalidName, RefConflict, UnknownRevision
from mvc.ids import CommitId
from mvc.model.commit import Commit
from mvc.names import DATA, REMOTE, check_ref, printable
from mvc.remote.remotes import Remote, check_name
from mvc.remote.scopes import allows
from mvc.remote.transfer import Change, RefUpdate
from mvc.remote.transport import FETCH, Move, RemoteHead
from mvc.repo.lookup.commits import Ancestors
from mvc.repo.lookup.refs import BRANCH, HEAD, TAG, branches, head, tags
from mvc.repo.lookup.revisions import resolve
from mvc.repo.recording import refuse_recorded
from mvc.repo.statements.live import live_now
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


class TagsAlong(Struct, frozen=True):
    """Tags that move as well. ``passed_over``: those that name another version there; ``denied``:
    scopes that the caller lacks for others.
    """

    updates: tuple[RefUpdate, ...]
    passed_over: tuple[str, ...]
    denied: tuple[str, ...]


class RefPlan:
    """Which refs of a remote move. ``standing``: the tips that are named, moved or not."""

    def __init__(
        self, store: Store, remote: Remote, there: RemoteHead, refs: Sequence[str],
        *, options: PushOptions,
    ) -> None:  # fmt: skip
        self._store, self._remote, self._options = store, remote, options
        self._theirs, self._scopes = there.refs, there.scopes
        self._delete = [*options.delete, *(ref[1:] for ref in refs if ref.startswith(":"))]
        self._named = self._chosen(refs)
        self.standing = list(self._named.values())

    def updates(self, *, forgot: bool = False) -> list[RefUpdate]:
        """The refs that are to move. Raises RefConflict if one of them must not.

        ``forgot``: whether the remote has forgotten something already, which the error says.
        """
        found, refused = list[RefUpdate](), list[tuple[RefUpdate, str]]()
        for name in self._deleted():
            found.append(self._update(name, None))
        for name, new in self._named.items():
            if self._theirs.get(name) == new:
                continue
            update = self._update(name, new)
            if (reason := self._refused(update)) is not None:
                refused.append((update, reason))
            found.append(update)
        for update in found:
            if self._options.force or update.new is None:
                self._check_seen(update)
        if refused:
            raise self._rejected(refused, forgot=forgot)
        return found

    def _chosen(self, refs: Sequence[str]) -> dict[str, CommitId]:
        """Full names of what is to be pushed, and where they are here."""
        if self._options.every:
            found = {BRANCH + ref.name: ref.commit for ref in branches(self._store.fresh())}
            return found | {TAG + ref.name: ref.commit for ref in tags(self._store.fresh())}
        if refs:
            return dict(self._find(ref) for ref in refs if not ref.startswith(":"))
        if self._delete:
            return {}
        at = head(self._store.fresh())
        if at.branch is None:
            raise RefConflict("HEAD is on no branch", hint="name the branch or tag to push")
        if at.commit is None:
            raise UnknownRevision(
                f"nothing was committed on {at.branch} yet", hint="make a version with 'mvc commit'"
            )
        return {BRANCH + at.branch: at.commit}

    def _find(self, ref: str) -> tuple[str, CommitId]:
        """The full name there, and the version, of ``NAME`` or ``REV:NAME``."""
        name, has_other, other = ref.rpartition(":") if ":" in ref else (ref, "", "")
        for full in (BRANCH + name, TAG + name, name):
            value = self._store.snapshot.ref(full)
            if isinstance(value, CommitId) and full.startswith((BRANCH, TAG)):
                return self._renamed(full, other) if has_other else full, value
        if has_other:
            return self._renamed(BRANCH, other), resolve(self._store, name)
        raise UnknownRevision(
            f"there is no branch or tag {printable(name[:100])}",
            hint="'mvc branch' and 'mvc tag' list them; "
            f"'mvc branch {printable(name[:100])} REV' makes one",
        )

    def _renamed(self, source: str, name: str) -> str:
        """The full name of a ref there; one that is new is of the kind of its source."""
        known = (f for f in (BRANCH + name, TAG + name) if f in self._theirs)
        kind = TAG if source.startswith(TAG) else BRANCH
        full = name if name.startswith((BRANCH, TAG)) else next(known, kind + name)
        check_ref("branch or tag", full.removeprefix(BRANCH).removeprefix(TAG))
        return full

    def _deleted(self) -> Iterator[str]:
        for name in self._delete:
            full = next((f for f in (BRANCH + name, TAG + name) if f in self._theirs), None)
            if full is None:
                raise UnknownRevision(
                    f"{self._remote.name} has no branch or tag {printable(name[:100])}",
                    hint=f"'mvc remote show {self._remote.name}' lists what it has",
                )
            yield full

    def _update(self, name: str, new: CommitId | None) -> RefUpdate:
        old = self._theirs.get(name)
        there = old if isinstance(old, CommitId) else None
        change: Change = "new" if there is None else "deleted"
        if there is not None and new is not None:
            is_forward = advances(name) and leads_to(self._store.snapshot, new, there, {})
            change = "forward" if is_forward else "forced"
        return RefUpdate(name, self._tracking(name), there, new, change=change)

    def _refused(self, update: RefUpdate) -> str | None:
        """Why a ref must not move, in git's words; None if it may."""
        if update.change != "forced" or self._options.force:
            return None
        if not advances(update.name):
            return "already exists"
        known = update.old is not None and self._store.snapshot.has_commit(update.old)
        return "non-fast-forward" if known else "fetch first"

    def _check_seen(self, update: RefUpdate) -> None:
        """Raises RefConflict for a ref that somebody has moved since it was last seen."""
        seen = self._store.snapshot.ref(update.local)
        if update.change in {"forced", "deleted"} and seen != update.old:
            at = "nowhere" if update.old is None else update.old.short
            raise RefConflict(
                f"{shown(update.name)} is not where the last fetch saw it: it is at {at} "
                "(stale info)",
                hint=f"'mvc fetch {self._remote.name}' and look at it, then push again",
            )

    def _rejected(self, refused: Sequence[tuple[RefUpdate, str]], *, forgot: bool) -> RefConflict:
        words = ", ".join(f"{shown(update.name)} ({reason})" for update, reason in refused)
        if any(reason == "already exists" for _, reason in refused):
            hint = "choose another name, or push it with --force"
        else:
            to = self._remote.typed
            hint = (
                f"'mvc pull{to}' brings what is there; mvc merges no weights: 'mvc switch -c NAME',"
                f" then 'mvc push{to}' gives versions that are only here a branch of their own"
            )
        but = ", but what was forgotten by name is forgotten there" if forgot else ""
        said = f"{self._remote.name} rejects {words}; nothing was pushed{but}"
        return RefConflict(said, hint=hint)

    @cached_property
    def _there(self) -> Ancestors:
        """What refs of the remote lead to once this is pushed."""
        theirs = (v for v in self._theirs.values() if isinstance(v, CommitId))
        return Ancestors(
            self._store.snapshot, filter(self._store.snapshot.has_commit, [*theirs, *self.standing])
        )

    def tags_along(self, updates: Sequence[RefUpdate], needed: Collection[CommitId]) -> TagsAlong:
        """Tags of what is there then, and of data sets that a version needs."""
        named = {update.name for update in updates}
        found, others, denied = list[RefUpdate](), list[str](), list[str]()
        for ref in tags(self._store.fresh()) if self.standing else ():
            name = TAG + ref.name
            theirs = self._theirs.get(name)
            goes = ref.commit in self._there or (ref.name.startswith(DATA) and ref.commit in needed)
            if name in named or theirs == ref.commit or not goes:
                continue
            update = self._update(name, ref.commit)
            if update.change == "forced":
                others.append(ref.name)
            elif allows(self._scopes, "push", name):
                found.append(update)
            else:
                denied.append(f"push:{name}")
        return TagsAlong(tuple(found), tuple(others), tuple(denied))

    def not_there(self) -> tuple[tuple[str, CommitId], ...]:
        """Targets whose live version no ref of the remote leads to, with that version."""
        live = live_now(self._store).items()
        return tuple(
            (target, id_)
            for id_, targets in live
            for target in targets
            if id_ not in self._there and not self._came(target, id_)
        )

    def _came(self, target: str, id_: CommitId) -> bool:
        """Whether a fetch brought the deployment, so that its remote has both."""
        snapshot = self._store.snapshot
        entries = (snapshot.entry(at).entry for at in snapshot.deployments_of(id_))
        return any(
            made.target == target and made.subject == id_ and entry.operation == FETCH
            for entry in entries
            for made in entry.deployments
        )

    def _tracking(self, name: str) -> str:
        """The ref here that says where it is there: for a tag the tag itself."""
        short = name.removeprefix(BRANCH).removeprefix(TAG)
        tracked = f"{REMOTE}{self._remote.name}/{short}"
        if name.startswith(BRANCH) or self._store.snapshot.ref(tracked) is not None:
            return tracked
        return name


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
