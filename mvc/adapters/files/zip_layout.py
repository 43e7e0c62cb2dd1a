"""Finds the positions of the members (files) of a zip archive, and of their checksums.

Files of ``torch.save``, numpy and Keras are zip archives. Archives with encrypted or overlapping
members or with duplicate names are refused. Format: PKWARE APPNOTE 6.3.10, sections 4.3 to 4.5.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Iterator

from msgspec import Struct

from mvc.adapters.parsed import CHECK_BYTES, Source, read_exactly
from mvc.errors import BadModelFile
from mvc.limits import CHUNK, MAX_PICKLE, MAX_ZIP_MEMBERS
from mvc.model.manifest import Check

KERAS_WEIGHTS = "model.weights.h5"
"""The member of a Keras file with the tensors, an HDF5 file."""

_END = struct.Struct("<4sHHHHIIH")
_END64 = struct.Struct("<4sQHHIIQQQQ")
_LOCATOR = struct.Struct("<4sIQI")
_CENTRAL = struct.Struct("<4sHHHHHHIIIHHHHHII")
_LOCAL = struct.Struct("<4sHHHHHIIIHH")
_MAX_COMMENT = 0xFFFF
_UNKNOWN = 0xFFFFFFFF
_ENCRYPTED, _DESCRIPTOR, _UTF8 = 1, 8, 0x800
_LOCAL_CRC, _CENTRAL_CRC = 14, 16


class ZipMember(Struct, frozen=True):
    """A member: ``size`` bytes at ``start``. ``header``: the position of the member's header.

    ``stored``: whether the bytes are not compressed. ``fields``: positions of the fields that have
    the member's CRC-32.
    """

    name: str
    header: int
    start: int
    size: int
    stored: bool
    fields: tuple[int, ...]


def read_members(source: Source, name: str) -> tuple[ZipMember, ...]:
    """All members in file order. Raises BadModelFile."""
    try:
        start, length, count = read_directory(source, name)
        directory = source.read(start, length)
        members = list(_members(source, directory, start, count=count, name=name))
    except struct.error as error:
        raise BadModelFile(f"{name}: its zip directory is truncated") from error
    members.sort(key=lambda m: m.header)
    end = 0
    for member in members:
        if member.header < end:
            raise BadModelFile(f"{name}: two zip members overlap")
        end = member.start + member.size
    if end > start:
        raise BadModelFile(f"{name}: a zip member overlaps the directory")
    if len({m.name for m in members}) != len(members):
        raise BadModelFile(f"{name}: two zip members have the same name")
    return tuple(members)


def read_directory(source: Source, name: str) -> tuple[int, int, int]:
    """The directory's offset, length and number of members. Raises BadModelFile, struct.error."""
    size = source.size()
    tail_at = max(0, size - _END.size - _MAX_COMMENT)
    tail = source.read(tail_at, size - tail_at)
    at = tail.rfind(b"PK\x05\x06")
    while at >= 0:
        if at + _END.size <= len(tail):
            end = _END.unpack_from(tail, at)
            if at + _END.size + end[7] == len(tail):
                break
        at = tail.rfind(b"PK\x05\x06", 0, at)
    if at < 0:
        raise BadModelFile(f"{name}: its zip directory is missing")
    count, length, start, limit = end[4], end[5], end[6], tail_at + at
    locator_at = limit - _LOCATOR.size
    locator = source.read(locator_at, _LOCATOR.size) if locator_at >= 0 else b""
    if locator[:4] == b"PK\x06\x07":
        limit = _LOCATOR.unpack(locator)[2]
        if limit > locator_at - _END64.size:
            raise BadModelFile(f"{name}: its zip64 directory is outside the file")
        end64 = _END64.unpack(source.read(limit, _END64.size))
        if end64[0] != b"PK\x06\x06":
            raise BadModelFile(f"{name}: its zip64 directory is missing")
        count, length, start = end64[7:10]
    if start + length > limit or length > MAX_PICKLE or count > MAX_ZIP_MEMBERS:
        raise BadModelFile(f"{name}: its zip directory is outside the file, or too large")
    return start, length, count


def _members(
    source: Source, directory: bytes, start: int, *, count: int, name: str
) -> Iterator[ZipMember]:
    """The members that the directory at ``start`` lists. Raises BadModelFile."""
    at = 0
    for _ in range(count):
        row = _CENTRAL.unpack_from(directory, at)
        flags, method = row[3:5]
        if row[0] != b"PK\x01\x02" or flags & _ENCRYPTED:
            raise BadModelFile(f"{name}: a zip member is encrypted or malformed")
        text_at = at + _CENTRAL.size
        extra_at = text_at + row[10]
        end = extra_at + row[11] + row[12]
        if end > len(directory):
            raise BadModelFile(f"{name}: its zip directory is truncated")
        extra = directory[extra_at : extra_at + row[11]]
        full, size, header = _wide(extra, (row[9], row[8], row[16]), name)
        if (method == 0 and full != size) or max(size, header) > start:
            raise BadModelFile(f"{name}: a zip member has two sizes, or is outside the file")
        text = directory[text_at:extra_at]
        data = _data_start(source, header, (flags, method, text), name)
        fields = [header + _LOCAL_CRC, start + at + _CENTRAL_CRC]
        if flags & _DESCRIPTOR:
            after = data + size
            fields.append(after + 4 if source.read(after, 4) == b"PK\x07\x08" else after)
        try:
            decoded = text.decode("utf-8" if flags & _UTF8 else "cp437")
        except UnicodeDecodeError as error:
            raise BadModelFile(f"{name}: the name of a zip member is not UTF-8") from error
        yield ZipMember(
            decoded, header, data, size, stored=method == 0, fields=tuple(sorted(fields))
        )
        at = end
    if at != len(directory):
        raise BadModelFile(f"{name}: its zip directory is longer than its members")


def _wide(extra: bytes, values: tuple[int, ...], name: str) -> tuple[int, ...]:
    """The sizes and offset of a member: ``values``, with unknown values from ``extra``.

    Values that need 64 bits are not in ``values``, but in the zip64 field of ``extra`` (4.5.3).
    """
    missing = values.count(_UNKNOWN)
    at = 0
    while missing and at + 4 <= len(extra):
        kind, length = struct.unpack_from("<HH", extra, at)
        if kind == 1 and 8 * missing <= length <= len(extra) - at - 4:
            wide = iter(struct.unpack_from(f"<{missing}Q", extra, at + 4))
            return tuple(next(wide) if v == _UNKNOWN else v for v in values)
        at += 4 + length
    if missing:
        raise BadModelFile(f"{name}: a zip member has no size")
    return values


def _data_start(source: Source, header: int, entry: tuple[int, int, bytes], name: str) -> int:
    """The start of a member's bytes.

    Raises BadModelFile if the header before these bytes differs from ``entry``, the member's entry
    in the directory.
    """
    head = source.read(header, _LOCAL.size + len(entry[2]))
    if len(head) != _LOCAL.size + len(entry[2]):
        raise BadModelFile(f"{name}: a zip member is outside the file")
    row = _LOCAL.unpack_from(head)
    same = (row[2], row[3], head[_LOCAL.size :]) == entry and row[9] == len(entry[2])
    if row[0] != b"PK\x03\x04" or not same:
        raise BadModelFile(f"{name}: a zip member differs from its entry in the directory")
    return header + len(head) + int(row[10])


def find_checks(source: Source, name: str, members: Iterable[ZipMember]) -> tuple[Check, ...]:
    """The CRC-32 fields whose value is correct.

    mvc does not store these values, because a checkout computes them. All other bytes of the
    archive's structure, including fields with a wrong value, are stored unchanged. Reads all bytes
    of the uncompressed ``members``.
    """
    buffer = memoryview(bytearray(CHUNK))
    checks = []
    for member in members:
        if not member.size or not member.stored:
            continue
        value = 0
        for at in range(0, member.size, len(buffer)):
            piece = buffer[: min(len(buffer), member.size - at)]
            read_exactly(source, name, member.start + at, piece)
            value = zlib.crc32(piece, value)
        wanted = value.to_bytes(CHECK_BYTES, "little")
        checks += [
            Check(field, member.start, member.size)
            for field in member.fields
            if source.read(field, CHECK_BYTES) == wanted
        ]
    return tuple(sorted(checks, key=lambda c: c.position))
