"""Reads refs (HEAD, branches, tags) and the removals staged for the next commit.

``mvc.repo.refs`` changes them. In the journal a branch is ``heads/NAME``, a tag ``tags/NAME``;
HEAD holds the name of the current branch, or a commit if it is detached.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from mvc.errors import DamagedData
from mvc.ids import CommitId
from mvc.repo.context import Context
from mvc.store.index import keys
from mvc.store.journal.entries import RefValue
from mvc.store.journal.frames import Recorded
from mvc.store.snapshot.view import View

__all__ = [
    "BRANCH",
    "HEAD",
    "TAG",
    "Head",
    "Ref",
    "branches",
    "head",
    "head_if_known",
    "staged_removals",
    "tags",
    "value_at",
]

HEAD = "HEAD"
BRANCH = "heads/"
TAG = "tags/"


@dataclass(frozen=True, slots=True)
class Head:
    """``branch`` is None when detached, ``commit`` None before the branch's first one."""

    branch: str | None
    commit: CommitId | None


@dataclass(frozen=True, slots=True)
class Ref:
    """A branch or tag, without its prefix."""

    name: str
    commit: CommitId


def head(context: Context) -> Head:
    """The current branch and its tip, or the commit of a detached HEAD."""
    context.fresh()
    at = context.store.ref(HEAD)
    if not isinstance(at, str):
        return Head(None, at)
    tip = context.store.ref(BRANCH + at)
    return Head(at, tip if isinstance(tip, CommitId) else None)


def head_if_known(context: Context) -> Head:
    """As ``head``, but both fields are None if the entry that moved HEAD is lost."""
    try:
        return head(context)
    except DamagedData:
        return Head(None, None)


def branches(context: Context) -> list[Ref]:
    """Every branch that has a commit, by name; those whose entries are lost are left out."""
    return _under(context.fresh(), BRANCH)


def tags(context: Context) -> list[Ref]:
    """Every tag, by name; those whose entries are lost are left out."""
    return _under(context.fresh(), TAG)


def staged_removals(context: Context) -> tuple[str, ...]:
    """The paths that ``mvc rm`` removed; the next commit on the current branch leaves them out."""
    found = context.store.view.newest(keys.PENDING)
    return (found.entry.removed or ()) if found is not None else ()


def value_at(view: View, name: str, time_ns: int) -> RefValue:
    """What a ref pointed to at a moment (ns since 1970); None before its first change."""
    low = keys.REFLOG + keys.text(name)

    def look() -> RefValue:
        key = view.last(low, low + keys.moment(time_ns) + b"\xff" * 8)
        at = -1 if key is None else keys.offset_of(key)
        view.check_gaps(at, f"where {name.removeprefix(BRANCH)} pointed to")
        return None if key is None else _new_value(view.entry(keys.offset_of(key)), name)

    return view.steady(look)


def _under(view: View, prefix: str) -> list[Ref]:
    found = [Ref(n.removeprefix(prefix), v) for n, v in _newest(view, prefix)
             if isinstance(v, CommitId)]  # fmt: skip
    return found[::-1]


def _newest(view: View, prefix: str) -> Iterator[tuple[str, RefValue]]:
    """Each ref's current value, names descending; one look-up per ref."""
    low = keys.REF + prefix.encode()
    high = keys.after(low)

    def look() -> tuple[str, RefValue] | None:
        key = view.last(low, high)
        if key is None:
            return None
        name = keys.name_of(key)
        try:
            view.check_gaps(keys.offset_of(key), f"where {name} points to")
            return name, _new_value(view.entry(keys.offset_of(key)), name)
        except DamagedData:
            return name, None

    while (found := view.steady(look)) is not None:
        yield found
        high = keys.REF + keys.text(found[0])


def _new_value(recorded: Recorded, name: str) -> RefValue:
    return next(c.new for c in reversed(recorded.entry.refs) if c.name == name)
