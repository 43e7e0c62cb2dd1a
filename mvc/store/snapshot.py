"""A snapshot: what the repository holds at one moment, journal, index and packs together.

Every question is one ordered look-up in the index and its tail. ``refresh`` takes in what was
appended since, and follows journals and indexes that other processes have replaced.

A version that is stored in full is no snapshot, but a reset point
(``mvc.repo.commit.storage_policy``).
"""

from __future__ import annotations

import threading
from bisect import bisect_left, insort
from collections.abc import Callable, Container, Iterator, Sequence
from itertools import takewhile
from pathlib import Path
from typing import TypeVar

from mvc.errors import DamagedData, HistoryMissing
from mvc.io.files import FileSystem
from mvc.limits import INDEX_BATCH
from mvc.names import NODES
from mvc.store.index import keys
from mvc.store.index.reader import INDEX, IndexReader, IndexThresholds
from mvc.store.journal.entries import Deployment, Entry, Evidence, Weights
from mvc.store.journal.frames import GENESIS, Gap, Position, Recorded
from mvc.store.journal.high_water_mark import read_high_water_mark
from mvc.store.journal.reader import JOURNAL, JournalReader
from mvc.store.journal.signatures import Signature
from mvc.store.journal.stamps import Stamp, node_of
from mvc.store.packs.reader import PACKS, PackReader, Placed, RecordReader

__all__ = ["INDEX", "JOURNAL", "PACKS", "IndexThresholds", "Placed", "Snapshot"]

_T = TypeVar("_T")
_Said = TypeVar("_Said", Evidence, Signature)
_OWN_KEYS = 50_000
_TRIES = 8
_TAKE = (
    "take what is missing from a copy: 'mvc fsck --repair --from BACKUP', or put the whole "
    ".mvc/journal of the copy in its place"
)
LOST = (
    "versions can still be written elsewhere by their ids ('mvc checkout ID -o DIR'); "
    "'mvc fsck --repair --from BACKUP' takes what is lost from a copy of the journal"
)


class Snapshot:
    """Reads a repository's folder. Safe across threads; each open repository has one of its own.

    It has a journal reader, an index reader with its tail, and pack readers; of its own it has
    only what keeps these three in step.
    """

    def __init__(
        self,
        fs: FileSystem,
        folder: Path,
        *,
        writable: bool,
        thresholds: IndexThresholds | None = None,
        ahead: tuple[int, bytes] | None = None,
    ) -> None:
        """Opens ``folder``, brings the index up to date and reads the journal to its end.

        ``ahead``: bytes of the journal that are read, and entries after them that only this
        snapshot sees. Raises DamagedData, HistoryMissing, IoFailed.
        """
        self.fs = fs
        self.folder = folder
        self.writable = writable
        self.packs = PackReader(fs, folder / PACKS)
        self.journal = JournalReader(fs, folder, ahead=ahead)
        self._records = RecordReader(self.packs, self.journal)
        self._index = IndexReader(
            fs,
            folder,
            self.journal,
            self._records,
            writable=writable,
            thresholds=thresholds or IndexThresholds(tail=INDEX_BATCH),
        )
        self._lock = threading.RLock()
        self._own: list[bytes] = []  # keys of what this process has published, sorted
        self._high_water_mark: Position | None = None
        try:
            # Read before the journal is: it must not know more than the journal.
            self._high_water_mark = read_high_water_mark(fs, folder, self.identity)
            self._index.open()
            self._index.index_far_end()
            self.refresh()
        except BaseException:
            self.close()
            raise

    # -- what is known -------------------------------------------------------------------

    @property
    def identity(self) -> bytes:
        """The checksum of the journal's first entry."""
        return self.journal.identity

    @property
    def generation(self) -> int:
        """How often the journal was found replaced."""
        return self.journal.generation

    @property
    def position(self) -> Position:
        """Up to where the journal is known; the next entry goes there."""
        return self._index.position

    @property
    def indexed(self) -> Position:
        """The end of the last entry that the index covers."""
        return self._index.indexed

    @property
    def tip(self) -> Recorded | None:
        """The newest entry, unless the index covers it."""
        return self._index.tip

    @property
    def gaps(self) -> list[Gap]:
        """Lost entries after the indexed ones, as far as they are known."""
        return self._index.gaps

    @property
    def rebuilt(self) -> bool:
        """Whether the index was damaged and is replaced."""
        return self._index.rebuilt

    @property
    def damage(self) -> DamagedData | None:
        """The last damaged record header that was met."""
        return self._records.damage

    def entry(self, offset: int) -> Recorded:
        """The journal entry at byte ``offset``; DamagedData if it is lost."""
        return self.journal.entry(offset)

    def records(self, offset: int) -> list[Placed]:
        """The sound records that the entry at byte ``offset`` made part of the repository."""
        return self._records.of_entry(offset)

    def entries(
        self, start: Position = GENESIS, lost: Callable[[Gap], None] | None = None
    ) -> Iterator[Recorded]:
        """Every entry from ``start`` to ``position``.

        Raises DamagedData where one is lost; with ``lost`` it reports the gap and goes on.
        """
        end = self.position.offset
        if start.offset >= end:
            return iter(())  # the last entry's second copy may be cut off: the file ends before
        return takewhile(lambda recorded: recorded.offset < end, self.journal.scan(start, lost))

    def check_gaps(self, offset: int, what: str) -> None:
        """DamagedData if entries after ``offset`` are lost, which may change ``what``."""
        behind = [gap for gap in self.gaps if gap.start.offset > offset]
        if behind:
            raise DamagedData(
                f"it is not known {what}: {behind[-1].told}, which may have changed it",
                hint=LOST,
            )

    def check_whole(self) -> None:
        """DamagedData if entries are lost: nothing may be published after them.

        Also if the entry that says what HEAD is cannot be read.
        """
        if self.gaps:
            raise DamagedData(
                f"nothing can be written: {self.gaps[0].told}, and what is written now "
                "may contradict it",
                hint=LOST,
            )
        head = self.newest(keys.REF + keys.text("HEAD"))
        for change in head.entry.refs if head is not None else ():
            if change.name == "HEAD" and isinstance(change.new, str):
                self.newest(keys.REF + keys.text(f"heads/{change.new}"))

    def mentions(self, text: bytes, start: int) -> bool:
        """Whether the journal from byte ``start`` up to where it is indexed has these bytes.

        Nothing is parsed: no means no, yes means that an entry there may say so.
        """
        with self._lock:
            return self.journal.mentions(text, start, self.indexed.offset)

    # -- look-ups by key -------------------------------------------------------------------

    def last(self, low: bytes, high: bytes) -> bytes | None:
        def look() -> bytes | None:
            greatest = self._index.last(low, high)
            self._check_last(low, high, greatest)
            return greatest

        return self._guarded(look)

    def first(self, low: bytes, high: bytes) -> bytes | None:
        def look() -> bytes | None:
            least = self._index.first(low, high)
            self._check_first(low, high, least)
            return least

        return self._guarded(look)

    def scan(self, low: bytes, high: bytes) -> list[bytes]:
        def look() -> list[bytes]:
            found = self._index.scan(low, high)
            self._check_own(low, high, found)
            return list(found)

        return self._guarded(look)

    def under(self, prefix: bytes) -> list[bytes]:
        """Keys that begin with ``prefix``, ascending."""
        return self.scan(prefix, keys.after(prefix))

    def newest(self, prefix: bytes) -> Recorded | None:
        """The newest entry with a key under ``prefix`` (prefixes whose next part is the offset).

        DamagedData where a lost entry may be a newer one.
        """

        def look() -> Recorded | None:
            key = self.last(prefix, keys.after(prefix))
            if key is None:
                return None
            self.check_gaps(keys.offset_of(key), _shown(prefix))
            return self.entry(keys.offset_of(key))

        return self.retry_on_rewrite(look)

    def by_sequence(self, sequence: int) -> Recorded | None:
        """The entry with this number, if there is one; DamagedData if it is lost."""
        prefix = keys.OPERATION + keys.number(sequence)

        def look() -> Recorded | None:
            key = self.last(prefix, keys.after(prefix))
            if key is not None:
                return self.entry(keys.offset_of(key))
            for gap in self.gaps:
                if sequence in gap.numbers:
                    self.check_gaps(gap.start.offset - 1, f"what operation {sequence} did")
            return None

        return self.retry_on_rewrite(look)

    def retry_on_rewrite(self, look: Callable[[], _T]) -> _T:
        """Runs a look-up of several steps; again if the journal is replaced under it."""
        while True:
            with self._lock:
                generation = self.generation
                try:
                    found = look()
                except DamagedData:
                    self.refresh()
                    if self.generation == generation:
                        raise
                else:
                    if self.generation == generation:
                        return found

    def _guarded(self, look: Callable[[], _T]) -> _T:
        """Runs a look-up; again after another process has moved the index, or it was replaced."""
        with self._lock:
            for _ in range(_TRIES):
                try:
                    return look()
                except DamagedData:
                    if not self._index.use_newer():
                        break
                    self.refresh()
            self.renew_index()
            return look()

    # -- typed queries: callers outside the store need no keys ---------------------------------
    # Only ``newest``, ``by_sequence``, ``ref_change_at`` and ``refs_under`` look at lost entries.
    # Who asks anything else that one may change calls ``check_gaps``; but not of what was forgotten
    # or given up: versions that are stored come back by id, whatever is lost.

    def newest_ref_change(self, name: str) -> Recorded | None:
        """The newest entry that changed a ref; DamagedData where a lost one may be newer."""
        return self.newest(keys.REF + keys.text(name))

    def ref_change_before(self, name: str, offset: int) -> Recorded | None:
        """The newest entry before byte ``offset`` that changed a ref."""
        low = keys.REF + keys.text(name)
        return self._last_entry(low, low + keys.number(offset))

    def ref_change_at(self, name: str, time_ns: int) -> Recorded | None:
        """The entry that a ref's value at a moment comes from (ns since 1970), by the log of refs.

        DamagedData where a lost entry may have changed it since.
        """
        low = keys.REFLOG + keys.text(name)

        def look() -> Recorded | None:
            key = self.last(low, low + keys.moment(time_ns) + b"\xff" * 8)
            at = -1 if key is None else keys.offset_of(key)
            self.check_gaps(at, f"where {name.removeprefix('heads/')} pointed to")
            return None if key is None else self.entry(at)

        return self.retry_on_rewrite(look)

    def first_ref_change(self, name: str) -> Recorded | None:
        """The earliest entry, by its time, that changed a ref."""
        low = keys.REFLOG + keys.text(name)

        def look() -> Recorded | None:
            key = self.first(low, keys.after(low))
            return None if key is None else self.entry(keys.offset_of(key))

        return self.retry_on_rewrite(look)

    def has_ref(self, name: str) -> bool:
        """Whether an entry has ever changed this ref."""
        low = keys.REFLOG + keys.text(name)
        return self.last(low, keys.after(low)) is not None

    def refs_under(self, prefix: str) -> Iterator[tuple[str, Recorded | None]]:
        """Refs whose names begin with ``prefix``, descending, with the entry of their last change.

        None in place of an entry that is lost, or may not be the last. One look-up per ref: a
        branch with 100,000 changes is not read through.
        """
        low = keys.REF + prefix.encode()
        high = keys.after(low)

        def look() -> tuple[str, Recorded | None] | None:
            key = self.last(low, high)
            if key is None:
                return None
            name = keys.name_of(key)
            try:
                self.check_gaps(keys.offset_of(key), f"where {name} points to")
                return name, self.entry(keys.offset_of(key))
            except DamagedData:
                return name, None

        while (found := self.retry_on_rewrite(look)) is not None:
            yield found
            high = keys.REF + keys.text(found[0])

    def publishing(self, first: bytes, last: bytes | None = None) -> list[Recorded]:
        """Entries that published commits with ids from ``first`` to ``last``, by their id.

        Only the first 8 bytes of ids count; without ``last`` those that begin like ``first``.
        """
        low = keys.COMMIT + first[: keys.ID_BYTES]
        high = keys.after(keys.COMMIT + (first if last is None else last)[: keys.ID_BYTES])
        return self.retry_on_rewrite(
            lambda: [self.entry(keys.offset_of(key)) for key in self.scan(low, high)]
        )

    def commits_between(self, start: int, end: int) -> list[bytes]:
        """First 8 bytes of the ids of commits published by entries from byte ``start`` to ``end``.

        As the index says, also for entries that are lost by now.
        """
        return [
            key[1 : 1 + keys.ID_BYTES]
            for key in self.under(keys.COMMIT)
            if start <= keys.offset_of(key) < end
        ]

    def offsets_between(self, start: int, end: int) -> list[int]:
        """Offsets from ``start`` to ``end`` at which entries stand, or stood, as the index says."""
        tables = (keys.REF, keys.COMMIT, keys.DEPLOYED, keys.RETRACTED, keys.PACK)
        found = {keys.offset_of(key) for table in tables for key in self.under(table)}
        return sorted(offset for offset in found if start <= offset < end)

    def marked(self, mark: bytes) -> list[int]:
        """Offsets of the entries whose versions have content with this mark (8 bytes)."""
        return [keys.offset_of(key) for key in self.under(keys.MARK + mark)]

    def newest_first(self) -> Iterator[Recorded]:
        """Every entry, newest first; one look-up each, also where numbers are left out."""
        high = keys.after(keys.OPERATION)

        def look() -> Recorded | None:
            return self._last_entry(keys.OPERATION, high)

        while (found := self.retry_on_rewrite(look)) is not None:
            yield found
            high = keys.OPERATION + keys.number(found.sequence)

    def from_sequence(self, sequence: int) -> list[Recorded]:
        """The entries with this number and later ones, oldest first."""

        def look() -> list[Recorded]:
            first = keys.OPERATION + keys.number(sequence)
            every = self.scan(first, keys.after(keys.OPERATION))
            return [self.entry(keys.offset_of(key)) for key in every]

        return self.retry_on_rewrite(look)

    def offset_of(self, sequence: int) -> int | None:
        """The byte at which the entry with this number stands, readable or not."""
        low = keys.OPERATION + keys.number(sequence)
        key = self.last(low, keys.after(low))
        return None if key is None else keys.offset_of(key)

    def newest_undo(self, sequence: int) -> Recorded | None:
        """The newest entry that took back the operation with this number."""
        return self.newest(keys.UNDONE + keys.number(sequence))

    def targets(self, *, reports: bool = False) -> list[str]:
        """Every target on which a deployment was recorded, by name; one look-up each.

        With ``reports`` those on which nodes report what they serve, else those without these.
        """
        nodes = keys.TARGET + NODES.encode()
        beyond = (keys.after(nodes), keys.after(keys.TARGET)), (keys.TARGET, nodes)
        names = []
        for low, high in ((nodes, keys.after(nodes)),) if reports else beyond:
            end = high
            while (key := self.last(low, end)) is not None:
                names.append(keys.name_of(key))
                end = keys.TARGET + keys.text(names[-1])
        return names[::-1]

    def newest_deployment(self, target: str) -> Recorded | None:
        """The entry that recorded a deployment on ``target`` last; errors as of ``newest``."""
        return self.newest(keys.TARGET + keys.text(target))

    def next_deployment(self, target: str, time_ns: int) -> int | None:
        """When the first deployment on ``target`` after a moment takes effect, in ns since 1970."""
        low = keys.DEPLOYED + keys.text(target)
        later = self.first(keys.after(low + keys.moment(time_ns)), keys.after(low))
        return None if later is None else keys.moment_of(later)

    def deployment_before(self, target: str, offset: int | None = None) -> int | None:
        """Offset of the last entry before ``offset`` with a deployment on ``target``."""
        low = keys.TARGET + keys.text(target)
        key = self.last(low, keys.after(low) if offset is None else low + keys.number(offset))
        return None if key is None else keys.offset_of(key)

    def deployments_on(self, target: str, start: int = 0) -> list[int]:
        """Offsets, from ``start`` on, of the entries with deployments on ``target``; ascending."""
        prefix = keys.TARGET + keys.text(target)
        found = self.scan(prefix + keys.number(start), keys.after(prefix))
        return [keys.offset_of(key) for key in found]

    def deployments_of(self, commit: bytes) -> list[int]:
        """Offsets of entries with deployments of commits whose ids begin like ``commit``."""
        return [keys.offset_of(key) for key in self.under(keys.LIVE + commit[: keys.ID_BYTES])]

    def newest_relink(self, target: str, sequence: int) -> Recorded | None:
        """The newest correction of the predecessor of the deployment that an entry recorded."""
        low = keys.RELINKED + keys.text(target) + keys.number(sequence)
        return self._last_entry(low, keys.after(low))

    def retractions(self, target: str, sequence: int) -> list[Recorded]:
        """The entries that retracted the deployment that entry ``sequence`` recorded.

        Several only if it was retracted in several repositories.
        """
        return self._entries_under(self.retracting(target, sequence))

    def retracting(self, target: str, sequence: int) -> bytes:
        """The keys of retractions of a deployment begin so; see ``offsets_under``."""
        return keys.RETRACTED + keys.text(target) + keys.number(sequence)

    def telling(self, commit: bytes) -> bytes:
        """The keys of annotations and signatures of a commit begin so."""
        return keys.EVIDENCE + commit[: keys.ID_BYTES]

    def marking(self, commit: bytes) -> bytes:
        """The keys of what forgot a commit's state begin so."""
        return keys.FORGOTTEN + commit[: keys.ID_BYTES]

    def offsets_under(self, prefix: bytes, start: int) -> list[int]:
        """Offsets, from ``start`` on, of the entries that keys under a prefix lead to; ascending.

        The offset is all that follows the prefix in these keys.
        """
        found = self.scan(prefix + keys.number(start), keys.after(prefix))
        return [keys.offset_of(key) for key in found]

    @property
    def node(self) -> bytes:
        """Names this repository in stamps. Its copies have the same one."""
        return node_of(self.entry(0).entry.note)

    def stamp_of(self, recorded: Recorded, made: Deployment) -> Stamp:
        """The stamp of a deployment, in its own entry or in a later one.

        Deployments without any come first on their target, by the numbers of their entries.
        """
        if made.stamp is not None:
            return made.stamp
        low = keys.LATE_STAMP + keys.text(made.target) + keys.number(recorded.sequence)
        late = self._last_entry(low, keys.after(low))
        place = made.target, recorded.sequence
        for each in () if late is None else late.entry.stamps:
            if (each.target, each.sequence) == place:
                return each.stamp
        return Stamp(self.node, recorded.entry.time_ns, recorded.sequence)

    def newest_hybrid(self, target: str, below: int | None = None) -> int | None:
        """The greatest hybrid time of a stamp on a target, or below one; None if it has none."""
        low = keys.STAMPED + keys.text(target)
        key = self.last(low, keys.after(low) if below is None else low + keys.moment(below))
        return None if key is None else keys.moment_of(key)

    def stamped_at(self, target: str, hybrid_ns: int) -> list[tuple[Recorded, Stamp]]:
        """The deployments on a target with this hybrid time: their entries and stamps."""
        low = keys.STAMPED + keys.text(target) + keys.moment(hybrid_ns)
        rows = [self.stamped_by(key, target) for key in self.under(low)]
        return [row for row in rows if row[1].hybrid_ns == hybrid_ns]

    def newest_stamped(self, target: str, count: int) -> list[bytes]:
        """Keys of ``count`` deployments on a target with the greatest hybrid times, ascending.

        More where others have the time of the last of them.
        """
        low = keys.STAMPED + keys.text(target)
        newest, span = self.newest_hybrid(target), 1 << 30
        if newest is None:
            return []
        while True:
            start = low + keys.moment(newest - span)
            found = self.scan(start, keys.after(low))
            if len(found) >= count or span > newest:
                break
            span *= 8
        if len(found) > count:
            last = keys.without_offset(found[-count])
            found = found[bisect_left(found, last) :]
        return list(found)

    def stamped_by(self, key: bytes, target: str) -> tuple[Recorded, Stamp]:
        """The entry and the stamp of the deployment to which a key leads. Raises DamagedData.

        The stamp is another one than the key's where a later entry gave it.
        """
        recorded, hybrid_ns = self.entry(keys.offset_of(key)), keys.moment_of(key)
        for late in recorded.entry.stamps:
            if late.target == target and late.stamp.hybrid_ns == hybrid_ns:
                there = self.by_sequence(late.sequence)
                if there is not None:
                    return there, late.stamp
        for made in recorded.entry.deployments:
            if made.target == target:
                return recorded, self.stamp_of(recorded, made)
        raise DamagedData("the index and the journal differ on the stamps of deployments")

    def _last_entry(self, low: bytes, high: bytes) -> Recorded | None:
        """The entry that the greatest key of a range leads to."""
        key = self.last(low, high)
        return None if key is None else self.entry(keys.offset_of(key))

    def _entries_under(self, prefix: bytes) -> list[Recorded]:
        """The entries that keys under ``prefix`` lead to, oldest first."""

        def look() -> list[Recorded]:
            offsets = {keys.offset_of(key) for key in self.under(prefix)}
            return [self.entry(offset) for offset in sorted(offsets)]

        return self.retry_on_rewrite(look)

    def forgotten(self, commit: bytes) -> Recorded | None:
        """The entry that forgot a commit's state, if it is not here again.

        The last one that did so by name; else the last by rule, if no later one has it back.
        """

        def look() -> Recorded | None:
            by_rule, again = None, False
            for key in reversed(self.under(keys.FORGOTTEN + commit[:8])):
                recorded = self.entry(keys.offset_of(key))
                again = again or (by_rule is None and commit in recorded.entry.here_again)
                for each in recorded.entry.forgotten:
                    if each.commit == commit and each.named:
                        return recorded
                    if each.commit == commit and not again:
                        by_rule = by_rule or recorded
            return by_rule

        return self.retry_on_rewrite(look)

    def forgetting(self, commit: bytes = b"") -> list[Recorded]:
        """Every entry that forgot states, has them again or says of which no byte is left.

        Oldest first; of ``commit``, those that may be about it.
        """
        return self._entries_under(keys.FORGOTTEN + commit[:8])

    def weights(self, commit: bytes | None = None) -> Sequence[tuple[Recorded, Weights]]:
        """What became of a commit's weights, oldest first; of every commit's if it is None."""
        prefix = keys.WEIGHTS + (b"" if commit is None else commit[:8])
        return [
            (recorded, each)
            for recorded in self._entries_under(prefix)
            for each in recorded.entry.weights
            if commit is None or each.commit == commit
        ]

    def has_evidence(self) -> bool:
        """Whether any version was ever annotated or signed; one look-up."""
        return self.last(keys.EVIDENCE, keys.after(keys.EVIDENCE)) is not None

    def evidence(self, commit: bytes) -> list[tuple[Recorded, Evidence]]:
        """The annotations of a commit, oldest first, also those that were undone."""
        return self._said_of(commit, lambda entry: entry.evidence)

    def signatures(self, commit: bytes) -> list[tuple[Recorded, Signature]]:
        """The signatures of a commit and of its deployments, oldest first."""
        return self._said_of(commit, lambda entry: entry.signatures)

    def _said_of(
        self, commit: bytes, rows: Callable[[Entry], Sequence[_Said]]
    ) -> list[tuple[Recorded, _Said]]:
        return [
            (recorded, each)
            for recorded in self._entries_under(self.telling(commit))
            for each in rows(recorded.entry)
            if each.commit == commit
        ]

    # -- what this process has published ---------------------------------------------------

    def note_published(self, recorded: Recorded) -> None:
        """Remembers an entry that this process made durable: no look-up may miss it."""
        with self._lock:
            if len(self._own) > _OWN_KEYS:
                newest = sorted(self._own, key=keys.offset_of)[_OWN_KEYS // 2 :]
                self._own = sorted(newest)
            for key in keys.entry_keys(recorded):
                insort(self._own, key)

    def _check_own(self, low: bytes, high: bytes, found: Container[bytes]) -> None:
        """Raises DamagedData where a look-up lacks keys that this process has published."""
        begin, end = bisect_left(self._own, low), bisect_left(self._own, high)
        if any(self._own[i] not in found for i in range(begin, end)):
            raise DamagedData("the index lacks what this process has published")

    def _check_last(self, low: bytes, high: bytes, found: bytes | None) -> None:
        """The same for the greatest key of a range."""
        at = bisect_left(self._own, high) - 1
        if at >= 0 and self._own[at] >= low and (found is None or found < self._own[at]):
            raise DamagedData("the index lacks what this process has published")

    def _check_first(self, low: bytes, high: bytes, found: bytes | None) -> None:
        """The same for the least key of a range."""
        at = bisect_left(self._own, low)
        own = self._own[at] if at < len(self._own) else high
        if own < high and (found is None or found > own):
            raise DamagedData("the index lacks what this process has published")

    # -- keeping up ------------------------------------------------------------------------

    def refresh(self) -> None:
        """Takes in what other processes, or this one, have appended since.

        If the journal was replaced, ``generation`` goes up and everything is read again.
        Raises HistoryMissing if the journal ends before an entry that was acknowledged.
        """
        with self._lock:
            while True:
                if self.journal.is_replaced():
                    self._reopen()
                self._index.follow_index()
                self._catch_up()
                if self.journal.fixed is not None:
                    return  # others may have indexed more
                superseded = self._index.superseded
                known = None if superseded is None else superseded.position
                beyond = [
                    position
                    for position in (known, self._high_water_mark)
                    if position is not None and position.sequence > self.position.sequence
                ]
                if not beyond:
                    return
                if not self.journal.is_replaced():
                    for position in beyond:
                        self._lacks(position)
                    return

    def _lacks(self, reached: Position) -> None:
        """Handles a journal that was known to go on up to ``reached``.

        If the bytes are still there, the last entries are damaged, and that is a gap like any
        other. If the file ends before, it was cut off or comes from an older copy.
        """
        if self.journal.size() < reached.offset or reached.offset <= self.position.offset:
            raise _missing(self.position, reached)
        gap = Gap(self.position, reached)
        if not any(known.start == gap.start for known in self.gaps):
            self.gaps.append(gap)

    def _reopen(self) -> None:
        """Goes over to the journal that maintenance has put in the old one's place."""
        self.journal.reopen()
        self._high_water_mark = None
        self._records.damage = None
        self._records.forget()
        self._own.clear()  # offsets are others in the new journal
        self._index.follow_journal()

    def _catch_up(self) -> None:
        if any(self.journal.is_repaired(gap) for gap in self.gaps):
            self._start_over()
        if self.tip is not None:
            if not self.journal.has(self.tip):
                self._go_back(self.tip)
            elif self.journal.size() < self.position.offset:
                return  # the newest entry's second copy was cut off, or is being written
        self._index.read_on()

    def _go_back(self, newest: Recorded) -> None:
        """Starts over after the newest entry was removed by its own writer, which failed."""
        if newest.after.offset <= self.journal.durable:
            raise HistoryMissing(
                f"the journal lacks entry {newest.sequence} (byte {newest.offset}), which "
                "was acknowledged",
                hint=_TAKE,
            )
        self._start_over()

    def _start_over(self) -> None:
        """Reads again what the index does not cover."""
        self.journal.forget()
        self._records.forget()
        self._index.restart()

    # -- maintaining the index -------------------------------------------------------------

    def renew_index(self) -> None:
        """Replaces an index that is damaged."""
        with self._lock:
            self._index.renew()
            self.refresh()

    def rebuild_index(self) -> None:
        """Replaces the index, damaged or not; MvcError if the folder cannot be written."""
        with self._lock:
            self._index.rebuild()
            self.refresh()
            self.index_tail(force=True)

    def index_tail(self, *, force: bool = False) -> None:
        """Moves the tail into the index if it is long enough; with ``force`` in any case.

        The journal is flushed before: the index must never cover an entry that a power loss
        could still remove.
        """
        with self._lock:
            end = self._index.flushed_end_to_index(force=force)
            if end is None:
                return
            try:
                self._index.index_entries(end)
                self.refresh()
            except DamagedData:
                self.renew_index()

    def close(self) -> None:
        self._index.close()
        self.packs.close()
        self.journal.close()


def _missing(there: Position, reached: Position) -> HistoryMissing:
    return HistoryMissing(
        f"the journal ends before operation {there.sequence} (byte {there.offset}), but "
        f"operations up to {reached.sequence - 1} were acknowledged",
        hint=f"{_TAKE}; 'mvc fsck --rebuild-index' accepts the loss",
    )


def _shown(prefix: bytes) -> str:
    """What a look-up under ``prefix`` is about, for a message."""
    if prefix[:1] in {keys.REF, keys.TARGET, keys.RETRACTED}:
        name = prefix[1:].partition(b"\0")[0].decode("utf-8", "replace")
        if prefix[:1] == keys.REF:
            return f"where {name.removeprefix('heads/').removeprefix('tags/')} points to"
        return f"what was recorded on {name}"
    return "what the journal says last"
