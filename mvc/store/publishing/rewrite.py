"""Replacing the journal: the only way in which stored objects are moved or deleted.

Maintenance writes the objects that it moves into new packs, and a new journal beside the old
one, entry by entry. Then, under the old journal's lock, it copies what others have appended
meanwhile, makes everything durable, reads the new packs back and renames the new journal to the
old one's name. That rename is the commit point: an interruption before it leaves the repository
as it was, and files that nothing names. Sequence numbers stay; entries that carry nothing any
more may be left out.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from typing import Self

from mvc.errors import MvcError
from mvc.io.files import TEMPORARY, FileLock, WriteFile
from mvc.store.format import add_features
from mvc.store.journal.entries import Entry, Region
from mvc.store.journal.frames import GENESIS, Position, Recorded
from mvc.store.journal.high_water_mark import write_high_water_mark
from mvc.store.packs.reader import PackReader, pack_path
from mvc.store.proving import proof_of
from mvc.store.publishing.publish import ConcurrentRewrite, heal, proven_entry
from mvc.store.snapshot import JOURNAL, PACKS, Snapshot
from mvc.store.writing.pack_writer import PackWriter

_BUFFER = 1 << 20
_ROUNDS = 4


class Rewrite:
    """A new journal being written. Use as a context manager; only ``publish`` changes anything.

    ``keep`` the old journal's entries in their order, then those that ``meanwhile`` gives, then
    ``publish``. ``packs`` writes to new packs only.
    """

    def __init__(self, snapshot: Snapshot, packs: PackWriter) -> None:
        self._snapshot = snapshot
        self._generation = snapshot.generation
        self._path = snapshot.folder / f"{TEMPORARY}journal-{os.urandom(8).hex()}"
        self._at = GENESIS
        self._seen = GENESIS
        self._last: Recorded | None = None
        self._waiting: list[bytes] = []
        self._size = 0
        self._unproven: list[Region] = []
        self._done = False
        self._is_complete = False  # all that others appended is kept, and none can append more
        self._old = ExitStack()  # holds the old journal's lock from the end of ``meanwhile`` on
        self.packs = packs

    def __enter__(self) -> Self:
        fs = self._snapshot.fs
        with ExitStack() as held:
            self._file: WriteFile = held.enter_context(
                fs.open_write(self._path, create=True, exclusive=True)
            )
            # Other processes delete the file unless this lock is held. After the rename it is the
            # journal's lock, held until the new name is durable.
            self._lock: FileLock = held.enter_context(fs.lock(self._path))
            self._check_name()
            self._held = held.pop_all()
        return self

    def _check_name(self) -> None:
        """Raises ConcurrentRewrite if a sweep deleted the file before it was locked."""
        there, ours = self._snapshot.fs.stat(self._path), self._file.identity()
        if there is None or there.inode != ours.inode:
            raise ConcurrentRewrite("the new journal was swept away")

    def __exit__(self, *_: object) -> None:
        fs, folder = self._snapshot.fs, self._snapshot.folder
        self._old.close()
        try:
            if not self._done and not self._took_effect():
                with suppress(MvcError, MemoryError):
                    fs.unlink(self._path, missing_ok=True)
                    for number in self.packs.made:
                        fs.unlink(pack_path(folder / PACKS, number), missing_ok=True)
        finally:
            self.packs.close()
            self._held.close()

    def _took_effect(self) -> bool:
        """Whether the rename happened although it was reported to have failed."""
        with suppress(MvcError):
            there, ours = (
                self._snapshot.fs.stat(self._snapshot.folder / JOURNAL),
                self._file.identity(),
            )
            return there is None or (there.inode, there.device) == (ours.inode, ours.device)
        return True  # unknown; packs that nothing names are swept later

    def keep(self, recorded: Recorded, entry: Entry | None) -> None:
        """The next entry of the old journal as it will be in the new one; None leaves it out."""
        self._seen, self._last = recorded.after, recorded
        if entry is not None:
            self._append(entry, recorded.sequence)

    def _append(self, entry: Entry, sequence: int) -> None:
        self._unproven += [region for region in entry.regions if region.pack in self.packs.made]
        data, self._at = proven_entry(entry, Position(self._at.offset, sequence, self._at.chain))
        self._waiting.append(data)
        self._size += len(data)
        if self._size > _BUFFER:
            self._flush()

    def _flush(self) -> None:
        self._file.write(self._waiting)
        self._waiting, self._size = [], 0

    def _prove(self) -> None:
        """Raises EncodingFailed unless the new packs hold what the new journal names.

        The packs that it no longer names are the only other copy.
        """
        regions, self._unproven = self._unproven, []
        with closing(PackReader(self._snapshot.fs, self._snapshot.folder / PACKS)) as packs:
            ahead = packs.ahead()
            with proof_of("what was written to the new packs"):
                for region in regions:
                    for at, header in ahead.records(region):
                        ahead.raw(region.pack, at, header)

    def _appended(self) -> Iterator[Recorded]:
        """What was appended to the old journal and is not kept yet."""
        snapshot = self._snapshot
        if snapshot.generation != self._generation or not self._stands():
            raise ConcurrentRewrite("the journal was replaced, or its last entry taken back")
        yield from snapshot.entries(self._seen)

    def _stands(self) -> bool:
        """Whether the last entry that was copied is still there: its writer may have failed."""
        last = self._last
        if last is None:
            return True
        known = self._snapshot.position.offset >= last.after.offset
        return known and self._snapshot.entry(last.offset).check == last.check

    def meanwhile(self) -> Iterator[Recorded]:
        """What others append to the old journal. Keep each entry before the next is asked for.

        The last of them are given under the old journal's lock, which is held from then on.
        Raises ConcurrentRewrite if another process has replaced the journal.
        """
        snapshot = self._snapshot
        fs, path = snapshot.fs, snapshot.folder / JOURNAL
        # Most of it is copied and made durable before others have to wait for the lock.
        for _ in range(_ROUNDS):
            snapshot.refresh()
            before = self._seen
            yield from self._appended()
            if self._seen == before:
                break
        self._flush()
        self._file.sync()
        self.packs.push()
        self._prove()
        self._old.enter_context(fs.lock(path))
        with fs.open_write(path) as old:
            snapshot.refresh()
            if snapshot.generation != self._generation:
                raise ConcurrentRewrite("the journal was replaced")
            snapshot.check_whole()
            heal(snapshot, old)
        yield from self._appended()
        self._is_complete = True

    def publish(self, last: Entry) -> Recorded:
        """Puts the new journal in the old one's place, with ``last`` as its last entry.

        Call it when ``meanwhile`` has given all entries. Raises ConcurrentRewrite if another
        process has deleted the new journal.
        """
        if not self._is_complete:
            raise RuntimeError("a journal is replaced only once all of the old one is kept")
        snapshot = self._snapshot
        fs, path = snapshot.fs, snapshot.folder / JOURNAL
        begin, sequence = self._at.offset, snapshot.position.sequence
        self._append(last, sequence)
        self._flush()
        self.packs.sync()
        self._file.sync()
        self._prove()
        add_features(fs, snapshot.folder, frozenset(self.packs.features))
        self._check_name()
        fs.replace(self._path, path)
        self._done = True
        fs.sync_dir(snapshot.folder)
        self._old.close()
        self._lock.release()
        snapshot.refresh()
        write_high_water_mark(fs, snapshot.folder, snapshot.identity, self._at)
        return Recorded(last, begin, sequence, self._at, copies=2, check=self._at.chain)
