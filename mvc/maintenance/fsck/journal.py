"""The check of the journal by fsck: both copies of every entry, the hash chain, and references.

The journal has one entry for each operation. Each entry is stored twice and has a hash of all
previous entries, the *chain*. An entry may have *statements* about versions, for example a
deployment. Each statement names the previous statement on the same topic, its *predecessor*.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, suppress

from msgspec import Struct, field

from mvc.errors import Busy, DamagedData
from mvc.ids import CommitId, StatementId
from mvc.maintenance.report import Problem
from mvc.model.statement import Statement, Tombstone
from mvc.names import an
from mvc.store.journal.frames import Gap, Recorded, read_entry, scan
from mvc.store.snapshot import JOURNAL, Snapshot

Relinks = dict[int, dict[int, int | None]]
_LOCK_SECONDS = 10.0
_HALVED = (
    "no data is lost while the other copy is readable, but commits do not repair the damaged "
    "copy: run 'mvc fsck --repair'"
)
_BROKEN = (
    "entries after the damaged entry are read, but refs and deployments may lack the changes of "
    "the damaged entry, and versions that only this entry names are not counted; to restore the "
    "entry from a copy of the same journal: 'mvc fsck --repair --from BACKUP'"
)


class JournalCheck(Struct, dict=True):
    """Reads the journal once. Ignores entries that are appended after the check began.

    ``last``: the last entry that was checked. ``lost``: commits that are named in the journal, but
    whose own entries are lost. ``relinks``: the right predecessors of statements that name a wrong
    predecessor. Maps the number of an entry and the position of a statement to the predecessor.
    """

    snapshot: Snapshot
    problems: list[Problem] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    count: int = 0
    last: Recorded | None = None
    lost: dict[CommitId, None] = field(default_factory=dict)
    gaps: list[Gap] = field(default_factory=list)
    relinks: Relinks = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.end = self.snapshot.position
        self._lost_end = [gap for gap in self.snapshot.gaps if gap.start.offset >= self.end.offset]
        self._references = _References()

    def entries(self) -> Iterator[Recorded]:
        """Yields every readable entry and checks it."""
        at = 0
        try:
            for recorded in self.snapshot.entries(lost=self._gap):
                if recorded.offset >= self.end.offset:
                    break
                at = recorded.after.offset
                yield self._checked(recorded)
            for gap in self._lost_end:
                self._gap(gap)
            self._finish()
        except DamagedData as error:
            self._report(f"byte {at}", error.message, _BROKEN)
            yield from self._beyond(at)
        relinks = self._references.finish()
        # If there is no problem, no entry is missing. Only then are ``relinks`` right.
        if not self.problems:
            self.relinks = relinks
        self.problems += self._references.problems
        if self.gaps:
            self.lost = dict.fromkeys(self._references.missing())
        for id_ in self.lost:
            why = "its journal entry is lost"
            self.problems.append(Problem("lost", id_.hex(), "", why, versions=(id_,)))

    def _gap(self, gap: Gap) -> None:
        start, end = gap.start.offset, gap.after.offset
        if start >= self.end.offset and gap not in self._lost_end:
            return
        self.gaps.append(gap)
        ids = [id_.hex()[:10] for id_ in self.snapshot.commits_between(start, end)]
        versions = f"; it had version {', '.join(ids)}" if ids else ""
        cause = "both copies are damaged" if end > start else "it is missing"
        self._report(f"byte {start}", f"{gap.told}, {cause}{versions}", _BROKEN)

    def _beyond(self, broken: int) -> Iterator[Recorded]:
        """Uses the index to find entries after a break in the hash chain at byte ``broken``.

        The caller has reported the break.
        """
        for offset in self.snapshot.offsets_between(broken, self.end.offset):
            try:
                recorded = self.snapshot.entry(offset)
            except DamagedData as error:
                if offset > broken:
                    self._report(f"byte {offset}", error.message)
            else:
                yield self._checked(recorded)

    def _checked(self, recorded: Recorded) -> Recorded:
        self.count += 1
        self.last = recorded
        # The last entry may have only one copy: ``_finish`` checks this.
        if recorded.copies < 2 and recorded.after.offset < self.end.offset:
            self._half(recorded)
        self._references.add(recorded)
        return recorded

    def _half(self, recorded: Recorded) -> None:
        self._report(
            f"byte {recorded.offset}",
            f"one of the two copies of entry {recorded.sequence} is damaged; the other one is used",
            _HALVED,
        )

    def _finish(self) -> None:
        """Checks the last entry and the bytes after it.

        If the last entry or these bytes look damaged, checks again under the lock.
        """
        if not (self._is_half() or self._size_after()):
            return
        path = self.snapshot.folder / JOURNAL
        with ExitStack() as stack:
            if self.snapshot.writable:
                try:
                    stack.enter_context(self.snapshot.fs.lock(path, timeout=_LOCK_SECONDS))
                except Busy:
                    return  # another process is writing, so this end is not an interrupted write
            is_half, rest, info = self._is_half(), self._size_after(), self.snapshot.fs.stat(path)
        if is_half and self.last is not None:
            if info is None or self.last.after.offset > info.size:
                self.notes.append(
                    "the last operation's second copy is incomplete; the next operation "
                    "completes it"
                )
            else:
                self._half(self.last)
        if rest > 0 and not self._lost_end:
            whose = "an interrupted" if self.snapshot.writable else "an interrupted or running"
            self.notes.append(f"the journal ends with {rest:,} bytes of {whose} operation")

    def _is_half(self) -> bool:
        """Whether the last checked entry still has only one sound copy."""
        if self.last is None or self.last.copies == 2:
            return False
        with self.snapshot.fs.open_read(self.snapshot.folder / JOURNAL) as file:
            if file.size() < self.last.after.offset:
                return True
            with suppress(DamagedData):  # the entry was withdrawn, or the journal was replaced
                return read_entry(file, self.last.offset).copies < 2
        return False

    def _size_after(self) -> int:
        """The number of bytes after the last readable entry.

        This entry may be newer than the check, because other processes may append entries.
        """
        with self.snapshot.fs.open_read(self.snapshot.folder / JOURNAL) as file:
            size, end = file.size(), self.end.offset
            with suppress(DamagedData):  # the journal was replaced, or an entry was withdrawn
                for recorded in scan(file, self.end):
                    end = recorded.after.offset
            return max(0, size - end)

    def _report(self, where: str, why: str, note: str = "") -> None:
        self.problems.append(Problem("journal", JOURNAL, where, why))
        if note and note not in self.notes:
            self.notes.append(note)


class _References(Struct):
    """Checks that an entry refers only to data of this entry or earlier entries."""

    problems: list[Problem] = field(default_factory=list)
    _commits: set[CommitId] = field(default_factory=set)
    # Commits that an entry named before an entry published them.
    _named: dict[CommitId, None] = field(default_factory=dict)
    _sequences: set[int] = field(default_factory=set)
    # ``_newest``: maps a topic to the sequence number of the newest entry with a statement on the
    # topic. ``_wrong``: maps (entry, position) of a statement with a wrong predecessor to the
    # statement, the wrong predecessor, and the right predecessor.
    _newest: dict[str | tuple[int, bytes], int] = field(default_factory=dict)
    _wrong: dict[tuple[int, int], tuple[Statement, int | None, int | None]] = field(
        default_factory=dict
    )
    _ids: set[StatementId] = field(default_factory=set)

    def add(self, recorded: Recorded) -> None:
        entry, sequence = recorded.entry, recorded.sequence
        self._sequences.add(sequence)
        self._commits.update(commit.id for commit in entry.commits)
        for commit in entry.commits:
            for parent in commit.parents:
                self._exists(parent, f"the parent of {commit.id.short}", sequence)
            for needed in commit.needs:
                self._exists(needed, f"a version that {commit.id.short} needs", sequence)
        for change in entry.refs:
            if isinstance(change.new, CommitId):
                self._exists(change.new, change.name, sequence)
        for position, statement in enumerate(entry.statements):
            named, before = entry.before(statement), self._newest.get(statement.topic)
            if named != before:
                self._wrong[sequence, position] = statement, named, before
            self._add_subject(statement, sequence)
        for statement in entry.statements:
            self._newest[statement.topic] = sequence
        for mark in entry.states:
            if mark.change == "stored":
                self._exists(mark.commit, "a state that is stored again", sequence)
        if entry.undoes is not None and entry.undoes >= sequence:
            name_ = f"operation {entry.undoes}"
            self._report(name_, sequence, "it is undone by an operation that is not later")

    def _add_subject(self, statement: Statement, sequence: int) -> None:
        subject = statement.target or statement.subject.hex()[:10]
        name = an(statement.name)
        if statement.id in self._ids:
            self._report(subject, sequence, f"{name} is recorded twice")
        self._ids.add(statement.id)
        if statement.commit is None and statement.subject not in self._ids:
            why = f"{name} is about a statement that is not recorded"
            self._report(subject, sequence, why)
        if statement.commit is not None and not isinstance(statement, Tombstone):
            place_ = f" on {statement.target}" if statement.target else ""
            self._exists(statement.commit, f"{name}{place_}", sequence)

    def finish(self) -> Relinks:
        """Reports statements that do not name the previous statement on the same topic.

        Returns the right predecessors (see ``JournalCheck``). Leaves out statements whose named
        predecessor is in a lost entry.
        """
        relinks: Relinks = {}
        for (sequence, position), (statement, named, before) in self._wrong.items():
            names = "no operation" if named is None else f"operation {named}"
            right = "there is none" if before is None else f"it is operation {before}"
            subject = statement.target or statement.subject.hex()[:10]
            why = (
                f"the {statement.name}s of {subject} have a gap: a statement names {names} as its "
                "predecessor"
            )
            self._report(subject, sequence, f"{why}, but {right}")
            if named is None or named in self._sequences:
                relinks.setdefault(sequence, {})[position] = before
        return relinks

    def missing(self) -> list[CommitId]:
        """Commits that an entry names but that no entry publishes."""
        return [id_ for id_ in self._named if id_ not in self._commits]

    def _exists(self, commit: CommitId, subject: str, sequence: int) -> None:
        if commit not in self._commits:
            self._named[commit] = None
            why = f"commit {commit.short} is not in the repository"
            self._report(subject, sequence, why, commit)

    def _report(self, subject: str, sequence: int, why: str, *versions: CommitId) -> None:
        where = f"journal entry {sequence}"
        self.problems.append(Problem("reference", subject, where, why, versions=versions))
