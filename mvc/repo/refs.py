"""Creates, moves, renames and deletes branches and tags. Each change is one entry of the journal.

``mvc.repo.lookup.refs`` reads refs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from mvc.errors import RefConflict, UnknownRevision
from mvc.ids import CommitId
from mvc.names import check_ref, printable
from mvc.repo.lookup.commits import Ancestors
from mvc.repo.lookup.refs import (
    BRANCH,
    HEAD,
    TAG,
    Head,
    Ref,
    branches,
    head,
    refuse_namesake,
    remote_refs,
    tags,
    tip,
)
from mvc.repo.recording import refuse_recorded
from mvc.repo.revisions import Rev, resolve
from mvc.store.journal.entries import Entry, RefChange, RefValue
from mvc.store.journal.frames import Recorded
from mvc.store.snapshot import Snapshot
from mvc.store.store import Store


def create_branch(store: Store, name: str, rev: Rev = HEAD, force: bool = False) -> Ref:
    """Creates a branch at a version. ``force``: move an existing branch that is not current.

    Raises InvalidName, UnknownRevision, RefConflict.
    """
    check_ref("branch", name)
    commit = resolve(store, rev)
    _publish(store, "branch", name, lambda: [branch_change(store, name, commit, force)])
    return Ref(name, commit)


def branch_change(store: Store, name: str, commit: CommitId, force: bool = False) -> RefChange:
    """The change that creates the branch ``name`` at ``commit``.

    ``force``: move an existing branch. Call ``branch_change`` under the journal's lock.
    Raises InvalidName, RefConflict.
    """
    check_ref("branch", name)
    old = store.snapshot.ref(BRANCH + name)
    if store.snapshot.ref(HEAD) == name:
        raise RefConflict(f"{name} is the current branch", hint="name another one, or switch first")
    if old is not None and not force:
        raise _exists("branch", name)
    refuse_recorded(store, name)
    refuse_namesake(store.snapshot, TAG, "tag", name)
    return RefChange(BRANCH + name, old, commit)


def move_head(
    store: Store, to: RefValue, start: CommitId | None, operation: str = "checkout"
) -> None:
    """Moves HEAD to ``to``. If ``start`` is given, creates the branch ``to`` at ``start``, too."""

    def changes() -> list[RefChange]:
        move = RefChange(HEAD, store.snapshot.ref(HEAD), to)
        return [move] if start is None else [branch_change(store, str(to), start), move]

    _publish(store, operation, "" if start is None else str(to), changes)


def advance(
    store: Store,
    moves: Mapping[str | None, tuple[CommitId | None, CommitId]],
    operation: str,
    *,
    note: str = "",
    first: str | None = None,
) -> None:
    """Implements ``Repository.advance``. ``note``: a description of the operation."""

    def changes() -> list[RefChange]:
        refs = []
        for branch, (old, new) in moves.items():
            ref = HEAD if branch is None else BRANCH + check_ref("branch", branch)
            if tip(store.snapshot, branch, new=True) != Head(branch, old):
                raise RefConflict(
                    f"{branch or HEAD} has moved meanwhile", hint="run the command again"
                )
            refs.append(RefChange(ref, old, resolve(store, new)))
        at = head(store.snapshot)
        if first is not None and at.commit is None and at.branch not in moves:
            refs.append(RefChange(HEAD, at.branch, check_ref("branch", first)))
        return refs

    _publish(store, operation, note, changes)


def delete_branch(store: Store, name: str, force: bool = False) -> Ref:
    """Deletes and returns a branch. The versions of the branch stay until gc.

    Raises UnknownRevision. Raises RefConflict if the branch is current. Unless ``force``, raises
    RefConflict if no other ref reaches the newest version of the branch.
    """

    def change() -> list[RefChange]:
        tip = _existing(store.snapshot, BRANCH, "branch", name)
        at = head(store.snapshot)
        if at.branch == name:
            raise RefConflict(
                f"{name} is the current branch", hint="switch to another branch first"
            )
        refuse_recorded(store, name)
        if not force and tip not in Ancestors(
            store.snapshot, _other_tips(store.snapshot, name, at)
        ):
            raise RefConflict(
                f"no other branch or tag reaches the newest version of {name}, {tip.short}",
                hint=f"tag it with 'mvc tag NAME {tip.short}', or force the deletion",
            )
        return [RefChange(BRANCH + name, tip, None)]

    return _deleted(name, _publish(store, "delete-branch", name, change))


def rename_branch(store: Store, old: str, new: str, force: bool = False) -> None:
    """Renames a branch, even the current branch. ``force``: replace an existing branch ``new``.

    Raises InvalidName, UnknownRevision, RefConflict.
    """
    check_ref("branch", new)

    def changes() -> list[RefChange]:
        at = head(store.snapshot)
        existing = store.snapshot.ref(BRANCH + new)
        if new in {at.branch, old} or (existing is not None and not force):
            raise _exists("branch", new)
        refuse_namesake(store.snapshot, TAG, "tag", new)
        for name in (old, new):
            refuse_recorded(store, name)
        refs = []
        if at.branch != old or at.commit is not None:  # otherwise the branch has no version yet
            tip = _existing(store.snapshot, BRANCH, "branch", old)
            refs += [RefChange(BRANCH + old, tip, None), RefChange(BRANCH + new, existing, tip)]
        if at.branch == old:
            refs.append(RefChange(HEAD, old, new))
        return refs

    _publish(store, "rename-branch", f"{old} to {new}", changes)


def create_tag(store: Store, name: str, rev: Rev = HEAD, force: bool = False) -> Ref:
    """Creates a tag at a version. ``force``: move an existing tag.

    Raises InvalidName, UnknownRevision, RefConflict.
    """
    check_ref("tag", name)
    commit = resolve(store, rev)

    def change() -> list[RefChange]:
        old = store.snapshot.ref(TAG + name)
        if old is not None and not force:
            raise _exists("tag", name)
        if store.snapshot.ref(HEAD) == name:
            raise _exists("branch", name)
        refuse_namesake(store.snapshot, BRANCH, "branch", name)
        return [RefChange(TAG + name, old, commit)]

    _publish(store, "tag", name, change)
    return Ref(name, commit)


def delete_tag(store: Store, name: str) -> Ref:
    """Deletes and returns a tag. The version stays until gc. Raises UnknownRevision."""

    def change() -> list[RefChange]:
        return [RefChange(TAG + name, _existing(store.snapshot, TAG, "tag", name), None)]

    return _deleted(name, _publish(store, "delete-tag", name, change))


def _deleted(name: str, recorded: Recorded) -> Ref:
    tip = recorded.entry.refs[0].old
    assert isinstance(tip, CommitId)
    return Ref(name, tip)


def _publish(
    store: Store, operation: str, note: str, changes: Callable[[], list[RefChange]]
) -> Recorded:
    """Writes an entry of the journal. Calls ``changes`` under the journal's lock."""
    return store.publish(
        lambda: Entry(operation, store.clock.now_ns(), note, refs=tuple(changes()))
    )


def _existing(snapshot: Snapshot, prefix: str, kind: str, name: str) -> CommitId:
    value = snapshot.ref(prefix + name)
    if isinstance(value, CommitId):
        return value
    existing = branches(snapshot) if prefix == BRANCH else tags(snapshot)
    names = ", ".join(ref.name for ref in existing[:10])
    raise UnknownRevision(
        f"there is no {kind} {printable(name[:100])}",
        hint=f"available: {names}" if names else f"there is no {kind} yet",
    )


def _exists(kind: str, name: str) -> RefConflict:
    return RefConflict(
        f"a {kind} {name} exists already", hint="choose another name, or force the change"
    )


def _other_tips(snapshot: Snapshot, name: str, at: Head) -> list[CommitId]:
    """The commits of all refs except the branch ``name``, including a detached HEAD."""
    tips = [
        *(ref.commit for ref in branches(snapshot) if ref.name != name),
        *(ref.commit for ref in (*tags(snapshot), *remote_refs(snapshot))),
    ]
    if at.branch is None and at.commit is not None:
        tips.append(at.commit)
    return tips
