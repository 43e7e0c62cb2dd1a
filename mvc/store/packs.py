"""Packs: append-only files of records. What a pack holds is what the journal says.

A writer holds the pack's lock from its first byte until its journal entry is
written, so bytes behind the committed end belong to nobody: the next writer of that
pack cuts them off.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from mvc.errors import DamagedData, IoFailed
from mvc.io.files import FileLock, FileSystem, ReadFile, WriteFile
from mvc.limits import PACK_TARGET
from mvc.store.entries import Region
from mvc.store.records import (
    CHECK_SIZE,
    MAGIC,
    PREFIX_SIZE,
    Member,
    RecordHeader,
    decode_header,
    payload_check,
    read_prefix,
)
from mvc.types import Bytes

__all__ = ["PACK_HEADER", "PackReader", "PackWriter", "pack_path"]

PACK_HEADER = b"mvcpack1"
_MAX_OPEN = 64
_FIRST_READ = 4096
_WINDOW = 1 << 20
_TRIES = 64
_MOST = (1 << 32) - 1  # number of a pack
_EFFORT = 8  # times the bytes that are searched may be hashed


def pack_path(folder: Path, number: int) -> Path:
    """Where a pack lies."""
    return folder / f"{number:08d}.pack"


def pack_numbers(fs: FileSystem, folder: Path) -> list[int]:
    """Numbers of the packs in the folder, ascending."""
    names = {name: name.partition(".")[0] for name in fs.list(folder)}
    numbers = {int(stem): n for n, stem in names.items() if stem.isascii() and stem.isdigit()}
    return sorted(
        number
        for number, name in numbers.items()
        if 0 < number <= _MOST and pack_path(folder, number).name == name
    )


class PackReader:
    """Random access to records. Safe across threads; handles are reused."""

    def __init__(self, fs: FileSystem, folder: Path) -> None:
        self._fs = fs
        self._folder = folder
        self._open: dict[int, ReadFile] = {}
        self._headers: dict[tuple[int, int], RecordHeader] = {}

    def _file(self, pack: int) -> ReadFile:
        handle = self._open.get(pack)
        if handle is None:
            if len(self._open) >= _MAX_OPEN:
                self._open = {}  # each is closed when the last thread that reads it lets go
            path = pack_path(self._folder, pack)
            try:
                handle = self._fs.open_read(path)
            except IoFailed:
                if self._fs.stat(path) is None:
                    raise DamagedData(f"{path.name} is missing from the repository") from None
                raise
            self._open[pack] = handle
        return handle

    def header(self, pack: int, offset: int) -> RecordHeader:
        """The verified header of the record at ``offset``."""
        cached = self._headers.get((pack, offset))
        if cached is None:
            where = f"pack {pack} at byte {offset}"
            file = self._file(pack)
            head = file.read(offset, _FIRST_READ)
            header_size, _ = read_prefix(head, file.size() - offset, where)
            need = PREFIX_SIZE + header_size + CHECK_SIZE
            if len(head) < need:
                head += file.read(offset + len(head), need - len(head))
            cached = decode_header(head[:need], where)
            if len(self._headers) > 4096:
                self._headers.clear()
            self._headers[(pack, offset)] = cached
        return cached

    def records(self, region: Region) -> Iterator[tuple[int, RecordHeader]]:
        """(offset, header) of every record of a region."""
        at, end = region.start, region.start + region.length
        while at < end:
            header = self.header(region.pack, at)
            yield at, header
            at += header.size
        if at != end:
            raise DamagedData(f"pack {region.pack}: a record crosses byte {end}")

    def sound_records(
        self, region: Region, report: Callable[[DamagedData], None]
    ) -> Iterator[tuple[int, RecordHeader]]:
        """As ``records``, but goes on behind a damaged header, where the next sound one stands."""
        at, end = region.start, region.start + region.length
        left = _EFFORT * region.length
        while at < end and left >= 0:
            try:
                header = self.header(region.pack, at)
                if at + header.size > end:
                    raise DamagedData(f"pack {region.pack}: a record crosses byte {end}")
            except DamagedData as error:
                report(error)
                left -= self._claimed(region.pack, at)
                at = self._next_magic(region.pack, at + 1, end)
            else:
                yield at, header
                at += header.size

    def _claimed(self, pack: int, at: int) -> int:
        """Bytes of header that a damaged record at ``at`` says it has."""
        with suppress(DamagedData):
            file = self._file(pack)
            return read_prefix(file.read(at, PREFIX_SIZE), file.size() - at, "")[0]
        return 0

    def _next_magic(self, pack: int, at: int, end: int) -> int:
        """Where the next record may begin, or ``end``."""
        with suppress(DamagedData):  # the pack is missing
            file = self._file(pack)
            while at < end:
                data = file.read(at, min(_WINDOW, end - at))
                found = data.find(MAGIC)
                if found >= 0:
                    return at + found
                at += max(len(data) - len(MAGIC) + 1, len(MAGIC))
        return end

    def raw(self, pack: int, offset: int, header: RecordHeader) -> tuple[bytes, memoryview]:
        """A whole record, head and body, every payload checked."""
        file = self._file(pack)
        data = file.read(offset, header.size)
        head, body = data[: header.body_at], memoryview(data)[header.body_at :]
        if decode_header(head, f"pack {pack} at byte {offset}") != header:
            raise DamagedData(f"pack {pack} changed while it was read")
        for member in header.members[:1] if header.group else header.members:
            payload = body[member.at : member.at + member.stored]
            if len(payload) != member.stored or payload_check([payload]) != member.check:
                raise DamagedData(
                    f"object {member.id.hex()[:10]} in pack {pack} (byte {offset}) does not "
                    "match its checksum",
                    hint="run 'mvc fsck' to see which versions it touches",
                )
        return head, body

    def payload(
        self,
        pack: int,
        offset: int,
        header: RecordHeader,
        member: Member,
        room: memoryview | None = None,
        *,
        check: bool = True,
    ) -> memoryview:
        """A member's payload, read into ``room`` if given.

        Checked against its checksum; a caller that checks what comes out may do without.
        """
        at = offset + header.body_at + member.at
        file = self._file(pack)
        if room is None:
            data = memoryview(file.read(at, member.stored))
        else:
            data = room[: file.read_into(at, room[: member.stored])]
        if len(data) != member.stored or (check and payload_check([data]) != member.check):
            raise DamagedData(
                f"object {member.id.hex()[:10]} in pack {pack} (byte {at}) does not match its "
                "checksum",
                hint="run 'mvc fsck' to see which versions it touches",
            )
        return data

    def forget(self) -> None:
        """Drops what was read: packs that no entry names any more may be gone, or written anew."""
        self._headers.clear()
        self._open = {}  # each is closed when the last thread that reads it lets go

    def close(self) -> None:
        handles, self._open = self._open, {}
        for handle in handles.values():
            handle.close()


class PackWriter:
    """One locked pack, being appended to. Use as a context manager.

    ``committed_end`` tells where a pack's committed bytes end, after the lock is held, or
    None where nothing may be added; ``newest`` the highest number ever used. ``fresh``:
    only packs that it makes itself; ``made`` are the numbers of these.
    """

    def __init__(
        self,
        fs: FileSystem,
        folder: Path,
        committed_end: Callable[[int], int | None],
        newest: Callable[[], int],
        *,
        fresh: bool = False,
    ) -> None:
        self._fresh = fresh
        self._fs = fs
        self._folder = folder
        self._end = committed_end
        self._newest = newest
        self._held: list[tuple[FileLock, WriteFile]] = []
        self._file: WriteFile | None = None
        self._regions: list[Region] = []
        self._number = 0
        self._start = 0
        self._created = False
        self.made: list[int] = []

    def __enter__(self) -> PackWriter:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def append(self, head: bytes, body: Sequence[Bytes]) -> tuple[int, int]:
        """Writes one record; returns (pack, offset). Not durable before ``sync``."""
        file = self._file
        if file is None or file.position >= PACK_TARGET:
            self._finish()
            file = self._acquire()
        at = file.position
        file.write([head, *body])
        return self._number, at

    def push(self) -> None:
        """Begins to make what was appended durable, so that ``sync`` has less to wait for."""
        if self._file is not None:
            self._file.sync()

    def sync(self) -> tuple[Region, ...]:
        """Makes everything appended durable and returns where it lies."""
        self._finish_region()
        if self._file is not None:
            self._file.sync()
        if self._created:
            self._fs.sync_dir(self._folder)
            self._created = False
        return tuple(self._regions)

    def cut(self) -> tuple[Region, ...]:
        """Where what was appended since the last cut lies; not durable before ``sync``."""
        self._finish_region()
        regions, self._regions = self._regions, []
        return tuple(regions)

    def close(self) -> None:
        """Lets go of every pack; call it only after the journal entry is written."""
        self._file = None
        while self._held:
            lock, file = self._held.pop()
            file.close()
            lock.release()

    def _finish_region(self) -> None:
        if self._file is not None and self._file.position > self._start:
            length = self._file.position - self._start
            self._regions.append(Region(self._number, self._start, length))
            self._start = self._file.position

    def _finish(self) -> None:
        """Leaves a full pack for a new one, keeping its lock."""
        self._finish_region()
        if self._file is not None:
            self._file.sync()
            self._file = None

    def _acquire(self) -> WriteFile:
        numbers = pack_numbers(self._fs, self._folder)
        for number in reversed(numbers[-_TRIES:] if not self._fresh else []):
            if file := self._try(number):
                return file
        number = max(numbers[-1] if numbers else 0, self._newest()) + 1
        for fresh in range(number, number + 10_000):
            path = pack_path(self._folder, fresh)
            if self._fs.stat(path) is not None:
                continue
            try:
                self._fs.open_write(path, create=True, exclusive=True).close()
            except FileExistsError:
                continue  # another process was faster
            self._created = True
            if file := self._try(fresh):
                self.made.append(fresh)  # else another process has taken it over
                return file
        raise IoFailed(f"no new pack can be made in {self._folder}")

    def _try(self, number: int) -> WriteFile | None:
        """The pack opened for appending, or None if it is full or somebody writes to it."""
        path = pack_path(self._folder, number)
        lock = self._fs.lock(path, block=False)
        if lock is None:
            return None
        try:
            file = self._opened(number, path)
        except BaseException:
            lock.release()
            raise
        if file is None:
            lock.release()
            return None
        self._held.append((lock, file))
        self._file, self._number = file, number
        self._start = file.position
        return file

    def _opened(self, number: int, path: Path) -> WriteFile | None:
        """The pack, which is locked, cut to what is committed; None if it is full."""
        end = self._end(number)
        identity = self._fs.stat(path)
        if end is None or end >= PACK_TARGET or identity is None or identity.size < end:
            return None
        if self._fresh and end:
            return None  # another process was faster, and has published already
        file = self._fs.open_write(path)
        try:
            if end == 0:
                file.truncate(0)
                file.write(PACK_HEADER)
                self._created = True
            elif file.size() > end:
                file.truncate(end)
        except BaseException:
            file.close()
            raise
        return file
