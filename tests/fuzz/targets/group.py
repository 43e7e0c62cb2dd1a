"""A group payload through every kind of pipeline that has groups.

The first byte holds the number of members (bits 0-2) and the pipeline, then come two bytes
of size each.
"""

from mvc.pipelines.group import decode_group, encode_group
from mvc.pipelines.pipeline import Pipeline

TEXTS = (
    "vsol",
    "sub | zigzag | planes:concat | zstd:huff",
    "xor | sparse | zstd:1",
    "sub | zigzag | sparse:layers",
    "xor | sparse:layers,diff | lzma:0",
    "xor | planes:all | bz2:1",
    "sub | sparse:layers,values | zlib:1",
)


def run(data: bytes) -> None:
    count, which = (data[0] % 8, data[0] // 8) if data else (0, 0)
    sizes = [int.from_bytes(data[1 + 2 * i : 3 + 2 * i], "little") for i in range(count)]
    payload = memoryview(data[1 + 2 * count :])
    pipeline = Pipeline.parse(TEXTS[which % len(TEXTS)])
    out = decode_group(pipeline, payload, sizes)
    assert [len(member) for member, _ in out] == sizes
    assert {width for _, width in out} <= {1, 2, 4, 8}


def seeds() -> list[bytes]:
    members = [(bytes(range(200)), 4), (bytes(33), 2), (b"", 1), (b"\7" * 64, 8)]
    given = [(memoryview(m), memoryview(bytes(len(m))), w) for m, w in members]
    sizes = b"".join(len(m).to_bytes(2, "little") for m, _ in members)
    return [
        bytes([8 * i + len(members)])
        + sizes
        + b"".join(map(bytes, encode_group(Pipeline.parse(text), given)))
        for i, text in enumerate(TEXTS)
    ]
