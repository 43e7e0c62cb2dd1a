"""fsck, journal: both copies of every entry, the chain, what entries say about each other."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from mvc.errors import DamagedData
from mvc.ids import CommitId
from mvc.repo.report import Problem
from mvc.store import keys
from mvc.store.entries import Entry
from mvc.store.journal import Recorded
from mvc.store.view import JOURNAL, View

__all__ = ["JournalCheck"]


@dataclass
class JournalCheck:
    """Goes through the journal once; where it breaks, on with what the index still finds.

    ``forgotten``: commits whose state was given up, which is no damage.
    """

    view: View
    problems: list[Problem] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    count: int = 0
    forgotten: set[CommitId] = field(default_factory=set)
    _halved = (
        "nothing is lost while the other copy of an entry is read, but no later commit writes "
        "the damaged one again: 'mvc fsck --repair' does"
    )
    _broken = (
        "what stands behind the damaged entry is found as far as the index knows it; the entry "
        "itself is in a copy of the same journal: 'mvc fsck --repair --from BACKUP'"
    )
    _commits: set[CommitId] = field(default_factory=set)
    _newest: dict[str, int] = field(default_factory=dict)
    _deployed: set[tuple[str, int]] = field(default_factory=set)

    def entries(self) -> Iterator[Recorded]:
        """Every entry that can be read, each checked on the way."""
        end = 0
        try:
            for recorded in self.view.entries():
                end = recorded.after.offset
                yield self._checked(recorded)
            self._end()
        except DamagedData as error:
            self._report(f"byte {end}", error.message)
            self.notes.append(self._broken)
            yield from self._beyond(end)

    def _beyond(self, broken: int) -> Iterator[Recorded]:
        """Entries from a break in the chain on, by the index; the break itself is reported."""
        tables = (keys.REF, keys.COMMIT, keys.DEPLOYED, keys.RETRACTED, keys.PACK, keys.PENDING)
        offsets = {keys.offset_of(key) for table in tables for key in self.view.under(table)}
        for offset in sorted(o for o in offsets if o >= broken):
            try:
                recorded = self.view.entry(offset)
            except DamagedData as error:
                if offset > broken:
                    self._report(f"byte {offset}", error.message)
            else:
                yield self._checked(recorded)

    def _checked(self, recorded: Recorded) -> Recorded:
        self.count += 1
        if recorded.copies < 2 and not self._is_cut_off(recorded):
            if self._halved not in self.notes:
                self.notes.append(self._halved)
            self._report(
                f"byte {recorded.offset}",
                f"one of the two copies of entry {recorded.sequence} is damaged; the other is read",
            )
        self._references(recorded.entry, recorded.sequence)
        return recorded

    def _is_cut_off(self, recorded: Recorded) -> bool:
        """An interruption between the copies of the last entry; the next writer completes it."""
        path = self.view.folder / JOURNAL
        identity = self.view.fs.stat(path)
        if identity is None or recorded.after.offset <= identity.size:
            return False
        self.notes.append("the last operation's second copy was cut off; the next one completes it")
        return True

    def _references(self, entry: Entry, sequence: int) -> None:
        """Everything an entry points to was published before it, or in it."""
        self._commits.update(commit.id for commit in entry.commits)
        self.forgotten.update(each.commit for each in entry.forgotten)
        for commit in entry.commits:
            for parent in commit.parents:
                self._exists(parent, f"the parent of {commit.id.short}", sequence)
        for change in entry.refs:
            if isinstance(change.new, CommitId):
                self._exists(change.new, change.name, sequence)
        for deployment in entry.deployments:
            target = deployment.target
            self._exists(deployment.commit, f"a deployment on {target}", sequence)
            if deployment.previous != self._newest.get(target):
                self._wrong(target, sequence, f"the deployments on {target} have a gap")
            self._newest[target] = sequence
            self._deployed.add((target, sequence))
        for retraction in entry.retractions:
            if (retraction.target, retraction.sequence) not in self._deployed:
                what = f"a deployment on {retraction.target} is retracted that is not recorded"
                self._wrong(retraction.target, sequence, what)

    def _exists(self, commit: CommitId, what: str, sequence: int) -> None:
        if commit not in self._commits:
            why = f"is commit {commit.short}, which is not in the repository"
            self.problems.append(
                Problem("reference", what, f"journal entry {sequence}", why, (commit,))
            )

    def _wrong(self, what: str, sequence: int, why: str) -> None:
        self.problems.append(Problem("reference", what, f"journal entry {sequence}", why))

    def _report(self, where: str, why: str) -> None:
        self.problems.append(Problem("journal", JOURNAL, where, why))

    def _end(self) -> None:
        identity = self.view.fs.stat(self.view.folder / JOURNAL)
        rest = 0 if identity is None else identity.size - self.view.position.offset
        if rest > 0:
            self.notes.append(f"{rest:,} bytes of an interrupted operation end the journal")
