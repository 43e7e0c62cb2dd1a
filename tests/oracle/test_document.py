"""The worked examples of docs/format.md, and its rules for patches and casts."""

from __future__ import annotations

import random
import re
from pathlib import Path

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from mvc.codecs.cast import cast
from mvc.codecs.patch import encode_patch
from tests.oracle import reader
from tests.oracle.holding import rng
from tests.oracle.reader import Cursor

DOCUMENT = Path(__file__).parents[2] / "docs" / "format.md"


def example(name: str) -> bytes:
    (block,) = re.findall(rf"^```hex {name}\n(.*?)^```", DOCUMENT.read_text(), re.S | re.M)
    return b"".join(bytes.fromhex(line.split("  ")[0]) for line in block.splitlines())


def test_examples_of_the_document():
    numbers = np.arange(1, 9, dtype="<u2").tobytes()
    assert (
        reader.blob_id("uint16", (8,), numbers) == reader.blake3(example("blob-preimage")).digest()
    )
    (entry,) = reader.read_journal(example("frame") * 2)
    assert (entry.operation, entry.refs) == ("init", [("HEAD", None, "main")])
    record = Cursor(example("record")).record()
    assert reader.apply(record, record.members[0], None) == numbers
    old = np.array([10, 20, 30, 40, 50, 60, 70, 80], "<u2").tobytes()
    new = np.array([10, 20, 31, 40, 50, 59, 70, 80], "<u2").tobytes()
    coding = "sub | zigzag | elide | planes | zstd:huff"
    width, delta = Cursor(example("payload-elided")).single(16, coding)
    assert reader.combine(old, delta, width, "sub", False) == new
    assert reader.combine(new, delta, width, "sub", True) == old
    width, piece = Cursor(example("payload-blocks")).single(10, "blocks:3 | zstd:huff")
    assert (width, piece) == (1, bytes([9, 60, 1, 9, 60, 2, 9, 61, 3, 9]))
    coding = "xor | planes:all | zstd:1"
    first, second = Cursor(example("payload-group")).group([16, 3], coding)
    assert reader.combine(old, first[1], first[0], "xor", False) == new
    assert reader.combine(b"\1\2\2", second[1], second[0], "xor", False) == b"\1\2\3"
    ((width, delta),) = Cursor(example("payload-sparse")).group([16], "sub | sparse")
    assert reader.combine(old, delta, width, "sub", False) == new
    some = np.array([0.5, 0.5, 0, 1.75, 2], "<f4").tobytes()
    more = np.array([0.5, 0.75, 0, 1, 2], "<f4").tobytes()
    for base, piece, reverse in ((some, more, False), (more, some, True)):
        width, delta = Cursor(example("payload-steps")).single(20, "steps | gaps", base, reverse)
        assert reader.combine(base, delta, width, "steps | gaps", reverse) == piece
    base, text = (
        b"hello brave old world, hello brave" * 2,
        b"hello brave new world, hello brave" * 2,
    )
    assert Cursor(example("payload-patch")).patch(base, b"", 68) == text
    (said,) = [reader.told(example("statement"), 0)]
    assert (said.author, said.reason, said.target) == ("ada", "test", "prod")
    assert (said.time, said.hybrid - said.recorded, said.ahead) == (said.recorded, 1, None)
    assert f"`{said.id.hex()}`" in DOCUMENT.read_text()
    _, (file,) = Cursor(example("manifest")).get("version,*file")
    assert (file.path, file.tensors[0].spec) == ("model.safetensors", ("uint16", (8,)))


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 9_000_000), st.integers(0, 9_000_000), st.integers(0, 1 << 20))
def test_windows_of_large_patches(length: int, old: int, extra: int):
    text = rng(1).bytes(65_521) * 140  # no window is whole periods off
    new, base = text[77 : 77 + length], text[:old]
    encoded = encode_patch(memoryview(new), memoryview(base), text[:extra])
    assert Cursor(encoded).patch(base, text[:extra], length) == new


@given(st.sampled_from(["float32>bfloat16", "float32>float16", "float64>float32"]), st.randoms())
def test_casts_by_the_document(names: str, random_: random.Random):
    source, _, to = names.partition(">")
    special = bytes.fromhex("0000c07f 010080ff 0100807f 000080ff 01000000 ffff7f47 0000f07f")
    data = special + random_.randbytes(8 * 64 - len(special))
    assert reader.cast(data, names) == bytes(cast(memoryview(data), source, to))
