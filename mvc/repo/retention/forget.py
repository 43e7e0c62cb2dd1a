"""forget: delete the states of versions; their commits, ids and history stay.

Choosing (``choose``) and recording (``forget``) are separate. The record is one journal
entry. From then on a forgotten state cannot be read, and the next ``gc`` deletes its bytes.
Versions are forgotten by name or by rule. Of a state forgotten by name ``gc`` leaves
nothing, not even objects that other deltas start from.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from mvc.errors import RefConflict, WrongUsage
from mvc.ids import CommitId
from mvc.model.commit import Commit
from mvc.repo.context import Context
from mvc.repo.lookup import commits
from mvc.repo.lookup import refs as pointers
from mvc.repo.lookup.revisions import resolve
from mvc.repo.retention.rules import Retention, Short, given_up, protected, served, too_few
from mvc.store.journal.entries import Entry, Forgotten
from mvc.store.journal.frames import Recorded

__all__ = ["Chosen", "choose", "forget"]


@dataclass(frozen=True, slots=True)
class Chosen:
    """``commits``: the versions to forget, newest first; may be empty.

    ``rules`` is None if they were named. ``already``: named versions that were forgotten by
    name before. ``short``: ``best`` rules that keep fewer versions than they say.
    """

    commits: tuple[Commit, ...]
    rules: Retention | None
    already: tuple[CommitId, ...] = ()
    short: tuple[Short, ...] = ()

    @property
    def named(self) -> bool:
        return self.rules is None

    @property
    def marks(self) -> dict[CommitId, bool]:
        """As ``plan_collection`` takes them."""
        return {commit.id: self.named for commit in self.commits}


def choose(
    context: Context,
    revs: Iterable[str | CommitId] = (),
    rules: Retention | None = None,
) -> Chosen:
    """The versions that are named, or that ``rules`` select.

    A version forgotten by rule may be forgotten again by name. Raises WrongUsage,
    UnknownRevision, UnknownTarget, UnknownMetric; RefConflict for the version of HEAD.
    """
    context.fresh()
    ids = dict.fromkeys(resolve(context, rev) for rev in revs)
    if bool(ids) == bool(rules):
        raise WrongUsage("name versions or give rules, one of the two")
    if rules:
        going = _sorted(given_up(context, rules))
        return Chosen(going, rules, short=too_few(context, rules, going))
    found = [commits.get(context, id_) for id_ in ids]
    _refuse_head(context, found)
    already = tuple(commit.id for commit in found if _mark(context, commit.id) is True)
    return Chosen(_sorted(c for c in found if c.id not in already), None, already)


def forget(context: Context, chosen: Chosen) -> Recorded | None:
    """Forgets the chosen versions; durable on return. None if there is nothing to do.

    Versions chosen by rule stay if a ref names them or they went live meanwhile. Raises
    RefConflict if HEAD is on a named version.
    """
    if not chosen.commits:
        return None
    made: list[Recorded] = []

    def make() -> Entry:
        going = _still_going(context, chosen)
        marks = tuple(Forgotten(commit.id, chosen.named) for commit in going)
        note = "by name" if chosen.rules is None else chosen.rules.text
        return Entry("forget", context.store.clock.now_ns(), note, forgotten=marks)

    try:
        made.append(context.store.publish(make))
    except _NothingLeft:
        return None
    return made[0]


class _NothingLeft(Exception):
    """All chosen versions are needed by now, or forgotten already."""


def _still_going(context: Context, chosen: Chosen) -> Sequence[Commit]:
    """The chosen versions that may still be forgotten; runs under the journal's lock."""
    going = [c for c in chosen.commits if commits.find(context.store.snapshot, c.id) is not None]
    if chosen.rules is None:
        _refuse_head(context, going)
        going = [c for c in going if _mark(context, c.id) is not True]
    else:
        stay = protected(context)
        if chosen.rules.unused is not None:
            stay |= served(context, chosen.rules.unused)
        going = [c for c in going if c.id not in stay and _mark(context, c.id) is None]
    if not going:
        raise _NothingLeft
    return going


def _refuse_head(context: Context, going: Iterable[Commit]) -> None:
    at = pointers.head(context)
    if at.commit is not None and any(commit.id == at.commit for commit in going):
        raise RefConflict(
            f"HEAD stands on {at.commit.short}: its state is that of the working files",
            hint="commit something else or switch away first",
        )


def _mark(context: Context, id_: CommitId) -> bool | None:
    """Whether a version was forgotten by name (True), by rule (False) or not at all (None)."""
    recorded = context.store.snapshot.forgotten(id_)
    if recorded is None:
        return None
    return any(each.named for each in recorded.entry.forgotten if each.commit == id_)


def _sorted(found: Iterable[Commit]) -> tuple[Commit, ...]:
    return tuple(sorted(found, key=lambda commit: (commit.time_ns, commit.id), reverse=True))
