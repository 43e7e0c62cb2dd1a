"""Writes the changes of a push or ``gc`` to a bucket: first new objects, and then a new head.

The *head* is the object that names all other objects of the bucket. A *swap* replaces the head, but
fails if another client has replaced the head meanwhile. So readers see all changes of a swap at
once. The *mirror* is a local repository with the journal of the bucket. A push is first recorded in
the mirror, and then published by this module. An object other than the head is named by the hash of
its bytes, which include random bytes. So no object is ever written under the name of an old object,
and the deletion of an old object cannot delete a new one.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import wait
from time import monotonic
from typing import TypeAlias

from blake3 import blake3
from msgspec import Struct, field
from msgspec.structs import replace

from mvc.errors import DamagedData, RemoteUnreachable, StorageFull
from mvc.ids import DIGEST_SIZE
from mvc.remote.transports.bucket.layout import (
    DROPPED,
    HEAD,
    MAX_HEAD,
    NONCE,
    BucketHead,
    JournalPart,
    PackObject,
    PartOfJournal,
    encode_dropped,
    encode_headers,
    final_size,
)
from mvc.remote.transports.bucket.mirror import EMPTY, Mirror, Seen
from mvc.store.format import read_features
from mvc.store.journal.frames import Recorded, frame_of, read_entry
from mvc.store.packs.reader import PACKS, pack_path
from mvc.store.snapshot import JOURNAL, Snapshot
from mvc.types import Bytes

_BLOCK = 1 << 20
_LARGE = 4 << 20  # objects with more bytes are written one after another
_GROWTH = 32  # bytes to leave free in a head, because its numbers grow
_Times: TypeAlias = tuple[float, float]
_REUSED_FOR = 24 * 3600.0  # seconds after which a written pack is not reused


class _NewPack(Struct):
    """A pack (a file of records) to write. ``records`` maps offsets of records to their headers.

    ``size``: the number of bytes of the pack, up to the end of its last record.
    """

    records: dict[int, bytes] = field(default_factory=dict)
    size: int = 0


class _PublishedJournal(Struct):
    """A journal to publish. A part is an object with several consecutive entries.

    ``unchanged``: parts that are in the bucket already. ``parts``: parts to write. ``tail``: the
    newest entries, which are stored in the head.
    """

    unchanged: tuple[JournalPart, ...]
    parts: list[PartOfJournal]
    tail: PartOfJournal

    @property
    def named(self) -> dict[int, PackObject]:
        return {p.number: p for part in (*self.parts, self.tail) for p in part.packs}


class _NewObject(Struct):
    """An object to write. ``parts`` yields its bytes.

    Only for a pack: ``pack`` describes the object, and ``content`` is the hash of all bytes except
    the random bytes.
    """

    name: str
    size: int
    parts: Callable[[], Iterator[Bytes]]
    pack: PackObject | None = None
    content: bytes = b""


class Publisher:
    """Publishes the changes of one mirror."""

    def __init__(self, mirror: Mirror) -> None:
        self._mirror = mirror
        self._objects = mirror.objects
        self._written: dict[bytes, tuple[PackObject, _Times]] = {}  # keys: content hashes

    def publish(self) -> bool:
        """Publishes the new entries of the mirror. Returns False if another client was faster.

        Then the mirror has the journal of the other client, and no longer has the new entries.
        """
        mirror = self._mirror
        snapshot = mirror.store.fresh()
        before = EMPTY if mirror.seen is None else mirror.seen.head
        end = snapshot.position
        if end == before.end:
            return True
        extends = bool(before.sequence) and mirror.has(before.end)
        new = _new_packs(snapshot, before.end.offset if extends else 0, mirror.fs.known)
        uploads = [self._upload(number, pack) for number, pack in new.items()]
        packs = {upload.pack.number: upload.pack for upload in uploads if upload.pack is not None}
        known = {**mirror.fs.known, **packs}
        journal = _journal(snapshot, before if extends else EMPTY, known)
        parts = [(part.object(data), data) for part in journal.parts for data in [part.encoded()]]
        uploads += [_new_object(part.name, data) for part, data in parts]
        if not extends and (dropped := _hashes(known) - _hashes(journal.named)):
            uploads.append(
                _new_object(DROPPED + os.urandom(DIGEST_SIZE).hex(), encode_dropped(dropped))
            )
        head = BucketHead(
            features=read_features(mirror.fs, snapshot.folder),
            rewrites=before.rewrites + (bool(before.sequence) and not extends),
            swaps=before.swaps + 1,
            sequence=end.sequence,
            chain=end.chain,
            parts=(*journal.unchanged, *(part for part, _ in parts)),
            packs=journal.tail.packs,
            frames=journal.tail.frames,
        )
        self._write_all(uploads)
        if not self._swap(head, known if extends else journal.named):
            return mirror.has(end)
        for number, pack in new.items():
            mirror.fs.write_headers(packs[number], sorted(pack.records.items()))
        return True

    def bump(self) -> bool:
        """Writes a new head without changing the journal, so that concurrent pushes start again."""
        seen, known = self._mirror.seen, dict(self._mirror.fs.known)
        return seen is None or self._swap(replace(seen.head, swaps=seen.head.swaps + 1), known)

    def _swap(self, head: BucketHead, packs: Mapping[int, PackObject]) -> bool:
        """Swaps the head. ``packs``: the packs that the journal of ``head`` names.

        If another client was faster, updates the mirror from the bucket, and returns False.
        """
        mirror, data = self._mirror, head.encoded()
        if len(data) > MAX_HEAD:
            raise StorageFull(
                f"the journal of {self._objects.url} is too long for one head",
                hint="shorten it: 'mvc gc --remote'",
            )
        try:
            known = "" if mirror.seen is None else mirror.seen.version
            version = self._objects.swap(HEAD, data, known)
        except RemoteUnreachable:  # maybe only the answer was lost
            current = self._objects.read_version(HEAD, MAX_HEAD)
            version = current.version if current is not None and current.data == data else None
        if version is None:
            mirror.refresh()
            return False
        mirror.settle(Seen(version, head), packs)
        return True

    # -- writing --------------------------------------------------------------------------

    def _write_all(self, uploads: list[_NewObject]) -> None:
        """Writes small objects in parallel, and large objects one after another."""
        due = [upload for upload in uploads if not self._is_written(upload)]
        submit = self._mirror.pool.submit
        waiting = [submit(self._write, upload) for upload in due if upload.size <= _LARGE]
        try:
            for upload in due:
                if upload.size > _LARGE:
                    self._write(upload)
        finally:
            wait(waiting)
        for written in waiting:
            written.result()

    def _write(self, upload: _NewObject) -> None:
        self._objects.write(upload.name, upload.parts(), upload.size)
        if upload.pack is not None:
            self._written[upload.content] = upload.pack, self._now()

    def _is_written(self, upload: _NewObject) -> bool:
        """Whether a pack was written so recently that it cannot have been deleted as unused."""
        _, then = self._written.get(upload.content, (None, None))
        return then is not None and all(
            0 <= now - before < _REUSED_FOR for now, before in zip(self._now(), then, strict=True)
        )

    def _now(self) -> _Times:
        """The monotonic time, which may stop while the computer sleeps, and the wall clock time."""
        return monotonic(), self._mirror.clock.now_ns() / 1e9

    def _upload(self, number: int, new: _NewPack) -> _NewObject:
        """The object to write for a pack.

        If an object with the same content was written recently, names this object.
        """
        headers, nonce = encode_headers(new.records), os.urandom(NONCE)

        def parts() -> Iterator[Bytes]:
            yield from self._blocks(number, new.size)
            yield headers + nonce

        hasher = blake3()
        for block in self._blocks(number, new.size):
            hasher.update(block)
        content = hasher.update(headers).digest()
        hash_, trailer = hasher.update(nonce).digest(), len(headers) + NONCE
        pack = PackObject(number, hash_, new.size, trailer)
        upload = _NewObject(pack.name, new.size + trailer, parts, pack=pack, content=content)
        if self._is_written(upload):
            upload.pack = replace(self._written[content][0], number=number)
        return upload

    def _blocks(self, number: int, size: int) -> Iterator[bytes]:
        mirror = self._mirror
        with mirror.fs.open_read(pack_path(mirror.store.folder / PACKS, number)) as file:
            for at in range(0, size, _BLOCK):
                yield file.read(at, min(_BLOCK, size - at))


def _new_object(name: str, data: bytes) -> _NewObject:
    return _NewObject(name, len(data), lambda: iter((data,)))


def _hashes(packs: Mapping[int, PackObject]) -> set[bytes]:
    return {pack.hash for pack in packs.values()}


def _new_packs(
    snapshot: Snapshot, offset: int, known: Mapping[int, PackObject]
) -> dict[int, _NewPack]:
    """The packs that entries from ``offset`` on name, except the packs in ``known``."""
    packs: dict[int, _NewPack] = {}
    for recorded, _ in _entries(snapshot, offset):
        for region in recorded.entry.regions:
            if not region.length or region.pack in known:
                continue
            pack = packs.setdefault(region.pack, _NewPack())
            pack.size = max(pack.size, region.end)
            path = pack_path(snapshot.folder / PACKS, region.pack)
            with snapshot.fs.open_read(path) as file:
                for at, header in snapshot.packs.records(region):
                    pack.records[at] = file.read(at, header.body_at)
    return packs


def _entries(snapshot: Snapshot, offset: int) -> Iterator[tuple[Recorded, bytes]]:
    """Yields each journal entry from ``offset`` on, with its encoded bytes (the frame)."""
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


def _journal(
    snapshot: Snapshot, before: BucketHead, known: Mapping[int, PackObject]
) -> _PublishedJournal:
    """Decides which entries are stored in the head, and which in parts.

    If the head has space for all entries that are in no part, they are stored in the head.
    Otherwise they are stored in new parts, together with the entries of the newest parts that have
    no more bytes than these entries, and less than ``final_size``. So the journal has few parts,
    and an entry is rewritten only a few times.
    """
    end = snapshot.position.offset
    start = before.end.offset - 2 * len(before.frames)
    if end - start <= 2 * MAX_HEAD:
        tail = next(_chunks(snapshot, start, known, end), PartOfJournal((), b""))
        head = replace(before, packs=tail.packs, frames=tail.frames)
        if len(head.encoded()) + _GROWTH <= MAX_HEAD:
            return _PublishedJournal(before.parts, [], tail)
    unchanged, final = list(before.parts), final_size(end // 2)
    while unchanged and unchanged[-1].frames < final and 2 * unchanged[-1].frames <= end - start:
        start -= 2 * unchanged.pop().frames
    parts = list(_chunks(snapshot, start, known, final))
    return _PublishedJournal(tuple(unchanged), parts, PartOfJournal((), b""))


def _chunks(
    snapshot: Snapshot, offset: int, known: Mapping[int, PackObject], size: int
) -> Iterator[PartOfJournal]:
    """Yields the entries from ``offset`` on in parts, which end after at least ``size`` bytes."""
    frames: list[bytes] = []
    packs: dict[int, PackObject] = {}
    nbytes = 0
    for recorded, frame in _entries(snapshot, offset):
        frames.append(frame)
        nbytes += len(frame)
        packs.update((r.pack, known[r.pack]) for r in recorded.entry.regions if r.length)
        if nbytes >= size:
            yield PartOfJournal(tuple(packs.values()), b"".join(frames))
            frames, packs, nbytes = [], {}, 0
    if frames:
        yield PartOfJournal(tuple(packs.values()), b"".join(frames))
