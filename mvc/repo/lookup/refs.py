"""Reads refs: HEAD, branches, tags and tracking refs. ``mvc.repo.refs`` changes refs.

In the journal (the file with all operations) a branch is ``heads/NAME``, a tag ``tags/NAME``, a
tracking ref ``remotes/R/NAME``. HEAD contains the name of the current branch, or a commit if HEAD
is detached.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from msgspec import Struct

from mvc.errors import DamagedData, RefConflict, UnknownRevision
from mvc.ids import CommitId
from mvc.names import REMOTE, printable
from mvc.store.snapshot import Snapshot

RefKind: TypeAlias = Literal["branch", "tag", "remote"]

HEAD = "HEAD"
BRANCH = "heads/"
TAG = "tags/"


class Head(Struct, frozen=True):
    """A branch and its newest commit, or a detached HEAD (``branch`` is None) and its commit.

    ``commit``: None if the branch has no commit.
    """

    branch: str | None
    commit: CommitId | None


class Ref(Struct, frozen=True):
    """A ref. ``name``: without the prefix; the name of a tracking ref is ``REMOTE/NAME``."""

    name: str
    commit: CommitId


def head_refs(snapshot: Snapshot) -> dict[str, CommitId]:
    """Branches and tags with their prefixes, sorted by name."""
    return {
        prefix + ref.name: ref.commit
        for prefix in (BRANCH, TAG)
        for ref in reversed(_under(snapshot, prefix))
    }


def head(snapshot: Snapshot) -> Head:
    """The current branch and its tip, or the commit of a detached HEAD."""
    at = snapshot.ref(HEAD)
    if not isinstance(at, str):
        return Head(None, at)
    tip = snapshot.ref(BRANCH + at)
    return Head(at, tip if isinstance(tip, CommitId) else None)


def head_if_known(snapshot: Snapshot) -> Head:
    """As ``head``, but if the journal entry that moved HEAD is lost, both fields are None."""
    try:
        return head(snapshot)
    except DamagedData:
        return Head(None, None)


def tip(snapshot: Snapshot, branch: str | None, *, new: bool = False) -> Head:
    """``branch`` and its newest commit. If ``branch`` is None, the result of ``head``.

    If the branch has no commit, raises UnknownRevision, unless the branch is current or ``new``. A
    branch without a commit must not have the name of a tag: raises RefConflict.
    """
    if branch is None:
        return head(snapshot)
    commit = snapshot.ref(BRANCH + branch)
    if isinstance(commit, CommitId):
        return Head(branch, commit)
    if not new and branch != snapshot.ref(HEAD):
        raise UnknownRevision(
            f"there is no branch {printable(branch[:100])}", hint="create it with 'mvc branch NAME'"
        )
    refuse_namesake(snapshot, TAG, "tag", branch)
    return Head(branch, None)


def tagged(snapshot: Snapshot, name: str) -> CommitId | None:
    """The version of a tag, or None. Raises RefConflict if a branch has this name."""
    refuse_namesake(snapshot, BRANCH, "branch", name)
    commit = snapshot.ref(TAG + name)
    return commit if isinstance(commit, CommitId) else None


def refuse_namesake(snapshot: Snapshot, prefix: str, kind: str, name: str) -> None:
    """Raises RefConflict if there is a ref ``prefix + name``, because two refs with the same name
    would be ambiguous.

    ``kind``: the word for this ref in the message.
    """
    if snapshot.ref(prefix + name) is not None:
        raise RefConflict(f"a {kind} {name} exists already", hint="choose another name")


def branches(snapshot: Snapshot) -> list[Ref]:
    """All branches with a commit, sorted by name. Branches whose entries are lost are omitted."""
    return _under(snapshot, BRANCH)


def tags(snapshot: Snapshot) -> list[Ref]:
    """All tags, sorted by name. Tags whose entries are lost are omitted."""
    return _under(snapshot, TAG)


def remote_refs(snapshot: Snapshot, remote: str = "") -> list[Ref]:
    """Tracking refs of one remote, or of all remotes, sorted by name.

    Tracking refs whose entries are lost are omitted.
    """
    tracked = _under(snapshot, REMOTE)
    return [ref for ref in tracked if not remote or ref.name.startswith(f"{remote}/")]


def of_kind(snapshot: Snapshot, kind: RefKind, remote: str = "") -> list[Ref]:
    """All refs of a kind, sorted by name."""
    if kind == "remote":
        return remote_refs(snapshot, remote)
    return branches(snapshot) if kind == "branch" else tags(snapshot)


def _under(snapshot: Snapshot, prefix: str) -> list[Ref]:
    refs = []
    for name, recorded in snapshot.refs_under(prefix):
        value = None if recorded is None else recorded.entry.value_of(name)
        if isinstance(value, CommitId):
            refs.append(Ref(name.removeprefix(prefix), value))
    return refs[::-1]
