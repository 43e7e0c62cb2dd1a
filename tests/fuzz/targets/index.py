"""Blocks and directories of the index, their hashes put right."""

from blake3 import blake3

from mvc.store.index.index import Meta
from mvc.store.index.runs import Block, Directory, RunReader, block_check, build_run
from mvc.store.journal.frames import GENESIS


def run(data: bytes) -> None:
    kind, body = data[:1], data[1:]
    if kind == b"m":
        Meta.decode(body + blake3(body).digest(16))
    elif kind == b"d":
        Directory.decode(body, block_check(body))
    else:
        reader = RunReader(Directory((Block(b"", block_check(body)),), 1), lambda _: body)
        list(reader.scan(b"", b"\xff" * 40))
        reader.last(b"", b"\xff" * 40)


def seeds() -> list[bytes]:
    blocks: list[bytes] = []
    directory = build_run([b"%06d" % i for i in range(700)], lambda _, block: blocks.append(block))
    meta = Meta(bytes(16), GENESIS, ()).encoded()[:-16]
    return [b"m" + meta, b"d" + directory.encoded(), *(b"b" + block for block in blocks)]
