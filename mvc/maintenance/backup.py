"""Backup and restore: a repository's folder, copied while others commit, and checked as it lies.

The copy is a repository. Bytes of a pack that an entry names never change, so a run goes on with
what another one has copied, also one that was killed. Nothing counts before all of it was read
back: the journal, which says what there is, takes its place last.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from itertools import takewhile
from pathlib import Path

import msgspec
from blake3 import blake3
from msgspec import Struct, field

from mvc.errors import AlreadyARepository, Busy, DamagedData, MvcError, WouldOverwrite, WrongUsage
from mvc.io.clock import Clock
from mvc.io.files import TEMPORARY, FileSystem, ReadFile, WriteFile
from mvc.io.handles import PAGE, aligned
from mvc.limits import MIB
from mvc.maintenance.fsck.fsck import forget_index
from mvc.maintenance.quarantine import QUARANTINE, files_in
from mvc.maintenance.records import damaged_payloads, records_and_gaps
from mvc.maintenance.repair.sources import Untouched, folder_of
from mvc.names import FOLDER, printable
from mvc.repo.checkout.outputs import refuse_store
from mvc.repo.handle import COPY
from mvc.store.format import FORMAT, read_features, write_features
from mvc.store.journal.frames import Recorded
from mvc.store.journal.high_water_mark import HIGH_WATER_MARK
from mvc.store.journal.reader import JournalReader
from mvc.store.packs.reader import PackReader, pack_numbers, pack_path
from mvc.store.snapshot import JOURNAL, PACKS, Snapshot
from mvc.store.store import Store
from mvc.types import Counted, Progress

_LOCK = f"{COPY}.lock"
_LOCKS = ".lock"  # how the names of files end that are locks and nothing else
_OWN = {JOURNAL, FORMAT, HIGH_WATER_MARK, COPY}
"""Files that are not copied as they stand."""
_WAIT = 1.0  # seconds for another run to let go of the copy
_ROUNDS = 4
_LARGEST_MARK = 1 << 16


class BackedUp(Struct, frozen=True):
    """The copy in ``folder``: its ``versions`` and ``operations``, ``bytes`` of journal and packs.

    ``copied``: bytes of those that this run wrote.
    """

    folder: Path
    versions: int
    operations: int
    bytes: int
    copied: int


class _CopyMark(Struct, frozen=True, forbid_unknown_fields=True):
    """What says that a folder is a copy. ``identity``: of the repository; ``restores``: whether it
    is to be one to work in. ``journals``: hashes of the journals that the copy may have, that of
    before and the one that takes its place.
    """

    identity: str
    restores: bool = False
    journals: tuple[str, ...] = ()


def backup(store: Store, place: Path, *, progress: Progress | None = None) -> BackedUp:
    """Makes ``place`` a copy of a repository as it is now, or brings the copy there up to date.

    Until all that is new was read back and checked, ``place`` holds what it held before. Raises
    WouldOverwrite for a repository there that is no copy of this one, or was worked in;
    DamagedData for bytes that are damaged here, or read back otherwise; Busy, StorageFull.
    """
    fs = store.fs
    if fs.realpath(place / FOLDER) == store.folder:
        raise WrongUsage("this is the repository itself", hint="name another folder")
    refuse_store(fs, place)
    return _Copying(store, fs, place, progress=progress).run()


def restore(
    source: Path, place: Path, *, fs: FileSystem | None = None, progress: Progress | None = None
) -> BackedUp:
    """Makes a repository in ``place`` of a copy of one: a backup, or any copy of a ``.mvc`` folder.

    Raises NotARepository, AlreadyARepository, and as ``backup``.
    """
    files = fs or FileSystem()
    folder = folder_of(files, source)
    refuse_store(files, place)
    with closing(Store(Untouched(), Clock(), folder)) as store:
        done = _Copying(store, files, place, restores=True, progress=progress).run()
    for name in (COPY, _LOCK):
        files.unlink(done.folder / FOLDER / name, missing_ok=True)
    return done


class _Copying:
    """One run, from an open store to the ``.mvc`` of a folder."""

    def __init__(
        self,
        store: Store,
        fs: FileSystem,
        place: Path,
        *,
        restores: bool = False,
        progress: Progress | None = None,
    ) -> None:
        self._store, self._fs = store, fs
        self._place, self._folder = place, fs.realpath(place) / FOLDER
        self._restores, self._progress = restores, progress
        self._copied = 0
        self._room = aligned(PAGE + MIB)

    def run(self) -> BackedUp:
        self._check_place()
        self._fs.make_dirs(self._folder / PACKS)
        with self._fs.lock(self._folder / _LOCK, timeout=_WAIT):
            mark = self._check_place()
            for _ in range(_ROUNDS):
                snapshot = self._store.fresh()
                generation = snapshot.generation
                try:
                    done = self._copy(snapshot, mark)
                except MvcError:  # maintenance may have taken away what was read
                    if self._store.fresh().generation == generation:
                        raise
                else:
                    if done is not None:
                        return done
        raise Busy("the repository was rewritten again and again meanwhile", hint="run it again")

    # -- the folder of the copy ------------------------------------------------------------

    def _check_place(self) -> _CopyMark:
        """What is known of the copy that is there. Raises WouldOverwrite, AlreadyARepository."""
        fs, folder, shown = self._fs, self._folder, printable(str(self._place))
        identity = self._store.snapshot.identity.hex()
        new = _CopyMark(identity, self._restores)
        there = fs.stat(folder, follow=False)
        names = fs.list(folder) if there is not None and there.is_dir else [COPY]
        if there is None or all(name.startswith(TEMPORARY) for name in names):  # killed early
            self._write(new)
            return new
        if not there.is_dir or fs.stat(folder / COPY, follow=False) is None:
            if self._restores:
                raise AlreadyARepository(
                    f"there is a repository already: {shown}",
                    hint="restore elsewhere; 'mvc fsck --repair --from BACKUP' takes from "
                    "it what is damaged here",
                )
            raise WouldOverwrite(
                f"{shown} holds a repository that is no backup",
                hint="name another folder; 'mvc push' sends versions to a repository",
            )
        mark = self._read_mark()
        if mark.identity != identity or mark.restores != self._restores:
            kind = "a restore under way" if mark.restores else "a backup"
            whose = "" if mark.identity == identity else " of another repository"
            raise WouldOverwrite(f"{shown} is {kind}{whose}", hint="name another folder")
        if self._has_journal() and self._hash(JOURNAL) not in mark.journals:
            raise WouldOverwrite(
                f"the backup {shown} was changed since it was made",
                hint="somebody worked in it: name a new folder for the next backup",
            )
        return mark

    def _read_mark(self) -> _CopyMark:
        path = self._folder / COPY
        try:
            return msgspec.json.decode(self._fs.read_bytes(path, _LARGEST_MARK), type=_CopyMark)
        except msgspec.DecodeError as error:
            raise DamagedData(
                f"{printable(str(path))} does not say of which repository this is a copy",
                hint="name a new folder for the next backup",
            ) from error

    def _write(self, mark: _CopyMark) -> None:
        self._fs.make_dirs(self._folder)
        self._fs.write_atomic(self._folder / COPY, msgspec.json.encode(mark) + b"\n")

    # -- a round ---------------------------------------------------------------------------

    def _copy(self, snapshot: Snapshot, mark: _CopyMark) -> BackedUp | None:
        """Copies what the snapshot has; None if the journal was replaced meanwhile."""
        fs, folder, generation = self._fs, self._folder, snapshot.generation
        end = snapshot.position.offset  # other threads may move the snapshot on
        guarded = self._ends_before()
        kept = guarded if self._begins_with_copy(snapshot) else {}
        held = _Extent.of(_entries(snapshot, end))
        new = sum(last - min(kept.get(pack, 0), last) for pack, last in held.ends.items())
        self._count = Counted(self._progress, 2 * new)
        for pack, last in held.ends.items():
            self._copy_pack(pack, last, kept=kept.get(pack, 0), guarded=guarded.get(pack, 0))
        fs.sync_dir(folder / PACKS)
        self._verify(_entries(snapshot, end), kept)
        journal, size, hash_ = self._copy_journal(snapshot.folder, end)
        if self._store.fresh().generation != generation:
            return None
        features = read_features(self._store.fs, self._store.folder)
        old = read_features(fs, folder) if fs.stat(folder / FORMAT) is not None else frozenset()
        write_features(fs, folder, features | old)
        self._copy_others()
        journals = (self._hash(JOURNAL),) if self._has_journal() else ()
        mark = _CopyMark(mark.identity, self._restores, (*journals, hash_))
        self._write(mark)
        forget_index(fs, folder)
        fs.sync_dir(folder)
        fs.replace(journal, folder / JOURNAL)
        fs.sync_dir(folder)
        write_features(fs, folder, features)
        self._sweep(held.ends)
        total = size + sum(held.ends.values())
        return BackedUp(
            self._folder.parent, held.versions, held.operations, bytes=total, copied=self._copied
        )

    def _ends_before(self) -> dict[int, int]:
        """Where the packs end of which the copy has all that its journal names."""
        if not self._has_journal():
            return {}
        with closing(JournalReader(self._fs, self._folder)) as journal:
            named = _Extent.of(journal.scan()).ends
        packs = self._folder / PACKS
        return {
            pack: end
            for pack, end in named.items()
            if (found := self._fs.stat(pack_path(packs, pack))) is not None and found.size >= end
        }

    def _has_journal(self) -> bool:
        return self._fs.stat(self._folder / JOURNAL) is not None

    def _begins_with_copy(self, snapshot: Snapshot) -> bool:
        """Whether the journal goes on where that of the copy ends: no maintenance replaced it."""
        if not self._has_journal():
            return False
        ours = self._store.fs.open_read(snapshot.folder / JOURNAL)
        with ours, self._fs.open_read(self._folder / JOURNAL) as theirs:
            size = theirs.size()
            return all(ours.read(at, n) == theirs.read(at, n) for at, n in _blocks(0, size))

    def _copy_pack(self, pack: int, end: int, *, kept: int, guarded: int) -> None:
        """Copies bytes of a pack from ``kept`` on; nothing before ``guarded`` may change."""
        if kept >= end:
            return
        source = pack_path(self._store.folder / PACKS, pack)
        path = pack_path(self._folder / PACKS, pack)
        with (
            self._store.fs.open_read(source) as given,
            self._fs.open_write(path, create=True) as file,
        ):
            border = max(kept, min(guarded, end))
            for at, size in (*_blocks(kept, border), *_blocks(border, end)):
                data = _exactly(given, at, size, self._room)
                if at >= border:
                    self._put(file, at, data)
                elif file.read(at, size) != data:
                    raise DamagedData(
                        f"{path.name} of the backup differs from the repository's at byte {at}",
                        hint=f"'mvc -C {printable(str(self._place))} fsck' says whether the backup "
                        "is damaged; if it is not, it is of another copy of this repository: name "
                        "a new folder",
                    )
                self._count.add(size, "packs")
            if file.size() > max(end, guarded):
                file.truncate(max(end, guarded))
            file.sync()
            file.drop_pages()

    def _put(self, file: WriteFile, at: int, data: memoryview) -> None:
        if file.read(at, len(data)) != data:  # a run that was killed may have written it
            file.write_at(at, data)
            self._copied += len(data)

    def _verify(self, entries: Iterable[Recorded], kept: Mapping[int, int]) -> None:
        """Reads what is new in the packs of the copy, every byte. Raises DamagedData."""
        packs = PackReader(self._fs, self._folder / PACKS)
        for recorded in entries:
            for region in recorded.entry.regions:
                if not region.length or region.end <= kept.get(region.pack, 0):
                    continue
                for at, last, header, why in records_and_gaps(packs, region):
                    if header is None:
                        raise self._damaged(region.pack, at, last, why)
                    for _, error in damaged_payloads(packs, (region.pack, at, header)):
                        raise self._damaged(region.pack, at, last, error.message)
                self._count.add(region.length, "packs")

    def _damaged(self, pack: int, at: int, end: int, why: str) -> DamagedData:
        """The error for bytes of a pack, which says on which side they are damaged."""
        store, name = self._store, pack_path(Path(), pack).name
        there = self._fs.open_read(pack_path(self._folder / PACKS, pack))
        with store.fs.open_read(pack_path(store.folder / PACKS, pack)) as here, there:
            same = all(here.read(i, n) == there.read(i, n) for i, n in _blocks(at, end))
        if same:
            return DamagedData(
                f"{name} is damaged at byte {at}: {why}",
                hint=f"'mvc -C {printable(str(store.folder.parent))} fsck' names what it touches",
            )
        return DamagedData(
            f"{name} reads back otherwise than it was written to {printable(str(self._place))}",
            hint="is the disk there sound? run it again",
        )

    def _copy_journal(self, source: Path, end: int) -> tuple[Path, int, str]:
        """Writes the journal under another name, and reads it back; its path, size and hash."""
        path = self._folder / f"{TEMPORARY}journal"
        hasher = blake3()
        with (
            self._store.fs.open_read(source / JOURNAL) as given,
            self._fs.open_write(path, create=True) as file,
        ):
            file.truncate(0)
            size = min(end, given.size())  # the last entry's second copy may be cut off
            for at, length in _blocks(0, size):
                data = _exactly(given, at, length, self._room)
                hasher.update(data)
                file.write_at(at, data)
            file.sync()
            file.drop_pages()
        self._copied += size
        if self._hash(path.name) != hasher.hexdigest():
            raise DamagedData(
                f"the journal reads back otherwise than it was written to "
                f"{printable(str(self._place))}",
                hint="is the disk there sound? run it again",
            )
        return path, size, hasher.hexdigest()

    def _copy_others(self) -> None:
        """Settings, notes and what a repair put aside; a lock is empty, and not copied."""
        fs, source = self._store.fs, self._store.folder
        for name in fs.list(source):
            there = fs.stat(source / name, follow=False)
            if there is None or not there.is_file or not there.size or name in _OWN:
                continue
            if not name.endswith(_LOCKS) and not name.startswith(TEMPORARY):
                self._copy_file(source / name, self._folder / name)
        quarantined = files_in(fs, source)
        if quarantined:
            self._fs.make_dirs(self._folder / QUARANTINE)
        for path in quarantined:
            self._copy_file(path, self._folder / QUARANTINE / path.name)

    def _copy_file(self, source: Path, path: Path) -> None:
        with self._store.fs.open_read(source, follow=False) as given:
            private = given.identity().permissions & 0o077 == 0

            def write(file: WriteFile) -> None:
                for at, size in _blocks(0, given.size()):
                    file.write(given.read(at, size))

            self._fs.replace_file(path, write, mode=0o600 if private else None, durable=True)

    def _sweep(self, ends: Mapping[int, int]) -> None:
        """Deletes what the journal of the copy does not name any more."""
        fs, packs = self._fs, self._folder / PACKS
        for number in pack_numbers(fs, packs):
            if not ends.get(number):
                fs.unlink(pack_path(packs, number), missing_ok=True)
        for name in fs.list(self._folder):
            if name.startswith(TEMPORARY):
                fs.unlink(self._folder / name, missing_ok=True)

    def _hash(self, name: str) -> str:
        hasher = blake3()
        with self._fs.open_read(self._folder / name) as file:
            for at, size in _blocks(0, file.size()):
                hasher.update(file.read(at, size))
        return hasher.hexdigest()


class _Extent(Struct):
    """What entries name: where each pack ends; how many versions and operations they are."""

    ends: dict[int, int] = field(default_factory=dict)
    versions: int = 0
    operations: int = 0

    @classmethod
    def of(cls, entries: Iterable[Recorded]) -> _Extent:
        """Raises DamagedData where an entry is lost."""
        held = cls()
        for recorded in entries:
            held.operations += 1
            held.versions += len(recorded.entry.commits)
            for region in filter(lambda region: region.length, recorded.entry.regions):
                held.ends[region.pack] = max(held.ends.get(region.pack, 0), region.end)
        return held


def _entries(snapshot: Snapshot, end: int) -> Iterator[Recorded]:
    """Those that begin before byte ``end`` of the journal."""
    return takewhile(lambda recorded: recorded.offset < end, snapshot.entries())


def _blocks(start: int, end: int) -> Iterator[tuple[int, int]]:
    """(byte, length) of the parts in which a range is read."""
    return ((at, min(MIB, end - at)) for at in range(start, end, MIB))


def _exactly(file: ReadFile, at: int, size: int, room: memoryview) -> memoryview:
    """Bytes of a file, in a part of ``room`` from which they can be written directly."""
    data = room[at % PAGE :][:size]
    if (count := file.read_into(at, data)) != size:
        raise DamagedData(
            f"{file.path.name} ends at byte {at + count}, and more of it is named",
            hint="run 'mvc fsck' to list the affected versions",
        )
    return data
