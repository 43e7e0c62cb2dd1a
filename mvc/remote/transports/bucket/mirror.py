"""The mirror of a bucket (a repository in an object store such as S3).

A mirror is a local repository with a copy of the bucket's journal (log of operations). The packs
(files with tensors) stay in the bucket. The bucket's *head* is an object that names all other
objects. During a publication, the mirror has entries that the bucket does not have yet. If the
publication fails, these entries are removed. A mirror can be deleted without loss. If a mirror is
damaged or does not match the head, mvc builds the mirror again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from blake3 import blake3
from msgspec import Struct

from mvc.errors import DamagedData, HistoryMissing, MvcError
from mvc.io.clock import Clock
from mvc.names import FOLDER
from mvc.remote.transports.bucket.layout import (
    HEAD,
    MAX_HEAD,
    BucketHead,
    JournalPart,
    PackObject,
    PartOfJournal,
    follow,
)
from mvc.remote.transports.bucket.objects import Objects
from mvc.remote.transports.bucket.packs import MirrorPacks
from mvc.repo.config import Config
from mvc.store.format import FORMAT, format_line, parse_format
from mvc.store.index.reader import INDEX
from mvc.store.journal.frames import GENESIS, Position
from mvc.store.journal.high_water_mark import HIGH_WATER_MARK
from mvc.store.packs.reader import PACKS, pack_path
from mvc.store.snapshot import JOURNAL
from mvc.store.store import Store, create

if TYPE_CHECKING:
    from mvc.store.writing.pack_writer import PackWriter

_SEEN = "seen"
_CHECK = 16
_WAIT = 3.0  # seconds to wait until another transport closes the mirror
_LONGEST_NOTE = 1 << 32
_AT_ONCE = 16  # limit of concurrent requests
_PARTS_AT_ONCE = 4
EMPTY = BucketHead(frozenset(), 0, 0, 0, chain=GENESIS.chain, parts=(), packs=(), frames=b"")


class Seen(Struct, frozen=True):
    """The head that the mirror matches.

    ``version``: the object store's id for this version of the object.
    """

    version: str
    head: BucketHead


class _Note(Struct, frozen=True, array_like=True):
    """A file that the next process reads: the data of ``Seen``, and the packs of the bucket."""

    version: str
    head: bytes
    packs: tuple[PackObject, ...]


class MirrorStore(Store):
    """The store of a mirror."""

    def pack_writer(self, *, fresh: bool = True) -> PackWriter:  # noqa: ARG002
        """Always writes new packs, because an object of a bucket never changes."""
        return super().pack_writer(fresh=True)

    def unnamed_packs(self) -> set[int]:
        """Adds the packs of the bucket that no entry names, because they can still be read."""
        assert isinstance(self.fs, MirrorPacks)
        known = set(self.fs.known)
        for recorded in self.snapshot.entries():
            known -= {region.pack for region in recorded.entry.regions if region.length}
        return super().unnamed_packs() | known | ({0} if self.fs.lingering else set())


class Mirror:
    """An open mirror. Only one process at a time can open a mirror."""

    def __init__(
        self,
        objects: Objects,
        place: Path,
        *,
        clock: Clock,
        config: Config,
        own: Store | None = None,
    ) -> None:
        """``place``: the mirror's folder, which is created if it is missing. Raises Busy if another
        process has opened the mirror.

        ``own``: the repository that has this remote. Data that ``own`` stores are not downloaded.
        """
        self.objects = objects
        self.place = place
        self.clock = clock
        self.config = Config({
            **config.values,
            "deploy.protect": ("", "flag"),  # users of the bucket may deploy to every target
        })  # fmt: skip
        self._folder = place / FOLDER
        self.pool = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="mvc-bucket")
        self.fs = MirrorPacks(self._folder / PACKS, objects, self.pool, own)
        self.fs.shared = None if own is None else own.fs.shared
        self._store: MirrorStore | None = None
        self.seen: Seen | None = None
        try:
            self.fs.make_dirs(place)
            self._lock = self.fs.lock(place / "lock", timeout=_WAIT)
            self._load()
        except BaseException:
            self.pool.shutdown()
            raise

    def close(self) -> None:
        self._close_store()
        self.pool.shutdown(wait=False, cancel_futures=True)
        self._lock.release()

    # -- the repository -------------------------------------------------------------------

    @property
    def store(self) -> Store:
        if self._store is None:
            if self.seen is not None:
                parse_format(format_line(self.seen.head.features))
            self._store = MirrorStore(self.fs, self.clock, self._folder)
            self._store.bare = True
        return self._store

    def _close_store(self) -> None:
        store, self._store = self._store, None
        if store is not None:
            store.close()

    # -- refresh ----------------------------------------------------------------------------

    def refresh(self) -> None:
        """Updates the mirror to the bucket's head, with one round trip if nothing changed.

        Raises HistoryMissing if the bucket lost its head.
        """
        known = "" if self.seen is None else self.seen.version
        current = self.objects.read_version(HEAD, MAX_HEAD, known)
        if current is None:
            if self.seen is not None:
                raise HistoryMissing(
                    f"{self.objects.url} is empty, but contained a repository before",
                    hint="if this is intended, remove the remote and add it again",
                )
            self._create()
        elif self.seen is not None and current.version == known:
            self._follow(self.seen)
        else:
            head = BucketHead.decode(current.data, self.objects.url)
            self._follow(Seen(current.version, head))

    def _create(self) -> None:
        if self.fs.stat(self._folder) is None:
            create(self.fs, self.clock, self.place, "main", config=b"")

    def _follow(self, seen: Seen) -> None:
        """Changes the mirror, so that its journal equals the journal of the bucket's head."""
        parse_format(format_line(seen.head.features))
        if self.seen is not None:
            with suppress(DamagedData):  # if the mirror is damaged, it is built again below
                end = self.seen.head.end
                if self.has(end) and self._append(seen, end):
                    return
        self._close_store()
        self.fs.unlink(self.place / _SEEN, missing_ok=True)
        self.seen = None
        if self.fs.stat(self._folder) is not None and self.fs.stat(self._folder / PACKS) is None:
            self.fs.remove_tree(self._folder)
        self._create()
        if not self._append(seen, GENESIS):
            raise DamagedData(f"the journal of {self.objects.url} does not begin at 0")

    def _append(self, seen: Seen, at: Position) -> bool:
        """Replaces the mirror's entries after ``at`` by the head's entries after ``at``.

        Returns False if the head's journal does not contain ``at``. After an error, the next
        refresh removes the new entries.
        """
        self._cut(at)
        with self.fs.open_write(self._folder / JOURNAL) as file:
            packs = self._read_on(seen.head, at, file.write)
        if packs is None:
            return False
        known = self.fs.known
        named = packs if at == GENESIS else {**known, **packs}
        if named != known:
            self._remove_packs({n for n, pack in named.items() if known.get(n) == pack})
        self._write_format(seen.head)
        self.settle(seen, named)
        if self._store is not None:
            self._store.fresh()
        return True

    def _read_on(
        self, head: BucketHead, at: Position, write: Callable[[bytes], object]
    ) -> dict[int, PackObject] | None:
        """Writes the head's entries from ``at`` on. Returns the packs that these entries name.

        Returns None if the head's journal does not contain ``at``. Raises DamagedData.
        """
        packs: dict[int, PackObject] = {}
        for begin, part in self._sources(head, at.offset):
            followed = follow(part.frames, begin, at, self.objects.url)
            if followed is None:
                return None
            write(followed[0])
            at = followed[1]
            packs.update((pack.number, pack) for pack in part.packs)
        if at != head.end or not head.sequence:
            raise DamagedData(f"the journal of {self.objects.url} does not match its head")
        return packs

    def _sources(self, head: BucketHead, offset: int) -> Iterator[tuple[int, PartOfJournal]]:
        """Yields pairs (offset, part) for the parts of the journal that end after ``offset``."""
        begin, wanted = 0, []
        for part in head.parts:
            if begin + 2 * part.frames > offset:
                wanted.append((begin, part))
            begin += 2 * part.frames
        for at in range(0, len(wanted), _PARTS_AT_ONCE):
            some = wanted[at : at + _PARTS_AT_ONCE]
            read = self.pool.map(self._part, [part for _, part in some])
            yield from zip((start for start, _ in some), read, strict=True)
        yield begin, PartOfJournal(head.packs, head.frames)

    def _part(self, part: JournalPart) -> PartOfJournal:
        data = self.objects.read(part.name, part.size)
        if data is None:
            raise DamagedData(f"{self.objects.url} lacks {part.name}")
        return PartOfJournal.decode(data, part, self.objects.url)

    def has(self, at: Position) -> bool:
        """Whether an entry of the mirror's journal ends at ``at``."""
        path = self._folder / JOURNAL
        if self.fs.stat(path) is None or not at.offset:
            return False
        with self.fs.open_read(path) as file:
            return file.read(at.offset - len(at.chain), len(at.chain)) == at.chain

    def _cut(self, at: Position) -> None:
        """Removes the entries after ``at`` from the mirror, and packs that the bucket lacks."""
        path = self._folder / JOURNAL
        identity = self.fs.stat(path)
        if identity is None or identity.size <= at.offset:
            return
        self._close_store()
        with self.fs.open_write(path) as file:
            file.truncate(at.offset)
        self._remove_derived()
        self._remove_packs(set(self.fs.known))

    def _remove_derived(self) -> None:
        self.fs.unlink(self._folder / HIGH_WATER_MARK, missing_ok=True)
        if self.fs.stat(self._folder / INDEX) is not None:
            self.fs.remove_tree(self._folder / INDEX)

    def _remove_packs(self, numbers: set[int]) -> None:
        """Deletes all local packs, except the packs with these numbers."""
        folder = self._folder / PACKS
        names = {pack_path(folder, number).name for number in numbers}
        for name in self.fs.list(folder):
            if name not in names:
                self.fs.unlink(folder / name, missing_ok=True)

    def _write_format(self, head: BucketHead) -> None:
        line = format_line(head.features)
        path = self._folder / FORMAT
        if self.fs.read_bytes(path, 1 << 16) != line:
            self._close_store()
            self.fs.write_atomic(path, line)

    def reset(self) -> None:
        """Deletes the mirror. The next ``refresh`` builds it again."""
        self._close_store()
        self.seen = None
        self.fs.forget()
        self.fs.unlink(self.place / _SEEN, missing_ok=True)
        if self.fs.stat(self._folder, follow=False) is not None:
            self.fs.remove_tree(self._folder)

    # -- note for the next process ----------------------------------------------------------

    def settle(self, seen: Seen, packs: Mapping[int, PackObject]) -> None:
        """Records, also for the next process, that the mirror matches the head ``seen``.

        ``packs``: the packs that the journal names.
        """
        self.fs.forget()
        self.fs.known.update(packs)
        if self.seen == seen:
            return
        note = _Note(seen.version, seen.head.encoded(), tuple(packs.values()))
        body = msgspec.msgpack.encode(note)
        self.fs.write_atomic(self.place / _SEEN, body + blake3(body).digest(_CHECK))
        self.seen = seen

    def _load(self) -> None:
        """Reads the note that an earlier process wrote. Resets a mirror without a valid note."""
        try:
            data = self.fs.read_bytes(self.place / _SEEN, _LONGEST_NOTE)
            if blake3(data[:-_CHECK]).digest(_CHECK) != data[-_CHECK:]:
                raise DamagedData("the file 'seen' does not match its checksum")
            note = msgspec.msgpack.decode(data[:-_CHECK], type=_Note)
            seen = Seen(note.version, BucketHead.decode(note.head, self.objects.url))
            if not self.has(seen.head.end):
                raise DamagedData("the file 'seen' does not match the mirror's journal")
        except (MvcError, msgspec.MsgspecError):
            self.reset()
            return
        self.fs.known.update((pack.number, pack) for pack in note.packs)
        self.seen = seen
