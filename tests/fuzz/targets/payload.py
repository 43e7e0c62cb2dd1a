# ruff: noqa: E501
"""A payload through every pipeline's stages, as a full record and as a delta.

The first byte picks the pipeline, the next two the raw size.
"""

from mvc.codecs.payload import Payload, pack_chunks
from mvc.errors import DamagedData
from mvc.pipelines.pipeline import Pipeline

TEXTS = (
    "sub | zigzag | elide | planes | zstd:huff", "xor | planes | zstd:1", "sub | raw", "xor | elide | zstd:3",
    "sub | zigzag | planes | zstd:1", "xor | zstd:1", "sub | elide | planes | zstd:19", "xor | elide | planes | zstd:huff",
    "xor | sparse:values,indices,diff | zstd:1", "sub | zigzag | sparse:none | zlib:1", "xor | planes | bz2:1", "sub | planes | lzma:0",
    "sub | zigzag | blocks:3 | zstd:huff",
)  # fmt: skip


def run(data: bytes) -> None:
    if len(data) < 3:
        return
    pipeline, size = (
        Pipeline.parse(TEXTS[data[0] % len(TEXTS)]),
        int.from_bytes(data[1:3], "little"),
    )
    payload = Payload(data[3:], size)
    failed: list[DamagedData] = []
    for i in range(min(payload.count, 64)):
        start = i * payload.chunk_size
        stop = min(start + payload.chunk_size, size)
        for full in (True, False):
            out = memoryview(bytearray(stop - start))
            try:
                if full:
                    pipeline.full().decode_chunk(payload.chunk(i), out, payload.width)
                else:
                    pipeline.apply_chunk(payload.chunk(i), out, payload.width, reverse=bool(i % 2))
            except DamagedData as error:
                failed.append(error)
    if failed:
        raise failed[0]


def seeds() -> list[bytes]:
    new = bytes(range(256)) * 4 + bytes(1000) + b"end"
    base = bytes(range(1, 256)) * 4 + bytes(1007)
    found = []
    for i, text in enumerate(TEXTS):
        for pipeline, old in ((Pipeline.parse(text), base), (Pipeline.parse(text).full(), None)):
            for width in (1, 4):
                chunk = pipeline.encode_chunk(
                    memoryview(new), None if old is None else memoryview(old[: len(new)]), width
                )
                parts = b"".join(map(bytes, pack_chunks([chunk], width, 4096)))
                found.append(bytes([i]) + len(new).to_bytes(2, "little") + parts)
    return found


assert len(bytes(range(1, 256)) * 4 + bytes(1007)) == 2027
