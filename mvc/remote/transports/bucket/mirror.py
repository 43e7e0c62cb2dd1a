"""The mirror of a bucket: a repository whose journal is the bucket's, and whose packs are there.

What the bucket holds is decided by its head alone. The mirror may be ahead of it, while something
is published; what did not get there is taken back. It is disposable: a mirror that is damaged, or
that does not lead to the bucket's head, is made again.
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
_WAIT = 3.0  # seconds for another transport to let go of the mirror
_LONGEST_NOTE = 1 << 32
_AT_ONCE = 16  # requests
_PARTS_AT_ONCE = 4
EMPTY = BucketHead(frozenset(), 0, 0, 0, chain=GENESIS.chain, parts=(), packs=(), frames=b"")


class Seen(Struct, frozen=True):
    """The head that the mirror was brought up to; ``version``: the store's name for it."""

    version: str
    head: BucketHead


class _Note(Struct, frozen=True, array_like=True):
    """What the next process has to know: the head (``Seen``), and the bucket's packs."""

    version: str
    head: bytes
    packs: tuple[PackObject, ...]


class MirrorStore(Store):
    """The store of a mirror."""

    def pack_writer(self, *, fresh: bool = True) -> PackWriter:  # noqa: ARG002
        """Always to new packs: an object of a bucket never changes."""
        return super().pack_writer(fresh=True)

    def unnamed_packs(self) -> set[int]:
        """Also packs that were dropped: their objects stay in the bucket for a while."""
        assert isinstance(self.fs, MirrorPacks)
        known = set(self.fs.known)
        for recorded in self.snapshot.entries():
            known -= {region.pack for region in recorded.entry.regions if region.length}
        return super().unnamed_packs() | known | ({0} if self.fs.lingering else set())


class Mirror:
    """A bucket as a repository. One process at a time uses it; ``close`` lets go of it."""

    def __init__(
        self,
        objects: Objects,
        place: Path,
        *,
        clock: Clock,
        config: Config,
        own: Store | None = None,
    ) -> None:
        """``place``: its folder, which need not be there. Busy if it is used by others.

        ``own``: the repository whose remote it is; records that it has are read there.
        """
        self.objects = objects
        self.place = place
        self.clock = clock
        self.config = Config({
            **config.values,
            "deploy.protect": ("", "flag"),  # who may write to a bucket may do everything
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

    # -- up to date -------------------------------------------------------------------------

    def refresh(self) -> None:
        """Brings the mirror up to the bucket's head; one round trip if there is no news.

        HistoryMissing if the bucket has no head any more.
        """
        known = "" if self.seen is None else self.seen.version
        found = self.objects.look(HEAD, MAX_HEAD, known)
        if found is None:
            if self.seen is not None:
                raise HistoryMissing(
                    f"{self.objects.url} is empty, but was not before",
                    hint="if that is intended, remove the remote and add it again",
                )
            self._make()
        elif self.seen is not None and found.version == known:
            self._follow(self.seen)
        else:
            head = BucketHead.decode(found.data, self.objects.url)
            self._follow(Seen(found.version, head))

    def _make(self) -> None:
        if self.fs.stat(self._folder) is None:
            create(self.fs, self.clock, self.place, "main", config=b"")

    def _follow(self, seen: Seen) -> None:
        """Takes in what the head has beyond the mirror, after what it has not is taken back."""
        parse_format(format_line(seen.head.features))
        if self.seen is not None:
            with suppress(DamagedData):  # then it is read anew
                end = self.seen.head.end
                if self.has(end) and self._take_in(seen, end):
                    return
        self._close_store()
        self.fs.unlink(self.place / _SEEN, missing_ok=True)
        self.seen = None
        if self.fs.stat(self._folder) is not None and self.fs.stat(self._folder / PACKS) is None:
            self.fs.remove_tree(self._folder)
        self._make()
        if not self._take_in(seen, GENESIS):
            raise DamagedData(f"the journal of {self.objects.url} does not begin at 0")

    def _take_in(self, seen: Seen, at: Position) -> bool:
        """Goes on after ``at``, if the head's journal has that place.

        What an error leaves behind ``at`` is taken back the next time.
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
        """Writes what the head's journal has from ``at`` on; the packs that this names.

        None if the journal has no such place. Raises DamagedData.
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
            raise DamagedData(f"the journal of {self.objects.url} does not lead to its head")
        return packs

    def _sources(self, head: BucketHead, offset: int) -> Iterator[tuple[int, PartOfJournal]]:
        """Where the entries of parts that end after ``offset`` begin, and these, in order."""
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
        """Takes back what the journal has after ``at``, and the packs that only this names."""
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

    def _remove_packs(self, kept: set[int]) -> None:
        """Deletes the files of packs that are not in the bucket under their number."""
        folder = self._folder / PACKS
        names = {pack_path(folder, number).name for number in kept}
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
        """Deletes the mirror; the next ``refresh`` makes it again."""
        self._close_store()
        self.seen = None
        self.fs.forget()
        self.fs.unlink(self.place / _SEEN, missing_ok=True)
        if self.fs.stat(self._folder, follow=False) is not None:
            self.fs.remove_tree(self._folder)

    # -- what it remembers ------------------------------------------------------------------

    def settle(self, seen: Seen, packs: Mapping[int, PackObject]) -> None:
        """What the mirror has is the bucket's now, whose journal names these packs.

        Notes it for the next process.
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
        """Reads what was noted; a mirror without a sound note is made again."""
        try:
            data = self.fs.read_bytes(self.place / _SEEN, _LONGEST_NOTE)
            if blake3(data[:-_CHECK]).digest(_CHECK) != data[-_CHECK:]:
                raise DamagedData("the note does not match its checksum")
            note = msgspec.msgpack.decode(data[:-_CHECK], type=_Note)
            seen = Seen(note.version, BucketHead.decode(note.head, self.objects.url))
            if not self.has(seen.head.end):
                raise DamagedData("the note does not match the mirror")
        except (MvcError, msgspec.MsgspecError):
            self.reset()
            return
        self.fs.known.update((pack.number, pack) for pack in note.packs)
        self.seen = seen
