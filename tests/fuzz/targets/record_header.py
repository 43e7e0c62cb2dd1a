"""The header of a record; its checksum is put right, or the fuzzer would see nothing else."""

import struct

from blake3 import blake3

from mvc.store.packs.records import Coding, Member, decode_header, encode_header

_FIXED = 16


def run(data: bytes) -> None:
    head = struct.pack("<4sIQ", b"mvR1", max(len(data) - 8, 0), int.from_bytes(data[:8], "little"))
    head += data[8:]
    header = decode_header(head + blake3(head).digest(16), "a test")
    assert len(header.by_id) <= len(header.members)
    for member in header.members:
        assert isinstance(member.coding.pipeline, str)
    encoded = encode_header(header.members, group=header.group, body_size=header.body_size)
    assert header.size >= len(encoded) - 16


def seeds() -> list[bytes]:
    text = Coding("sub | zigzag | elide | planes | zstd:huff")
    base = Member(1, bytes(32), 0, 64, Coding("raw"), b"", 0, 5, bytes(8))
    delta = Member(2, b"x" * 32, 1 << 25, 64, text, b"y" * 8, 5, 7, bytes(8))
    found = []
    for members, group, body in (
        ((base,), False, 5),
        ((base, delta), False, 12),
        ((base,), True, 5),
    ):
        header = encode_header(members, group=group, body_size=body)
        found.append(body.to_bytes(8, "little") + header[_FIXED:-16])
    return found
