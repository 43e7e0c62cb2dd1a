"""fsck, journal: both copies of every entry, the chain, what entries say about each other."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, suppress

from msgspec import Struct, field

from mvc.errors import Busy, DamagedData
from mvc.ids import CommitId, DeploymentId
from mvc.maintenance.report import Problem
from mvc.store.journal.entries import Deployment, Relink, Weights
from mvc.store.journal.frames import Gap, Recorded, read_entry, scan
from mvc.store.journal.stamps import Stamp
from mvc.store.snapshot import JOURNAL, Snapshot

_LOCK_SECONDS = 10.0
_HALVED = (
    "nothing is lost while the other copy of an entry is read, but no later commit writes "
    "the damaged one again: 'mvc fsck --repair' does"
)
_BROKEN = (
    "what stands behind the damaged entry is read, but refs and deployments may lack what "
    "it said, and versions that nothing else names are not counted; the entry itself is in a "
    "copy of the same journal: 'mvc fsck --repair --from BACKUP'"
)


class JournalCheck(Struct, dict=True):
    """Reads the journal once, up to its end when the check began. Lost entries are skipped.

    ``last``: the last entry of the check. ``forgotten``: commits whose state was forgotten and is
    not here again, which is no damage; ``absent``: those of them whose state never came.
    ``lost``: commits that sound entries name and no sound entry holds.
    ``weights``: marks of versions whose weights were given up or stored again.
    ``relinks``: corrections of predecessors that the journal proves to be wrong.
    """

    snapshot: Snapshot
    problems: list[Problem] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    count: int = 0
    last: Recorded | None = None
    forgotten: set[CommitId] = field(default_factory=set)
    absent: set[CommitId] = field(default_factory=set)
    weights: list[Weights] = field(default_factory=list)
    lost: dict[CommitId, None] = field(default_factory=dict)
    gaps: list[Gap] = field(default_factory=list)
    relinks: list[Relink] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.end = self.snapshot.position
        self._lost_end = [gap for gap in self.snapshot.gaps if gap.start.offset >= self.end.offset]
        self._references = _References()
        self._named = set[CommitId]()  # of the forgotten

    def entries(self) -> Iterator[Recorded]:
        """Every entry that can be read, each checked on the way."""
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
        if not self.problems:  # then the order of the entries proves the right predecessors
            self.relinks = relinks
        self.problems += self._references.problems
        if self.gaps:
            self.lost = dict.fromkeys(self._references.missing())
        for id_ in self.lost:
            why = "the journal entry that it was published with is lost"
            self.problems.append(Problem("lost", id_.hex(), "", why, versions=(id_,)))

    def _gap(self, gap: Gap) -> None:
        start, end = gap.start.offset, gap.after.offset
        if start >= self.end.offset and gap not in self._lost_end:
            return
        self.gaps.append(gap)
        ids = [id_.hex()[:10] for id_ in self.snapshot.commits_between(start, end)]
        named = f"; it had version {', '.join(ids)}" if ids else ""
        what = "both copies are damaged" if end > start else "it is missing"
        self._report(f"byte {start}", f"{gap.told}, {what}{named}", _BROKEN)

    def _beyond(self, broken: int) -> Iterator[Recorded]:
        """Entries from a break in the chain on, by the index; the break itself is reported."""
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
        for mark in recorded.entry.forgotten:
            self.forgotten.add(mark.commit)
            self._named.update({mark.commit} if mark.named else ())
        self.forgotten.difference_update(set(recorded.entry.here_again) - self._named)
        self.absent |= recorded.entry.absent
        self.absent -= {*recorded.entry.here_again, *self._named}
        self.weights += recorded.entry.weights
        # The last entry may be in the middle of being written: see ``_finish``.
        if recorded.copies < 2 and recorded.after.offset < self.end.offset:
            self._half(recorded)
        self._references.take(recorded)
        return recorded

    def _half(self, recorded: Recorded) -> None:
        self._report(
            f"byte {recorded.offset}",
            f"one of the two copies of entry {recorded.sequence} is damaged; the other is read",
            _HALVED,
        )

    def _finish(self) -> None:
        """Checks the last entry and the bytes after it, under the lock if they look damaged."""
        if not (self._is_half() or self._rest()):
            return
        path = self.snapshot.folder / JOURNAL
        with ExitStack() as held:
            if self.snapshot.writable:
                try:
                    held.enter_context(self.snapshot.fs.lock(path, timeout=_LOCK_SECONDS))
                except Busy:
                    return  # somebody writes all the time: nothing was interrupted
            half, rest, identity = self._is_half(), self._rest(), self.snapshot.fs.stat(path)
        if half and self.last is not None:
            if identity is None or self.last.after.offset > identity.size:
                self.notes.append(
                    "the last operation's second copy was cut off; the next one completes it"
                )
            else:
                self._half(self.last)
        if rest > 0 and not self._lost_end:
            whose = "an interrupted" if self.snapshot.writable else "an interrupted or running"
            self.notes.append(f"{rest:,} bytes of {whose} operation end the journal")

    def _is_half(self) -> bool:
        """Whether the last entry of the check still has one copy only."""
        if self.last is None or self.last.copies == 2:
            return False
        with self.snapshot.fs.open_read(self.snapshot.folder / JOURNAL) as file:
            if file.size() < self.last.after.offset:
                return True
            with suppress(DamagedData):  # its writer took it back, or the journal was replaced
                return read_entry(file, self.last.offset).copies < 2
        return False

    def _rest(self) -> int:
        """Bytes behind the last entry that is there by now; others may have appended some."""
        with self.snapshot.fs.open_read(self.snapshot.folder / JOURNAL) as file:
            size, end = file.size(), self.end.offset
            with suppress(DamagedData):  # others replaced the journal or took an entry back
                for recorded in scan(file, self.end):
                    end = recorded.after.offset
            return max(0, size - end)

    def _report(self, where: str, why: str, note: str = "") -> None:
        self.problems.append(Problem("journal", JOURNAL, where, why))
        if note and note not in self.notes:
            self.notes.append(note)


class _References(Struct):
    """Checks that everything an entry refers to was published before it or in it."""

    problems: list[Problem] = field(default_factory=list)
    _commits: set[CommitId] = field(default_factory=set)
    _named: dict[CommitId, None] = field(default_factory=dict)  # before they were published
    _sequences: set[int] = field(default_factory=set)
    # Deployments: the last one by target; by target and number of the entry the one before, and
    # those that name another (what they name, the one before).
    _newest: dict[str, int] = field(default_factory=dict)
    _before: dict[tuple[str, int], int | None] = field(default_factory=dict)
    _wrong: dict[tuple[str, int], tuple[int | None, int | None]] = field(default_factory=dict)
    # By target the ids of those with a stamp; by target and number of the entry the others.
    _stamped: dict[str, set[DeploymentId]] = field(default_factory=dict)
    _bare: dict[tuple[str, int], Deployment] = field(default_factory=dict)

    def take(self, recorded: Recorded) -> None:
        entry, sequence = recorded.entry, recorded.sequence
        self._sequences.add(sequence)
        self._commits.update(commit.id for commit in entry.commits)
        for commit in entry.commits:
            for parent in commit.parents:
                self._exists(parent, f"the parent of {commit.id.short}", sequence)
            for needed in commit.needs:
                self._exists(needed, f"what {commit.id.short} needs", sequence)
        for change in entry.refs:
            if isinstance(change.new, CommitId):
                self._exists(change.new, change.name, sequence)
        for deployment in entry.deployments:
            target = deployment.target
            self._exists(deployment.commit, f"a deployment on {target}", sequence)
            before = self._newest.get(target)
            if deployment.previous != before:
                self._wrong[target, sequence] = deployment.previous, before
            self._newest[target] = sequence
            self._before[target, sequence] = before
            if deployment.stamp is None:
                self._bare[target, sequence] = deployment
            else:
                self._take_stamp(deployment, deployment.stamp, sequence)
        for late in entry.stamps:
            place = late.target, late.sequence
            if (made := self._bare.pop(place, None)) is None:
                what = f"a deployment on {late.target} is stamped that is not recorded without one"
                self._report(late.target, sequence, what)
            else:
                self._take_stamp(made, late.stamp, sequence)
        for id_ in entry.here_again:
            self._exists(id_, "a state that is here again", sequence)
        for evidence in entry.evidence:
            self._exists(evidence.commit, "an annotation", sequence)
        for signature in entry.signatures:
            self._exists(signature.commit, "a signature", sequence)
        for relink in entry.relinks:
            place = relink.target, relink.sequence
            if place not in self._before:
                what = f"a deployment on {relink.target} is corrected that is not recorded"
                self._report(relink.target, sequence, what)
            elif relink.previous == self._before[place]:
                self._wrong.pop(place, None)
            else:
                self._wrong[place] = relink.previous, self._before[place]
        if entry.undoes is not None and entry.undoes >= sequence:
            what = f"operation {entry.undoes}"
            self._report(what, sequence, "it is undone by an operation that is not a later one")
        for retraction in entry.retractions:
            if (retraction.target, retraction.sequence) not in self._before:
                what = f"a deployment on {retraction.target} is retracted that is not recorded"
                self._report(retraction.target, sequence, what)

    def finish(self) -> list[Relink]:
        """Reports deployments whose named predecessor is not the previous one in the journal.

        Returns the corrections of those whose named predecessor is not lost with its entry.
        """
        relinks = []
        for (target, sequence), (named, before) in self._wrong.items():
            names = "none" if named is None else f"operation {named}"
            there = "there is none" if before is None else f"it is operation {before}"
            why = f"the deployments on {target} have a gap: {names} is named as the one before"
            self._report(target, sequence, f"{why}, but {there}")
            if named is None or named in self._sequences:
                relinks.append(Relink(target, sequence, before))
        return relinks

    def _take_stamp(self, made: Deployment, stamp: Stamp, sequence: int) -> None:
        ids, id_ = self._stamped.setdefault(made.target, set()), made.id(stamp)
        if id_ in ids:
            self._report(made.target, sequence, f"the deployment {id_} is recorded twice")
        ids.add(id_)

    def missing(self) -> list[CommitId]:
        """Commits that entries name and no entry holds."""
        return [id_ for id_ in self._named if id_ not in self._commits]

    def _exists(self, commit: CommitId, what: str, sequence: int) -> None:
        if commit not in self._commits:
            self._named[commit] = None
            why = f"commit {commit.short} is not in the repository"
            self._report(what, sequence, why, commit)

    def _report(self, what: str, sequence: int, why: str, *versions: CommitId) -> None:
        where = f"journal entry {sequence}"
        self.problems.append(Problem("reference", what, where, why, versions=versions))
