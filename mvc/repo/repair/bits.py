"""Repair: one flipped bit, found by its checksum and set right in its place.

A checksum of 8 or 16 bytes tells the one right byte string among all that differ from
what is stored by one bit. Trying them all costs the square of the length, so only short
things are tried: headers of records, manifests, small tensors.
"""

from __future__ import annotations

from blake3 import blake3

from mvc.errors import DamagedData
from mvc.io.files import WriteFile
from mvc.repo.maintenance.report import Healed
from mvc.repo.maintenance.survey import Survey
from mvc.store.packs.reader import pack_path
from mvc.store.packs.records import CHECK_SIZE, PREFIX_SIZE, read_prefix
from mvc.store.snapshot import PACKS, Snapshot

__all__ = ["Corrector"]

_MOST_EACH = 16 << 10  # bytes of one header or payload: about a second
_MOST_ALL = 1 << 35  # bytes hashed in all: half a minute


class Corrector:
    """Corrects single bits, as long as it is not too much work altogether."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._left = _MOST_ALL

    def correct(self, found: Survey) -> list[Healed]:
        """Sets right what it can, durably; what was read of ``found`` is out of date then."""
        healed: list[Healed] = []
        packs = {s.pack for s in found.stretches}
        for pack in sorted(packs):
            path = pack_path(self._snapshot.folder / PACKS, pack)
            if self._snapshot.fs.stat(path) is None:
                continue
            with self._snapshot.fs.open_write(path) as file:
                before = len(healed)
                for stretch in found.stretches:
                    if stretch.pack == pack and self._header(file, stretch.start, stretch.end):
                        healed.append(_healed(pack, stretch.start, "the header"))
                for place in sorted(p for p in found.damaged if p[0] == pack):
                    if self._payload(file, place):
                        healed.append(_healed(pack, place[1], f"object {place[2]}"))
                if len(healed) > before:
                    file.sync()
        self._snapshot.packs.forget()
        return healed

    def _affordable(self, size: int) -> bool:
        cost = 8 * size * size
        if size > _MOST_EACH or cost > self._left:
            return False
        self._left -= cost
        return True

    def _header(self, file: WriteFile, at: int, end: int) -> bool:
        """The header of a record that begins at ``at``; true if a bit of it was wrong."""
        prefix = file.read(at, PREFIX_SIZE)
        size = _header_size(prefix, end - at)
        if size is not None and self._stands(file, at, prefix, size):
            return False  # it is a payload that is damaged
        for changed in (_flipped(prefix, bit) for bit in range(8 * len(prefix))):
            other = _header_size(changed, end - at)
            if other is not None and self._stands(file, at, changed, other):
                file.write_at(at, changed)
                return True
        if size is None or not self._affordable(PREFIX_SIZE + size):
            return False
        length = PREFIX_SIZE + size
        data = file.read(at, length + CHECK_SIZE)
        if len(data) < length + CHECK_SIZE:
            return False  # the file ends too early
        bit = _wrong_bit(data[:length], data[length:])
        if bit is None:
            return False
        changed = _flipped(data, bit)
        file.write_at(at + bit // 8, changed[bit // 8 : bit // 8 + 1])
        return True

    def _stands(self, file: WriteFile, at: int, prefix: bytes, size: int) -> bool:
        """Whether header and checksum behind a prefix fit."""
        data = prefix + file.read(at + PREFIX_SIZE, size + CHECK_SIZE)
        end = PREFIX_SIZE + size
        return blake3(data[:end]).digest(CHECK_SIZE) == data[end:]

    def _payload(self, file: WriteFile, place: tuple[int, int, int]) -> bool:
        pack, at, i = place
        try:
            header = self._snapshot.packs.header(pack, at)
        except DamagedData:
            return False
        member = header.members[i]
        if (header.group and i) or not self._affordable(member.stored):
            return False
        begin = at + header.body_at + member.at
        data = file.read(begin, member.stored)
        bit = _wrong_bit(data, member.check)
        if bit is None or bit >= 8 * len(data):
            return False
        file.write_at(begin + bit // 8, _flipped(data, bit)[bit // 8 : bit // 8 + 1])
        return True


def _header_size(prefix: bytes, room: int) -> int | None:
    """The header's size by a prefix that can be one."""
    try:
        return read_prefix(prefix, room, "a record")[0]
    except DamagedData:
        return None


def _flipped(data: bytes, bit: int) -> bytes:
    changed = bytearray(data)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def _wrong_bit(data: bytes, check: bytes) -> int | None:
    """The bit of ``data``, or behind it of ``check``, with which the checksum fits."""
    size = len(check)
    distance = int.from_bytes(blake3(data).digest(size), "little")
    distance ^= int.from_bytes(check, "little")
    if distance.bit_count() == 1:
        return 8 * len(data) + distance.bit_length() - 1
    tried = bytearray(data)
    for bit in range(8 * len(data)):
        tried[bit // 8] ^= 1 << bit % 8
        if blake3(tried).digest(size) == check:
            return bit
        tried[bit // 8] ^= 1 << bit % 8
    return None


def _healed(pack: int, at: int, what: str) -> Healed:
    where = f"{what} of the record at byte {at} of pack {pack}"
    return Healed("record", where, "its checksum, which tells the one bit that was wrong")
