"""Zip archives: every writer's variants are read, ambiguous ones refused."""

import io
import struct
import zipfile

import pytest

from mvc.adapters.files.zip_layout import find_checks, read_members
from mvc.errors import BadModelFile
from tests.adapters.helpers import MemorySource


class Unseekable(io.RawIOBase):
    """A sink that makes zipfile write data descriptors."""

    def __init__(self):
        self.data = bytearray()

    def writable(self):
        return True

    def write(self, piece):
        self.data += piece
        return len(piece)


def archive(names=("a", "b"), sink=None, force_zip64=False, **options) -> bytes:
    sink = io.BytesIO() if sink is None else sink
    with zipfile.ZipFile(sink, "w", **options) as file:
        for name in names:
            with file.open(name, "w", force_zip64=force_zip64) as member:
                member.write(name.encode() * 50)
    return bytes(sink.data) if isinstance(sink, Unseekable) else sink.getvalue()


def members_of(data: bytes):
    return read_members(MemorySource(data), "x")


@pytest.mark.parametrize("force_zip64", [False, True])
@pytest.mark.parametrize("sink", [io.BytesIO, Unseekable])
def test_members_and_checksums(sink, force_zip64):
    data = archive(("a", "ü"), sink(), force_zip64)
    members = members_of(data)
    assert [m.name for m in members] == ["a", "ü"]
    for member in members:
        assert data[member.start : member.start + member.size] == member.name.encode() * 50
    checks = find_checks(MemorySource(data), "x", members)
    assert len(checks) == 4
    for check in checks:
        covered = data[check.start : check.start + check.length]
        assert data[check.position : check.position + 4] == struct.pack(
            "<I", zipfile.crc32(covered)
        )


def test_sizes_beyond_32_bits_are_taken_from_the_wide_field():
    data = archive(("a",))
    at = data.index(b"PK\x01\x02")
    wide = bytearray(data[at : at + 47])
    size = struct.unpack_from("<I", wide, 24)[0]
    wide[20:28] = b"\xff" * 8
    wide[30:32] = struct.pack("<H", 20)
    wide += struct.pack("<HHQQ", 1, 16, size, size)
    end = bytearray(data[at + 47 :])
    end[12:16] = struct.pack("<I", len(wide))
    (member,) = members_of(data[:at] + bytes(wide) + bytes(end))
    assert member.size == size


def test_compressed_members_have_places_but_no_checks():
    data = archive(compression=zipfile.ZIP_DEFLATED)
    members = members_of(data)
    assert not any(m.stored for m in members)
    assert find_checks(MemorySource(data), "x", members) == ()


def changed(data: bytes, at: int, new: bytes) -> bytes:
    return data[:at] + new + data[at + len(new) :]


DATA = archive()
CENTRAL = DATA.index(b"PK\x01\x02")
END = DATA.index(b"PK\x05\x06")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        DATA[:-1],
        DATA + b"x",
        DATA[:CENTRAL],
        changed(DATA, 0, b"XX"),
        changed(DATA, 30, b"c"),
        changed(DATA, CENTRAL, b"XX"),
        changed(DATA, CENTRAL + 8, b"\x01"),
        changed(DATA, CENTRAL + 20, b"\xff\xff\xff\xff"),
        changed(DATA, CENTRAL + 20, b"\x40\x00\x00\x00\x40"),
        changed(DATA, CENTRAL + 28, b"\xff\xff"),
        changed(DATA, CENTRAL + 42, b"\x01"),
        changed(DATA, END + 10, b"\x01"),
        changed(DATA, END + 12, b"\xff\xff"),
        changed(DATA, END + 16, b"\xff\xff\xff\xff"),
        archive(("a", "a")),
        DATA[:CENTRAL] + DATA[CENTRAL : CENTRAL + 47] * 2 + DATA[END:],
    ],
)
@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_ambiguous_archives_are_refused(data):
    with pytest.raises(BadModelFile):
        members_of(data)
