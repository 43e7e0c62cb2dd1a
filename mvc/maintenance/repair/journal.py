"""Repairs the files that are needed to open a repository: the journal and the file ``format``.

The journal has one entry for each operation. Each entry is written twice, and has a hash of all
previous entries. A damaged copy of an entry is rewritten from the other copy. If both copies are
damaged, the entry is taken from the journal of a backup, if the checksum and the hash of this entry
are right. The file ``format`` lists features that a reader must support. If the file is damaged,
these features are collected from the stored data.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from mvc.errors import DamagedData, MvcError
from mvc.io.clock import Clock
from mvc.io.files import FileSystem, ReadFile, WriteFile
from mvc.maintenance.report import Healed
from mvc.model.commit import Commit
from mvc.model.manifest import Manifest
from mvc.store.format import FORMAT, KNOWN, add_features, format_line, parse_format
from mvc.store.journal.entries import Region
from mvc.store.journal.frames import (
    GENESIS,
    OVERHEAD,
    Recorded,
    complete,
    frame_of,
    frames_behind,
    read_entry,
    scan,
)
from mvc.store.journal.high_water_mark import read_high_water_mark
from mvc.store.packs.reader import PackReader
from mvc.store.recovery.decode import coding_features
from mvc.store.snapshot import JOURNAL, PACKS
from mvc.store.store import Store

_MAX_FORMAT = 4096
_NO_COPY = "restore the entry from a copy of the same journal: mvc fsck --repair --from BACKUP"
_OTHER_JOURNAL = (
    "the journal of --from does not continue this journal; --from must name a copy of this "
    "repository with the lost entry and the entry after it, made since the last gc or repack"
)


def before_opening(fs: FileSystem, folder: Path, other: Path | None = None) -> list[Healed]:
    """Repairs journal and ``format`` of the repository folder ``folder``, in place.

    ``other``: the folder of a backup. Raises UnsupportedFormat if this mvc is too old for the
    repository. Raises DamagedData if both copies of an entry are damaged and ``other`` does not
    have the entry. Then nothing after this entry is changed.
    """
    path = folder / FORMAT
    known = None if fs.stat(path) is None else fs.read_bytes(path, _MAX_FORMAT)
    try:
        parse_format(known or b"")
        sound = True
    except DamagedData:
        sound = False
    if fs.stat(folder / JOURNAL) is None:
        raise DamagedData(
            "the repository has no journal",
            hint="restore .mvc/journal from a copy: it lists all versions of the repository",
        )
    with fs.lock(folder / JOURNAL):
        with fs.open_write(folder / JOURNAL) as file:
            work = _Journal(fs, folder, file, other)
            healed = list(work.heal())
        if not sound:
            if not work.entries:
                raise DamagedData(
                    "neither the journal nor the format file of the repository can be read",
                    hint="restore .mvc/journal from a copy: it lists all versions of the "
                    "repository",
                )
            fs.write_atomic(path, format_line(_stages(fs, folder, work.regions)))
    if not sound:
        features = work.features | _of_manifests(fs, folder, work.commits)
        with fs.lock(folder / JOURNAL):
            add_features(fs, folder, features)
        healed.append(Healed("format", FORMAT, "journal and packs"))
    return healed


def _stages(fs: FileSystem, folder: Path, regions: Iterable[Region]) -> frozenset[str]:
    """The format features that a reader needs to decode the readable records of ``regions``."""
    packs = PackReader(fs, folder / PACKS)
    texts = {
        member.coding.text
        for region in regions
        for _, header in packs.sound_records(region, lambda _: None)
        for member in header.members
    }
    return frozenset[str]().union(*map(coding_features, texts))


def _of_manifests(fs: FileSystem, folder: Path, commits: Iterable[Commit]) -> frozenset[str]:
    """The format features that the readable manifests (lists of files) of these versions need.

    If the repository cannot be opened, returns all known features, so that none is missing.
    """
    features = frozenset[str]()
    try:
        store = Store(fs, Clock(), folder)
    except MvcError:
        return KNOWN
    for commit in commits:
        with suppress(DamagedData):
            features |= Manifest.decode(store.recovery.manifest(commit.manifest)).features
    store.close()
    return features


class _Journal:
    """One pass over a journal that the caller has locked and opened for writing."""

    def __init__(self, fs: FileSystem, folder: Path, file: WriteFile, other: Path | None) -> None:
        self._fs = fs
        self._folder = folder
        self._file = file
        self._other: ReadFile | None = None
        if other is not None and fs.stat(other / JOURNAL) is not None:
            self._other = fs.open_read(other / JOURNAL)
        self._at = GENESIS
        self.entries = 0
        self.regions: list[Region] = []
        self.commits: list[Commit] = []
        self.features = frozenset[str]()

    def heal(self) -> Iterator[Healed]:
        while True:
            try:
                for recorded in scan(self._file, self._at):
                    yield from self._passed(recorded)
            except DamagedData as error:
                frame = self._restored()
                if frame is None:
                    hint = _NO_COPY if self._other is None else _OTHER_JOURNAL
                    raise DamagedData(error.message, hint=hint) from error
                yield self._written(frame)
                continue
            end = self._lost_end()
            if end is None:
                return
            yield self._written(end)

    def _passed(self, recorded: Recorded) -> Iterator[Healed]:
        """Moves past a readable entry. If one of its copies is damaged, rewrites this copy."""
        entry = recorded.entry
        self.entries += 1
        self.regions += entry.regions
        self.commits += entry.commits
        self.features |= entry.features
        if recorded.copies < 2:
            cut_off = recorded.after.offset > self._file.size()
            complete(self._file, recorded)
            self._file.sync()
            if not cut_off:
                yield Healed("journal", f"entry {recorded.sequence}", "its other copy")
        self._at = recorded.after

    def _written(self, frame: bytes) -> Healed:
        """Writes an entry of the other repository as both copies of a damaged entry."""
        for begin in (self._at.offset, self._at.offset + len(frame)):
            self._file.write_at(begin, frame)
            self._file.sync()
        sequence = read_entry(self._file, self._at.offset).sequence
        return Healed("journal", f"entry {sequence}", "the other repository")

    def _restored(self) -> bytes | None:
        """The encoded entry of the other journal that replaces the damaged entry here.

        None if no readable entry follows here, or if the other journal does not have the damaged
        entry and the readable entry that follows.
        """
        frame_, other, at = self._other_frame(), self._other, self._at
        if frame_ is None or other is None:
            return None
        rest = self._file.read(at.offset, self._file.size() - at.offset)
        for begin, (payload, sequence, _, _) in frames_behind(rest, 1):
            if sequence >= at.sequence:
                # A frame has the hash of all previous frames. So if the other journal has the next
                # undamaged frame of this journal, both journals are equal up to this frame.
                follows = rest[begin : begin + OVERHEAD + len(payload)]
                same = other.read(at.offset + begin, len(follows)) == follows
                return frame_ if same else None
        return None

    def _other_frame(self) -> bytes | None:
        """The undamaged frame (encoded entry) at the same offset of the other journal.

        None if the hash in the frame is not the hash of this journal's previous entries.
        """
        other, at = self._other, self._at
        if other is None or other.size() <= at.offset:
            return None
        with suppress(DamagedData):
            half = read_entry(other, at.offset).half
            for begin in (at.offset, at.offset + half):
                frame = frame_of(data := other.read(begin, half))
                if frame is not None and frame[1] >= at.sequence and frame[2] == at.chain:
                    return data
        return None

    def _lost_end(self) -> bytes | None:
        """The next frame of the other journal, if the end of this journal is lost; else None.

        The end is lost if the journal is shorter than its high-water mark, the recorded largest
        length.
        """
        at, other = self._at, self._other
        if other is None or not at.offset:
            return None
        first = read_entry(self._file, 0)
        reached = read_high_water_mark(self._fs, self._folder, first.check)
        if reached is None or reached.sequence <= at.sequence or other.size() < reached.offset:
            return None
        # The other journal must have the last entry that this journal had.
        chain = other.read(reached.offset - len(reached.chain), len(reached.chain))
        return self._other_frame() if chain == reached.chain else None
