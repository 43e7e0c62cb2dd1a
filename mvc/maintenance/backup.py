"""Backup and restore: copy the folder of a repository, and check the copy.

Other processes may commit during a backup. The copy is a repository, too. A repository stores data
in files, the *packs*. Its journal has one entry for each operation. The entry names the bytes that
the operation wrote to packs. These bytes never change. So a second backup to the same folder writes
only missing bytes, even if the first was killed. mvc reads all new bytes back before it replaces
the journal of the copy. Until then, the copy has its previous state.
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
_LOCKS = ".lock"  # names of lock files end with this
_OWN = {JOURNAL, FORMAT, HIGH_WATER_MARK, COPY}
"""Files that ``_copy_small_files`` leaves out: ``_copy`` writes or deletes them."""
_WAIT = 1.0  # seconds to wait for another backup to the same folder
_ROUNDS = 4  # number of tries, because gc or repack may replace the journal during a try
_LARGEST_MARK = 1 << 16


class BackedUp(Struct, frozen=True):
    """The copy in ``folder``.

    ``versions``, ``operations``: how many versions and operations the journal of the copy records.
    ``bytes``: the size of the copy's journal and packs. ``copied``: the number of bytes that this
    backup wrote.
    """

    folder: Path
    versions: int
    operations: int
    bytes: int
    copied: int


class _CopyMark(Struct, frozen=True, forbid_unknown_fields=True):
    """Marks a folder as a copy of the repository with the id ``identity``.

    ``restores``: whether ``restore`` makes the copy. ``journals``: hashes of the copy's journal
    before and after the newest backup. A copy with another journal was changed after the backup.
    """

    identity: str
    restores: bool = False
    journals: tuple[str, ...] = ()


def backup(store: Store, target: Path, *, progress: Progress | None = None) -> BackedUp:
    """Copies a repository to ``target``, or updates an existing copy.

    ``target`` has its previous state until all new bytes were read back and checked. Raises
    WouldOverwrite if ``target`` has another repository, or a copy that was changed. Raises
    DamagedData if bytes of the repository or of the copy are damaged. Raises Busy, StorageFull.
    """
    fs = store.fs
    if fs.realpath(target / FOLDER) == store.folder:
        raise WrongUsage("this is the repository itself", hint="use another folder")
    refuse_store(fs, target)
    return _Copying(store, fs, target, progress=progress).run()


def restore(
    source: Path, target: Path, *, fs: FileSystem | None = None, progress: Progress | None = None
) -> BackedUp:
    """Creates a repository in ``target`` from a backup, or from any copy of a ``.mvc`` folder.

    Raises NotARepository, AlreadyARepository, and the errors of ``backup``.
    """
    files = fs or FileSystem()
    folder = folder_of(files, source)
    refuse_store(files, target)
    with closing(Store(Untouched(), Clock(), folder)) as store:
        copy = _Copying(store, files, target, restores=True, progress=progress).run()
    for name in (COPY, _LOCK):
        files.unlink(copy.folder / FOLDER / name, missing_ok=True)
    return copy


class _Copying:
    """One backup or restore: copies an open store to the folder ``.mvc`` in ``target``."""

    def __init__(
        self,
        store: Store,
        fs: FileSystem,
        target: Path,
        *,
        restores: bool = False,
        progress: Progress | None = None,
    ) -> None:
        self._store, self._fs = store, fs
        self._target, self._folder = target, fs.realpath(target) / FOLDER
        self._restores, self._progress = restores, progress
        self._copied = 0
        self._buffer = aligned(PAGE + MIB)

    def run(self) -> BackedUp:
        self._check_target()
        self._fs.make_dirs(self._folder / PACKS)
        with self._fs.lock(self._folder / _LOCK, timeout=_WAIT):
            mark = self._check_target()
            for _ in range(_ROUNDS):
                snapshot = self._store.fresh()
                generation = snapshot.generation
                try:
                    done = self._copy(snapshot, mark)
                except MvcError:  # gc or repack may have deleted bytes while they were read
                    if self._store.fresh().generation == generation:
                        raise
                else:
                    if done is not None:
                        return done
        raise Busy(
            "during every try, an operation such as gc or repack rewrote the repository",
            hint="run the command again",
        )

    # -- the folder of the copy ------------------------------------------------------------

    def _check_target(self) -> _CopyMark:
        """Returns the mark of the copy. In an empty folder, writes a new mark first.

        Raises WouldOverwrite, AlreadyARepository.
        """
        fs, folder, shown = self._fs, self._folder, printable(str(self._target))
        identity = self._store.snapshot.identity.hex()
        new = _CopyMark(identity, self._restores)
        existing = fs.stat(folder, follow=False)
        names = fs.list(folder) if existing is not None and existing.is_dir else [COPY]
        # A first backup that was killed early leaves only temporary files.
        if existing is None or all(name.startswith(TEMPORARY) for name in names):
            self._write(new)
            return new
        if not existing.is_dir or fs.stat(folder / COPY, follow=False) is None:
            if self._restores:
                raise AlreadyARepository(
                    f"a repository exists already: {shown}",
                    hint="restore to another folder, or run 'mvc fsck --repair --from BACKUP' to "
                    "repair the existing repository",
                )
            raise WouldOverwrite(
                f"{shown} has a repository that is not a backup",
                hint="use another folder; 'mvc push' sends versions to a repository",
            )
        mark = self._read_mark()
        if mark.identity != identity or mark.restores != self._restores:
            kind = "an unfinished restore" if mark.restores else "a backup"
            whose = "" if mark.identity == identity else " of another repository"
            raise WouldOverwrite(f"{shown} is {kind}{whose}", hint="use another folder")
        if self._has_journal() and self._hash(JOURNAL) not in mark.journals:
            raise WouldOverwrite(
                f"the backup {shown} was changed after it was made",
                hint="use a new folder for the next backup: this one may have new commits",
            )
        return mark

    def _read_mark(self) -> _CopyMark:
        path = self._folder / COPY
        try:
            return msgspec.json.decode(self._fs.read_bytes(path, _LARGEST_MARK), type=_CopyMark)
        except msgspec.DecodeError as error:
            raise DamagedData(
                f"{printable(str(path))} does not name the repository of this copy",
                hint="use a new folder for the next backup",
            ) from error

    def _write(self, mark: _CopyMark) -> None:
        self._fs.make_dirs(self._folder)
        self._fs.write_atomic(self._folder / COPY, msgspec.json.encode(mark) + b"\n")

    # -- a round ---------------------------------------------------------------------------

    def _copy(self, snapshot: Snapshot, mark: _CopyMark) -> BackedUp | None:
        """Copies the content of a snapshot. Returns None if gc or repack replaced the journal
        meanwhile.
        """
        fs, folder, generation = self._fs, self._folder, snapshot.generation
        end = snapshot.position.offset  # another thread may refresh the snapshot after this line
        guarded = self._ends_before()
        copied = guarded if self._begins_with_copy(snapshot) else {}
        extent = _Extent.of(_entries(snapshot, end))
        new = sum(last - min(copied.get(pack, 0), last) for pack, last in extent.ends.items())
        self._count = Counted(self._progress, 2 * new)
        for pack, last in extent.ends.items():
            self._copy_pack(pack, last, copied=copied.get(pack, 0), guarded=guarded.get(pack, 0))
        fs.sync_dir(folder / PACKS)
        self._verify(_entries(snapshot, end), copied)
        journal, size, hash_ = self._copy_journal(snapshot.folder, end)
        if self._store.fresh().generation != generation:
            return None
        features = read_features(self._store.fs, self._store.folder)
        old = read_features(fs, folder) if fs.stat(folder / FORMAT) is not None else frozenset()
        write_features(fs, folder, features | old)
        self._copy_small_files()
        journals = (self._hash(JOURNAL),) if self._has_journal() else ()
        mark = _CopyMark(mark.identity, self._restores, (*journals, hash_))
        self._write(mark)
        forget_index(fs, folder)
        fs.sync_dir(folder)
        fs.replace(journal, folder / JOURNAL)
        fs.sync_dir(folder)
        write_features(fs, folder, features)
        self._sweep(extent.ends)
        total = size + sum(extent.ends.values())
        return BackedUp(
            self._folder.parent,
            extent.versions,
            extent.operations,
            bytes=total,
            copied=self._copied,
        )

    def _ends_before(self) -> dict[int, int]:
        """Maps each pack to the end of the bytes that the copy's journal names.

        Leaves out a pack whose file in the copy ends before this position.
        """
        if not self._has_journal():
            return {}
        with closing(JournalReader(self._fs, self._folder)) as journal:
            named = _Extent.of(journal.scan()).ends
        packs = self._folder / PACKS
        return {
            pack: end
            for pack, end in named.items()
            if (info := self._fs.stat(pack_path(packs, pack))) is not None and info.size >= end
        }

    def _has_journal(self) -> bool:
        return self._fs.stat(self._folder / JOURNAL) is not None

    def _begins_with_copy(self, snapshot: Snapshot) -> bool:
        """Whether the repository's journal begins with all bytes of the copy's journal.

        If so, neither gc nor repack has replaced the journal since the copy was made.
        """
        if not self._has_journal():
            return False
        ours = self._store.fs.open_read(snapshot.folder / JOURNAL)
        with ours, self._fs.open_read(self._folder / JOURNAL) as theirs:
            size = theirs.size()
            return all(ours.read(at, n) == theirs.read(at, n) for at, n in _blocks(0, size))

    def _copy_pack(self, pack: int, end: int, *, copied: int, guarded: int) -> None:
        """Copies the bytes of a pack from position ``copied`` to ``end``.

        The copy's journal names the bytes before ``guarded``. These bytes are compared with the
        source and not overwritten. Raises DamagedData if a byte differs.
        """
        if copied >= end:
            return
        source = pack_path(self._store.folder / PACKS, pack)
        path = pack_path(self._folder / PACKS, pack)
        with (
            self._store.fs.open_read(source) as source_file,
            self._fs.open_write(path, create=True) as file,
        ):
            border = max(copied, min(guarded, end))
            for at, size in (*_blocks(copied, border), *_blocks(border, end)):
                data = _exactly(source_file, at, size, self._buffer)
                if at >= border:
                    self._put(file, at, data)
                elif file.read(at, size) != data:
                    raise DamagedData(
                        f"{path.name} of the backup differs from the repository's at byte {at}",
                        hint=f"run 'mvc -C {printable(str(self._target))} fsck': if the backup is "
                        "not damaged, it is a backup of another copy of this repository; use a "
                        "new folder",
                    )
                self._count.add(size, "packs")
            if file.size() > max(end, guarded):
                file.truncate(max(end, guarded))
            file.sync()
            file.drop_pages()

    def _put(self, file: WriteFile, at: int, data: memoryview) -> None:
        if file.read(at, len(data)) != data:  # a killed backup may have written ``data``
            file.write_at(at, data)
            self._copied += len(data)

    def _verify(self, entries: Iterable[Recorded], copied: Mapping[int, int]) -> None:
        """Reads and checks every new byte in the packs of the copy. Raises DamagedData."""
        packs = PackReader(self._fs, self._folder / PACKS)
        for recorded in entries:
            for region in recorded.entry.regions:
                if not region.length or region.end <= copied.get(region.pack, 0):
                    continue
                for at, last, header, why in records_and_gaps(packs, region):
                    if header is None:
                        raise self._damaged(region.pack, at, last, why)
                    for _, error in damaged_payloads(packs, (region.pack, at, header)):
                        raise self._damaged(region.pack, at, last, error.message)
                self._count.add(region.length, "packs")

    def _damaged(self, pack: int, at: int, end: int, why: str) -> DamagedData:
        """The error for damaged bytes of a pack. The error names the damaged file."""
        store, name = self._store, pack_path(Path(), pack).name
        copy = self._fs.open_read(pack_path(self._folder / PACKS, pack))
        with store.fs.open_read(pack_path(store.folder / PACKS, pack)) as original, copy:
            same = all(original.read(i, n) == copy.read(i, n) for i, n in _blocks(at, end))
        if same:
            return DamagedData(
                f"{name} is damaged at byte {at}: {why}",
                hint=f"run 'mvc -C {printable(str(store.folder.parent))} fsck' to list the "
                "affected versions",
            )
        return DamagedData(
            f"{name} reads back with other bytes than were written to "
            f"{printable(str(self._target))}",
            hint="check the disk of the backup, then run the backup again",
        )

    def _copy_journal(self, source: Path, end: int) -> tuple[Path, int, str]:
        """Writes the journal under a temporary name and reads it back.

        Returns the path, the size and the hash.
        """
        path = self._folder / f"{TEMPORARY}journal"
        hasher = blake3()
        with (
            self._store.fs.open_read(source / JOURNAL) as source_file,
            self._fs.open_write(path, create=True) as file,
        ):
            file.truncate(0)
            # Each entry is stored twice. The second copy of the last entry may be incomplete.
            size = min(end, source_file.size())
            for at, length in _blocks(0, size):
                data = _exactly(source_file, at, length, self._buffer)
                hasher.update(data)
                file.write_at(at, data)
            file.sync()
            file.drop_pages()
        self._copied += size
        if self._hash(path.name) != hasher.hexdigest():
            raise DamagedData(
                "the journal reads back with other bytes than were written to "
                f"{printable(str(self._target))}",
                hint="check the disk of the backup, then run the backup again",
            )
        return path, size, hasher.hexdigest()

    def _copy_small_files(self) -> None:
        """Copies the settings and other small files, and the quarantine (damaged stored bytes).

        Leaves out lock files and temporary files.
        """
        fs, source = self._store.fs, self._store.folder
        for name in fs.list(source):
            info = fs.stat(source / name, follow=False)
            if info is None or not info.is_file or not info.size or name in _OWN:
                continue
            if not name.endswith(_LOCKS) and not name.startswith(TEMPORARY):
                self._copy_file(source / name, self._folder / name)
        quarantined = files_in(fs, source)
        if quarantined:
            self._fs.make_dirs(self._folder / QUARANTINE)
        for path in quarantined:
            self._copy_file(path, self._folder / QUARANTINE / path.name)

    def _copy_file(self, source: Path, path: Path) -> None:
        with self._store.fs.open_read(source, follow=False) as source_file:
            private = source_file.identity().permissions & 0o077 == 0

            def write(file: WriteFile) -> None:
                for at, size in _blocks(0, source_file.size()):
                    file.write(source_file.read(at, size))

            self._fs.replace_file(path, write, mode=0o600 if private else None, durable=True)

    def _sweep(self, ends: Mapping[int, int]) -> None:
        """Deletes temporary files, and packs that the copy's journal no longer names."""
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
    """A summary of journal entries.

    ``ends``: maps each pack to the end of the bytes that the entries name. ``versions``,
    ``operations``: how many versions and operations the entries record.
    """

    ends: dict[int, int] = field(default_factory=dict)
    versions: int = 0
    operations: int = 0

    @classmethod
    def of(cls, entries: Iterable[Recorded]) -> _Extent:
        """The summary of ``entries``. Raises DamagedData if an entry is lost."""
        extent = cls()
        for recorded in entries:
            extent.operations += 1
            extent.versions += len(recorded.entry.commits)
            for region in filter(lambda region: region.length, recorded.entry.regions):
                extent.ends[region.pack] = max(extent.ends.get(region.pack, 0), region.end)
        return extent


def _entries(snapshot: Snapshot, end: int) -> Iterator[Recorded]:
    """The entries that begin before byte ``end`` of the journal."""
    return takewhile(lambda recorded: recorded.offset < end, snapshot.entries())


def _blocks(start: int, end: int) -> Iterator[tuple[int, int]]:
    """Divides the range from ``start`` to ``end`` into blocks. Yields (first byte, length)."""
    return ((at, min(MIB, end - at)) for at in range(start, end, MIB))


def _exactly(file: ReadFile, at: int, size: int, buffer: memoryview) -> memoryview:
    """Reads ``size`` bytes at offset ``at`` into ``buffer``. Raises DamagedData if the file ends
    earlier.

    The result begins at a position of ``buffer`` that is aligned for direct I/O.
    """
    data = buffer[at % PAGE :][:size]
    if (count := file.read_into(at, data)) != size:
        raise DamagedData(
            f"{file.path.name} ends at byte {at + count}, but the journal names more bytes",
            hint="run 'mvc fsck' to list the affected versions",
        )
    return data
