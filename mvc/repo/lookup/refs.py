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
from mvc.store.journal.entries import RefValue
from mvc.store.journal.frames import Recorded
from mvc.store.snapshot import Snapshot
from mvc.store.store import Store

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


def head(store: Store) -> Head:
    """The current branch and its tip, or the commit of a detached HEAD."""
    store.fresh()
    at = store.ref(HEAD)
    if not isinstance(at, str):
        return Head(None, at)
    tip = store.ref(BRANCH + at)
    return Head(at, tip if isinstance(tip, CommitId) else None)


def head_if_known(store: Store) -> Head:
    """As ``head``, but both fields are None if the entry that moved HEAD is lost."""
    try:
        return head(store)
    except DamagedData:
        return Head(None, None)


def tip(store: Store, branch: str | None, *, new: bool = False) -> Head:
    """``branch`` and its newest commit, wherever HEAD is; None means HEAD.

    Raises UnknownRevision for a branch without a version, unless it is the current one or ``new``.
    """
    if branch is None:
        return head(store)
    store.fresh()
    found = store.ref(BRANCH + branch)
    if isinstance(found, CommitId):
        return Head(branch, found)
    if not new and branch != store.ref(HEAD):
        raise UnknownRevision(
            f"there is no branch {printable(branch[:100])}", hint="make it with 'mvc branch NAME'"
        )
    return Head(branch, None)


def tagged(store: Store, name: str) -> CommitId | None:
    """The version of a tag; None if there is none. Raises RefConflict for a branch's name."""
    store.fresh()
    if store.ref(BRANCH + name) is not None:
        raise RefConflict(f"there is a branch {name} already", hint="choose another name")
    found = store.ref(TAG + name)
    return found if isinstance(found, CommitId) else None


def branches(store: Store) -> list[Ref]:
    """Every branch that has a commit, by name; those whose entries are lost are left out."""
    return _under(store.fresh(), BRANCH)


def tags(store: Store) -> list[Ref]:
    """Every tag, by name; those whose entries are lost are left out."""
    return _under(store.fresh(), TAG)


def remote_refs(store: Store, remote: str = "") -> list[Ref]:
    """Where the branches and tags of a remote, or of every remote, were at the last fetch or push.

    By name, which is ``REMOTE/NAME``; those whose entries are lost are left out.
    """
    found = _under(store.fresh(), REMOTE)
    return [ref for ref in found if not remote or ref.name.startswith(f"{remote}/")]


def of_kind(store: Store, kind: RefKind, remote: str = "") -> list[Ref]:
    """All refs of a kind, by name; ``remote``: of this one."""
    if kind == "remote":
        return remote_refs(store, remote)
    return branches(store) if kind == "branch" else tags(store)


def value_at(snapshot: Snapshot, name: str, time_ns: int) -> RefValue:
    """What a ref pointed to at a moment (ns since 1970); None before its first change."""
    recorded = snapshot.ref_change_at(name, time_ns)
    return new_value(recorded, name)


def _under(snapshot: Snapshot, prefix: str) -> list[Ref]:
    found = []
    for name, recorded in snapshot.refs_under(prefix):
        value = new_value(recorded, name)
        if isinstance(value, CommitId):
            found.append(Ref(name.removeprefix(prefix), value))
    return found[::-1]


def new_value(recorded: Recorded | None, name: str) -> RefValue:
    """What an entry sets a ref to; None if it, or there is none, does not."""
    changes = () if recorded is None else recorded.entry.refs
    return next((change.new for change in reversed(changes) if change.name == name), None)
