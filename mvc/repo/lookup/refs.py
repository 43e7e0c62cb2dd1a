"""Reads refs: HEAD, branches, tags.

``mvc.repo.refs`` changes them. In the journal a branch is ``heads/NAME``, a tag ``tags/NAME``;
``remotes/R/NAME`` is where a remote's branch or tag was at the last fetch or push. HEAD holds the
name of the current branch, or a commit if it is detached.
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
    """``branch`` is None when detached, ``commit`` None before the branch's first one."""

    branch: str | None
    commit: CommitId | None


class Ref(Struct, frozen=True):
    """A branch or tag, without its prefix; of a remote as ``REMOTE/NAME``."""

    name: str
    commit: CommitId


def head_refs(snapshot: Snapshot) -> dict[str, CommitId]:
    """Branches and tags with their prefixes, by name."""
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
    """As ``head``, but both fields are None if the entry that moved HEAD is lost."""
    try:
        return head(snapshot)
    except DamagedData:
        return Head(None, None)


def tip(snapshot: Snapshot, branch: str | None, *, new: bool = False) -> Head:
    """``branch`` and its newest commit, wherever HEAD is; None means HEAD.

    Raises UnknownRevision for a branch without a version, unless it is the current one or ``new``,
    and RefConflict if such a branch would have a tag's name.
    """
    if branch is None:
        return head(snapshot)
    found = snapshot.ref(BRANCH + branch)
    if isinstance(found, CommitId):
        return Head(branch, found)
    if not new and branch != snapshot.ref(HEAD):
        raise UnknownRevision(
            f"there is no branch {printable(branch[:100])}", hint="make it with 'mvc branch NAME'"
        )
    refuse_namesake(snapshot, TAG, "tag", branch)
    return Head(branch, None)


def tagged(snapshot: Snapshot, name: str) -> CommitId | None:
    """The version of a tag; None if there is none. Raises RefConflict for a branch's name."""
    refuse_namesake(snapshot, BRANCH, "branch", name)
    found = snapshot.ref(TAG + name)
    return found if isinstance(found, CommitId) else None


def refuse_namesake(snapshot: Snapshot, prefix: str, kind: str, name: str) -> None:
    """Refuses a name that a branch and a tag would share: revisions would be ambiguous."""
    if snapshot.ref(prefix + name) is not None:
        raise RefConflict(f"there is a {kind} {name} already", hint="choose another name")


def branches(snapshot: Snapshot) -> list[Ref]:
    """Every branch that has a commit, by name; those whose entries are lost are left out."""
    return _under(snapshot, BRANCH)


def tags(snapshot: Snapshot) -> list[Ref]:
    """Every tag, by name; those whose entries are lost are left out."""
    return _under(snapshot, TAG)


def remote_refs(snapshot: Snapshot, remote: str = "") -> list[Ref]:
    """Where the branches and tags of a remote, or of every remote, were at the last fetch or push.

    By name, which is ``REMOTE/NAME``; those whose entries are lost are left out.
    """
    found = _under(snapshot, REMOTE)
    return [ref for ref in found if not remote or ref.name.startswith(f"{remote}/")]


def of_kind(snapshot: Snapshot, kind: RefKind, remote: str = "") -> list[Ref]:
    """All refs of a kind, by name; ``remote``: of this one."""
    if kind == "remote":
        return remote_refs(snapshot, remote)
    return branches(snapshot) if kind == "branch" else tags(snapshot)


def _under(snapshot: Snapshot, prefix: str) -> list[Ref]:
    found = []
    for name, recorded in snapshot.refs_under(prefix):
        value = None if recorded is None else recorded.entry.value_of(name)
        if isinstance(value, CommitId):
            found.append(Ref(name.removeprefix(prefix), value))
    return found[::-1]
