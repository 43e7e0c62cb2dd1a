"""Publishing: what a mirror has beyond its bucket is written there, then one swap of the head.

Before the swap nothing in the bucket has changed for anybody; after it all is there. Packs and
parts of the journal are objects named by their hash, so that a second attempt writes the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from time import monotonic

from blake3 import blake3
from msgspec import Struct, field
from msgspec.structs import replace

from mvc.errors import DamagedData, RemoteUnreachable, StorageFull
from mvc.remote.bucket.layout import (
    DROPPED,
    HEAD,
    MAX_HEAD,
    BucketHead,
    JournalPart,
    PackObject,
    PartOfJournal,
    encode_dropped,
    encode_headers,
    final_size,
)
from mvc.remote.bucket.mirror import EMPTY, Mirror, Seen
from mvc.store.format import read_features
from mvc.store.journal.frames import Recorded, frame_of, read_entry
from mvc.store.packs.reader import PACKS, pack_path
from mvc.store.snapshot import JOURNAL, Snapshot
from mvc.types import Bytes

_BLOCK = 1 << 20
_LARGE = 4 << 20  # bytes of an object that is written alone
_GROWTH = 32  # bytes by which numbers in a head may become longer
_REUSED_FOR = 24 * 3600.0  # seconds for which an object that was written needs not be again


class _NewPack(Struct):
    """Headers of a pack's records by offset; ``size``: where the last entry's bytes end."""

    records: dict[int, bytes] = field(default_factory=dict)
    size: int = 0


class _Journal(Struct):
    """A journal as it is to be published: old and new parts, and what the head itself holds."""

    kept: tuple[JournalPart, ...]
    parts: list[PartOfJournal]
    tail: PartOfJournal

    @property
    def named(self) -> dict[int, PackObject]:
        """The packs that new parts and the tail name."""
        return {p.number: p for part in (*self.parts, self.tail) for p in part.packs}


class _Upload(Struct):
    """An object to write; ``parts`` makes its content."""

    name: str
    size: int
    parts: Callable[[], Iterator[Bytes]]


class Publisher:
    """Publishes one mirror, any number of times."""

    def __init__(self, mirror: Mirror) -> None:
        self._mirror = mirror
        self._objects = mirror.objects
        self._written: dict[str, tuple[float, float]] = {}  # when objects were written

    def publish(self) -> bool:
        """Makes what the mirror has the bucket's; False if another head was swapped in before.

        The mirror then follows that one, without what it had beyond its own.
        """
        mirror = self._mirror
        snapshot = mirror.context.fresh()
        before = EMPTY if mirror.seen is None else mirror.seen.head
        end = snapshot.position
        if end == before.end:
            return True
        extends = bool(before.sequence) and mirror.has(before.end)
        new = _new_packs(snapshot, before.end.offset if extends else 0, mirror.fs.known)
        packs = {number: self._object(number, pack) for number, pack in new.items()}
        uploads = [self._pack_upload(packs[number], new[number]) for number in packs]
        known = {**mirror.fs.known, **packs}
        journal = _journal(snapshot, before if extends else EMPTY, known)
        dropped = set() if extends else _hashes(known) - _hashes(journal.named)
        written = [*map(_part_object, journal.parts)]
        uploads += [_upload(part.name, data) for part, data in written]
        if dropped:
            note = encode_dropped(dropped)
            uploads.append(_upload(DROPPED + blake3(note).hexdigest(), note))
        head = BucketHead(
            features=read_features(mirror.fs, snapshot.folder),
            rewrites=before.rewrites + (bool(before.sequence) and not extends),
            swaps=before.swaps + 1,
            sequence=end.sequence,
            chain=end.chain,
            parts=(*journal.kept, *(part for part, _ in written)),
            packs=journal.tail.packs,
            frames=journal.tail.frames,
        )
        self._write_all(uploads)
        version = self._swap(head, packs)
        if version is None:
            return mirror.has(end)
        mirror.settle(version, packs if extends else journal.named, anew=not extends)
        for number, pack in new.items():
            mirror.fs.write_headers(packs[number], sorted(pack.records.items()))
        return True

    def bump(self) -> bool:
        """Swaps in an equal head, so that who saw the one before has to look again."""
        seen = self._mirror.seen
        if seen is None:
            return True
        bumped = self._swap(replace(seen.head, swaps=seen.head.swaps + 1), {})
        if bumped is not None:
            self._mirror.settle(bumped, {})
        return bumped is not None

    def _swap(self, head: BucketHead, packs: dict[int, PackObject]) -> Seen | None:
        """Swaps the head. If that fails, or is not known, the mirror follows what is there."""
        mirror, data = self._mirror, head.encoded()
        if len(data) > MAX_HEAD:
            raise StorageFull(
                f"the journal of {self._objects.url} is too long for one head",
                hint="mvc gc --remote shortens it",
            )
        try:
            known = "" if mirror.seen is None else mirror.seen.version
            version = self._objects.swap(HEAD, data, known)
        except RemoteUnreachable:
            version = None  # the answer may have been lost: the head says what is so
        if version is None:
            mirror.pending = packs
            mirror.refresh()
            return None
        return Seen(version, head, data)

    # -- writing --------------------------------------------------------------------------

    def _write_all(self, uploads: list[_Upload]) -> None:
        """Writes objects, small ones at the same time."""
        due = [upload for upload in uploads if not self._is_there(upload.name)]
        for _ in self._mirror.pool.map(self._write, (u for u in due if u.size <= _LARGE)):
            pass
        for upload in due:
            if upload.size > _LARGE:
                self._write(upload)

    def _write(self, upload: _Upload) -> None:
        self._objects.write(upload.name, upload.parts(), upload.size)
        self._written[upload.name] = self._now()

    def _is_there(self, name: str) -> bool:
        """Whether an object was written not long ago, and so is not yet deleted by a sweep."""
        then = self._written.get(name)
        return then is not None and all(
            0 <= now - before < _REUSED_FOR for now, before in zip(self._now(), then, strict=True)
        )

    def _now(self) -> tuple[float, float]:
        """By two clocks: one may be set, the other may stand still while the computer sleeps."""
        return monotonic(), self._mirror.clock.now_ns() / 1e9

    def _object(self, number: int, pack: _NewPack) -> PackObject:
        """Names the object of a pack by the hash of its content."""
        hasher, headers = blake3(), encode_headers(pack.records)
        for block in self._blocks(number, pack.size):
            hasher.update(block)
        return PackObject(number, hasher.update(headers).digest(), pack.size, len(headers))

    def _pack_upload(self, pack: PackObject, new: _NewPack) -> _Upload:
        def parts() -> Iterator[Bytes]:
            yield from self._blocks(pack.number, pack.size)
            yield encode_headers(new.records)

        return _Upload(pack.name, pack.size + pack.headers, parts)

    def _blocks(self, number: int, size: int) -> Iterator[bytes]:
        mirror = self._mirror
        folder = mirror.context.store.folder / PACKS
        with mirror.fs.open_read(pack_path(folder, number)) as file:
            for at in range(0, size, _BLOCK):
                yield file.read(at, min(_BLOCK, size - at))


def _upload(name: str, data: bytes) -> _Upload:
    return _Upload(name, len(data), lambda: iter((data,)))


def _hashes(packs: Mapping[int, PackObject]) -> set[bytes]:
    return {pack.hash for pack in packs.values()}


def _part_object(part: PartOfJournal) -> tuple[JournalPart, bytes]:
    data = part.encoded()
    return JournalPart(blake3(data).digest(), len(data), len(part.frames)), data


def _new_packs(
    snapshot: Snapshot, offset: int, known: Mapping[int, PackObject]
) -> dict[int, _NewPack]:
    """The packs that entries from ``offset`` on name, but those of the bucket."""
    found: dict[int, _NewPack] = {}
    for recorded, _ in _entries(snapshot, offset):
        for region in recorded.entry.regions:
            if not region.length or region.pack in known:
                continue
            pack = found.setdefault(region.pack, _NewPack())
            pack.size = max(pack.size, region.start + region.length)
            path = pack_path(snapshot.folder / PACKS, region.pack)
            with snapshot.fs.open_read(path) as file:
                for at, header in snapshot.packs.records(region):
                    pack.records[at] = file.read(at, header.body_at)
    return found


def _entries(snapshot: Snapshot, offset: int) -> Iterator[tuple[Recorded, bytes]]:
    """Entries from ``offset`` to the end, each with one copy of its frame."""
    end = snapshot.position.offset
    with snapshot.fs.open_read(snapshot.folder / JOURNAL) as file:
        source = file.ahead()
        while offset < end:
            recorded = read_entry(source, offset, end)
            frame = source.read(offset, recorded.half)
            if frame_of(frame) is None:
                raise DamagedData(f"the mirror's journal is damaged at byte {offset}")
            yield recorded, frame
            offset = recorded.after.offset


def _journal(snapshot: Snapshot, before: BucketHead, known: Mapping[int, PackObject]) -> _Journal:
    """How the journal is cut: ``before`` goes on if its head has room, else parts are made.

    A new part takes in the last ones before it that are no larger, unless they are final: so an
    entry is written a few times, and there are few parts.
    """
    end = snapshot.position.offset
    start = before.end.offset - 2 * len(before.frames)
    if end - start <= 2 * MAX_HEAD:
        tail = next(_chunks(snapshot, start, known, end), PartOfJournal((), b""))
        head = replace(before, packs=tail.packs, frames=tail.frames)
        if len(head.encoded()) + _GROWTH <= MAX_HEAD:
            return _Journal(before.parts, [], tail)
    kept, final = list(before.parts), final_size(end // 2)
    while kept and kept[-1].frames < final and 2 * kept[-1].frames <= end - start:
        start -= 2 * kept.pop().frames
    parts = list(_chunks(snapshot, start, known, final))
    return _Journal(tuple(kept), parts, PartOfJournal((), b""))


def _chunks(
    snapshot: Snapshot, offset: int, known: Mapping[int, PackObject], size: int
) -> Iterator[PartOfJournal]:
    """Entries from ``offset`` to the end, in parts that end as soon as they have ``size`` bytes."""
    frames: list[bytes] = []
    packs: dict[int, PackObject] = {}
    held = 0
    for recorded, frame in _entries(snapshot, offset):
        frames.append(frame)
        held += len(frame)
        packs.update((r.pack, known[r.pack]) for r in recorded.entry.regions if r.length)
        if held >= size:
            yield PartOfJournal(tuple(packs.values()), b"".join(frames))
            frames, packs, held = [], {}, 0
    if frames:
        yield PartOfJournal(tuple(packs.values()), b"".join(frames))
