"""Replaces the journal: the only way to move or delete stored objects.

Objects are stored in packs. The journal is a list of entries, which name the places of the objects
in the packs. gc, repack and forget copy the objects to keep to new packs, and write a new journal.
Then they lock the old journal, copy the entries that other processes have appended meanwhile, flush
and verify the new files, and rename the new journal to the name of the old journal. All changes
take effect by this rename. Before the rename, the repository is unchanged. Entries keep their
sequence numbers. Entries that have become empty may be left out.
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
    """Writes a new journal. Use it as a context manager.

    Call ``keep`` for every entry of the old journal, in order, and for every entry that
    ``meanwhile`` yields. Then call ``publish``. Without a call of ``publish``, the repository is
    unchanged. ``packs`` must write only to new packs.
    """

    def __init__(self, snapshot: Snapshot, packs: PackWriter) -> None:
        self._snapshot = snapshot
        self._generation = snapshot.generation
        self._path = snapshot.folder / f"{TEMPORARY}journal-{os.urandom(8).hex()}"
        self._at = GENESIS
        self._copied = GENESIS
        self._last: Recorded | None = None
        self._waiting: list[bytes] = []
        self._size = 0
        self._unproven: list[Region] = []
        self._done = False
        self._is_complete = False  # the new journal has every entry, and the old journal is locked
        self._old = ExitStack()  # locks the old journal from the end of ``meanwhile`` on
        self.packs = packs

    def __enter__(self) -> Self:
        fs = self._snapshot.fs
        with ExitStack() as opened:
            self._file: WriteFile = opened.enter_context(
                fs.open_write(self._path, create=True, exclusive=True)
            )
            # Other processes would delete the file if it were not locked. After the rename, the
            # file is the journal. Then the lock excludes writers until the rename is durable.
            self._lock: FileLock = opened.enter_context(fs.lock(self._path))
            self._check_name()
            self._opened = opened.pop_all()
        return self

    def _check_name(self) -> None:
        """Raises ConcurrentRewrite if another process deleted the file before it was locked."""
        present, ours = self._snapshot.fs.stat(self._path), self._file.identity()
        if present is None or present.inode != ours.inode:
            raise ConcurrentRewrite("another process has deleted the new journal")

    def __exit__(self, *_: object) -> None:
        fs, folder = self._snapshot.fs, self._snapshot.folder
        self._old.close()
        try:
            if not self._done and not self._took_effect():
                with suppress(MvcError, MemoryError):
                    fs.unlink(self._path, missing_ok=True)
                    for number in self.packs.created:
                        fs.unlink(pack_path(folder / PACKS, number), missing_ok=True)
        finally:
            self.packs.close()
            self._opened.close()

    def _took_effect(self) -> bool:
        """Whether the rename succeeded although it reported a failure."""
        with suppress(MvcError):
            present, ours = (
                self._snapshot.fs.stat(self._snapshot.folder / JOURNAL),
                self._file.identity(),
            )
            return present is None or (present.inode, present.device) == (ours.inode, ours.device)
        return True  # unknown: keep the new packs. If the rename failed, gc deletes them later

    def keep(self, recorded: Recorded, entry: Entry | None) -> None:
        """Copies an entry to the new journal. ``recorded``: the entry in the old journal.

        ``entry``: the entry with changes for the new journal, or None to leave it out.
        """
        self._copied, self._last = recorded.after, recorded
        if entry is not None:
            self._append(entry, recorded.sequence)

    def _append(self, entry: Entry, sequence: int) -> None:
        self._unproven += [region for region in entry.regions if region.pack in self.packs.created]
        data, self._at = proven_entry(entry, Position(self._at.offset, sequence, self._at.chain))
        self._waiting.append(data)
        self._size += len(data)
        if self._size > _BUFFER:
            self._flush()

    def _flush(self) -> None:
        self._file.write(self._waiting)
        self._waiting, self._size = [], 0

    def _prove(self) -> None:
        """Raises EncodingFailed unless the new packs have all objects that the new journal names.

        This must be checked now: the old packs, which have the only other copies of these objects,
        will be deleted.
        """
        regions, self._unproven = self._unproven, []
        with closing(PackReader(self._snapshot.fs, self._snapshot.folder / PACKS)) as packs:
            ahead = packs.ahead()
            with proof_of("a record of the new packs"):
                for region in regions:
                    for at, header in ahead.records(region):
                        ahead.raw(region.pack, at, header)

    def _appended(self) -> Iterator[Recorded]:
        """Entries that were appended to the old journal and are not copied yet."""
        snapshot = self._snapshot
        if snapshot.generation != self._generation or not self._has_last():
            raise ConcurrentRewrite("the journal was replaced, or its last entry removed")
        yield from snapshot.entries(self._copied)

    def _has_last(self) -> bool:
        """Whether the entry that was copied last is still in the old journal.

        A process that cannot append an entry completely removes the entry again.
        """
        last = self._last
        if last is None:
            return True
        known = self._snapshot.position.offset >= last.after.offset
        return known and self._snapshot.entry(last.offset).check == last.check

    def meanwhile(self) -> Iterator[Recorded]:
        """Yields entries that other processes append to the old journal. Call ``keep`` for each.

        At the end, locks the old journal until ``publish``, and yields the remaining entries.
        Raises ConcurrentRewrite if another process has replaced the journal.
        """
        snapshot = self._snapshot
        fs, path = snapshot.fs, snapshot.folder / JOURNAL
        # Copy most entries, durably, before other processes have to wait for the lock.
        for _ in range(_ROUNDS):
            snapshot.refresh()
            before = self._copied
            yield from self._appended()
            if self._copied == before:
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
        """Appends the entry ``last`` to the new journal, and replaces the old journal by it.

        Call ``publish`` after ``meanwhile`` has ended. Raises ConcurrentRewrite if another process
        has deleted the new journal.
        """
        if not self._is_complete:
            raise RuntimeError("publish a rewritten journal only after keeping every entry")
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
