"""Resolves revisions to commits: ids, branches, tags, targets, HEAD, ``~n``, ``^n``, ``@{TIME}``.

A name is looked up as a branch, then as a tag, a tracking ref ``REMOTE/NAME``, a prefix of an id,
and a target. A target means the version that is live on the target. ``heads/NAME``,
``tags/NAME``, ``remotes/REMOTE/NAME`` and ``target:NAME`` say which kind of name is meant.
"""

from __future__ import annotations

import re
import warnings
from typing import TYPE_CHECKING, Protocol, TypeAlias

from mvc.errors import AmbiguousName, AmbiguousRevision, UnknownRevision, WrongUsage
from mvc.ids import CommitId
from mvc.names import REMOTE, printable
from mvc.repo.lookup import commits, refs
from mvc.repo.statements.live import live_at
from mvc.store.snapshot import Snapshot
from mvc.store.store import Store
from mvc.text import did_you_mean
from mvc.times import format_time, parse_time, whole_second

if TYPE_CHECKING:

    class _HasId(Protocol):
        @property
        def id(self) -> CommitId:
            """The version's id."""

    class _HasCommit(Protocol):
        @property
        def commit(self) -> CommitId:
            """The version's id."""


Rev: TypeAlias = "str | CommitId | _HasId | _HasCommit"
"""A text as on the command line, a commit id, or an object with a commit id.

The id is the attribute ``id`` of commits, log entries and results of a commit, and the attribute
``commit`` of deployments.
"""

# Names in the index end with a zero byte, so a name cannot contain a zero byte.
_REVISION = re.compile(r"([^~^@{}\0]+)(?:@\{([^{}]*)\})?((?:[~^][0-9]{0,9})*)", re.ASCII)
_STEP = re.compile(r"([~^])([0-9]*)", re.ASCII)
_DIGITS = re.compile(r"[0-9a-fA-F]{4,64}", re.ASCII)
_TOO_FEW = re.compile(r"[0-9a-fA-F]{1,3}", re.ASCII)
_FORMS = "a revision is an id, a branch, tag, target or HEAD, then ~2, ^1 or @{2026-11-20T10:00}"
_SHOWN = 10
_TARGET = "target:"
_KINDS = {"heads": "a branch", "tags": "a tag", "remotes": "a remote's branch or tag"}


def resolve(store: Store, rev: Rev) -> CommitId:
    """The commit that ``rev`` names.

    Raises UnknownRevision, AmbiguousRevision and InvalidTime; WrongUsage if ``rev`` has another
    type; UnknownTarget or NoDeployment if ``rev`` names a target. Warns with AmbiguousName.
    """
    return resolve_ref(store, rev)[0]


def id_or_text(rev: Rev) -> str | CommitId:
    """Returns a text or an id unchanged. For an object with a commit id, returns this id.

    Raises WrongUsage for anything else.
    """
    if isinstance(rev, str | CommitId):
        return rev
    for name in ("id", "commit"):
        if isinstance(id_ := getattr(rev, name, None), CommitId):
            return id_
    raise WrongUsage(
        f"a revision is a text or a CommitId, not a {type(rev).__name__}",
        hint=f"{_FORMS}; or pass a commit, a log entry or a deployment",
    )


def resolve_ref(store: Store, rev: Rev) -> tuple[CommitId, str | None]:
    """The commit that ``rev`` names; and the branch, if ``rev`` is a branch or HEAD, else None."""
    snapshot, rev = store.fresh(), id_or_text(rev)
    if isinstance(rev, CommitId):
        return commits.get(snapshot, rev).id, None
    match = _REVISION.fullmatch(rev.strip())
    if match is None:
        raise UnknownRevision(f"not a revision: {printable(rev[:100])!r}", hint=_FORMS)
    base, moment, steps = match.groups()
    if moment is not None:
        id_, branch = _at(store, base, moment), None
    else:
        id_, branch = _named(store, base)
    for kind, count in _STEP.findall(steps):
        branch = None
        step = _back if kind == "~" else _up
        id_ = step(snapshot, id_, int(count or 1), printable(rev))
    return id_, branch


def _named(store: Store, name: str) -> tuple[CommitId, str | None]:
    snapshot = store.snapshot
    if name == refs.HEAD:
        at = refs.head(snapshot)
        if at.commit is None:
            raise UnknownRevision(
                f"HEAD has no version yet: nothing was committed on {at.branch}",
                hint="create one with 'mvc commit'",
            )
        return at.commit, at.branch
    for full in _candidates(name):
        value = snapshot.ref(full)
        if isinstance(value, CommitId):
            _warn_of_target(snapshot, name, full)
            return value, full.removeprefix(refs.BRANCH) if full.startswith(refs.BRANCH) else None
    if _DIGITS.fullmatch(name) and (id_ := _by_digits(snapshot, name)) is not None:
        _warn_of_target(snapshot, name, id_.short)
        return id_, None
    return _live(store, name), None


def _live(store: Store, name: str, time_ns: int | None = None) -> CommitId:
    """The version that is live on a target, or was live at ``time_ns``.

    ``name``: ``NAME`` or ``target:NAME``.
    """
    target = name.removeprefix(_TARGET)
    if target == name and not _is_target(store.snapshot, name):
        raise _unknown(store.snapshot, name)
    return live_at(store, time_ns, target).commit


def _is_target(snapshot: Snapshot, name: str) -> bool:
    return snapshot.newest_hybrid(name) is not None


def _warn_of_target(snapshot: Snapshot, name: str, used: str) -> None:
    """Warns if ``name``, which was resolved to ``used``, is the name of a target, too."""
    if _is_target(snapshot, name):
        kind = _KINDS.get(used.partition("/")[0], "a version's id")
        warnings.warn(
            f"{name} is {kind} and a target: using {used}; {_TARGET}{name} means the live version",
            AmbiguousName,
            stacklevel=1,
        )


def _candidates(name: str) -> list[str]:
    """Full names of the refs that a short name can mean, in order of preference."""
    full = [name] if name.startswith((refs.BRANCH, refs.TAG, REMOTE)) else []
    remote = [REMOTE + name] if "/" in name else []
    return [refs.BRANCH + name, refs.TAG + name, *remote, *full]


def _by_digits(snapshot: Snapshot, digits: str) -> CommitId | None:
    matches = commits.starting_with(snapshot, digits)
    if len(matches) <= 1:
        return matches[0].id if matches else None
    shown = [
        f"{c.id.short} {format_time(c.time_ns, precise=False)} "
        f"{printable(c.message.partition(chr(10))[0][:40])}".rstrip()
        for c in matches[:_SHOWN]
    ]
    more = f" and {len(matches) - _SHOWN} more" if len(matches) > _SHOWN else ""
    raise AmbiguousRevision(
        f"{len(matches)} ids begin with {digits}: {'; '.join(shown)}{more}",
        hint="write more digits",
    )


def _unknown(snapshot: Snapshot, name: str) -> UnknownRevision:
    snapshot.check_gaps(-1, f"whether there is a version {printable(name[:100])}")
    named = [*refs.branches(snapshot), *refs.tags(snapshot), *refs.remote_refs(snapshot)]
    names = [refs.HEAD, *(ref.name for ref in named), *snapshot.targets()]
    hint = (
        "write the path as a further argument: 'mvc ls REV PATH'"
        if ":" in name
        else "'mvc log' lists the versions, 'mvc branch' and 'mvc tag' the names"
        if named
        else "nothing was committed yet: create a version with 'mvc commit'"
    )
    if _TOO_FEW.fullmatch(name):
        hint = "write at least four digits of an id"
    return UnknownRevision(
        f"there is no version, branch, tag or target {printable(name[:100])}",
        hint=did_you_mean(name, names, hint),
    )


def _at(store: Store, name: str, moment: str) -> CommitId:
    """The commit of a ref or target at a moment.

    HEAD means the branch that was the current branch at the moment.
    """
    snapshot = store.snapshot
    if re.fullmatch(r"[0-9]{1,6}", moment.strip(), re.ASCII):  # git's NAME@{1}, which mvc lacks
        raise UnknownRevision(
            f"@{{...}} needs a time, not the number {moment.strip()}",
            hint=f"{printable(name)}~{moment.strip()} goes back by versions; "
            f"{printable(name)}@{{2026-11-20T10:00}} is the version at a time",
        )
    time_ns = parse_time(moment, now_ns=store.clock.now_ns())
    logged = [refs.HEAD] if name == refs.HEAD else _candidates(name)
    full = next((n for n in logged if snapshot.has_ref(n)), None)
    if full is None:
        return _live(store, name, time_ns)
    _warn_of_target(snapshot, name, full)
    value = snapshot.ref_at(full, time_ns)
    if isinstance(value, str):
        full = refs.BRANCH + value
        value = snapshot.ref_at(full, time_ns)
    if isinstance(value, CommitId):
        return value
    first = snapshot.first_ref_change(full)
    raise UnknownRevision(
        f"{printable(name)} pointed to no version at {format_time(time_ns, precise=False)}",
        hint=f"its history begins at {format_time(whole_second(first.entry.time_ns))}"
        if first
        else None,
    )


def _back(snapshot: Snapshot, id_: CommitId, count: int, text: str) -> CommitId:
    """Follows the first parent ``count`` times. ``text``: the revision, for errors."""
    for done in range(count):
        parents = commits.get(snapshot, id_).parents
        if not parents:
            raise UnknownRevision(
                f"{text}: {id_.short} is the first version of its history",
                hint=f"go back by ~{done} at most",
            )
        id_ = parents[0]
    return id_


def _up(snapshot: Snapshot, id_: CommitId, number: int, text: str) -> CommitId:
    """The parent with this number (the first is 1). Number 0 means the commit itself."""
    if number == 0:
        return id_
    parents = commits.get(snapshot, id_).parents
    if number > len(parents):
        count = {0: "no parent", 1: "one parent"}.get(len(parents), f"{len(parents)} parents")
        raise UnknownRevision(f"{text}: {id_.short} has {count}")
    return parents[number - 1]
