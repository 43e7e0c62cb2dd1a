"""Sorted runs and the index over them, against a Python set."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from mvc.errors import DamagedData
from mvc.io.files import FileSystem
from mvc.store.index.index import Index, Meta
from mvc.store.index.runs import BLOCK_KEYS, Directory, RunReader, block_check, build_run
from mvc.store.journal.frames import GENESIS, Position

KEYS = st.sets(st.binary(min_size=1, max_size=12), max_size=60)
LOW, HIGH = b"", b"\xff" * 40
IDENTITY = bytes(range(16))


def built(keys: set[bytes]) -> tuple[RunReader, dict[bytes, bytes], Directory]:
    blocks: dict[bytes, bytes] = {}
    directory = build_run(sorted(keys), blocks.__setitem__)
    return RunReader(directory, blocks.get), blocks, directory


@given(KEYS, st.binary(max_size=12), st.binary(max_size=12))
def test_look_ups(keys: set[bytes], low: bytes, high: bytes) -> None:
    reader, _, directory = built(keys)
    expected = sorted(key for key in keys if low <= key < high)
    assert list(reader.scan(low, high)) == expected
    assert reader.last(low, high) == (expected[-1] if expected else None)
    assert directory.count == len(keys)


@pytest.mark.parametrize("count", [0, 1, BLOCK_KEYS - 1, BLOCK_KEYS, BLOCK_KEYS + 1, 2000])
def test_borders_of_blocks(count: int) -> None:
    keys = [i.to_bytes(4, "big") for i in range(0, 2 * count, 2)]
    reader, blocks, directory = built(set(keys))
    assert len(blocks) == -(-count // BLOCK_KEYS) == len(directory.blocks)
    for i in range(0, 2 * count + 2, max(1, count // 20)):
        bound = i.to_bytes(4, "big")
        assert list(reader.scan(bound, HIGH)) == [key for key in keys if key >= bound]
        assert reader.last(LOW, bound) == max((k for k in keys if k < bound), default=None)


def test_every_flipped_bit_of_a_block_or_directory_is_found() -> None:
    keys = {i.to_bytes(3, "big") for i in range(700)}
    _, blocks, directory = built(keys)
    encoded = directory.encoded()
    check = block_check(encoded)
    assert Directory.decode(encoded, check) == directory
    for bit in range(8 * len(encoded)):
        flipped = bytearray(encoded)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(DamagedData):
            Directory.decode(bytes(flipped), check)
    rng = random.Random(1)
    second = directory.blocks[1].check
    for bit in rng.sample(range(8 * len(blocks[second])), 400):
        flipped = bytearray(blocks[second])
        flipped[bit // 8] ^= 1 << bit % 8
        reader = RunReader(directory, {**blocks, second: bytes(flipped)}.get)
        with pytest.raises(DamagedData):
            list(reader.scan(LOW, HIGH))
        assert reader.last(LOW, (100).to_bytes(3, "big")) == (99).to_bytes(3, "big")


def test_a_missing_block_is_damage() -> None:
    _, blocks, directory = built({b"a"})
    with pytest.raises(DamagedData, match="missing"):
        RunReader(directory, {}.get).last(LOW, HIGH)
    assert blocks


def folder(tmp_path: Path) -> Path:
    (tmp_path / "index").mkdir()
    return tmp_path / "index"


@pytest.fixture
def index(tmp_path: Path) -> Iterator[Index]:
    made = Index(FileSystem(), folder(tmp_path), writable=True, create=True)
    yield made
    made.close()


def present(index: Index, meta: Meta) -> list[bytes]:
    return sorted(key for run in index.readers(meta) for key in run.scan(LOW, HIGH))


@settings(max_examples=15, deadline=None)
@given(st.lists(KEYS, max_size=25))
def test_batches_become_few_runs_with_the_same_keys(
    tmp_path_factory: pytest.TempPathFactory, batches: list[set[bytes]]
) -> None:
    index = Index(FileSystem(), tmp_path_factory.mktemp("i"), writable=True, create=True)
    meta, expected = index.meta(IDENTITY), set[bytes]()
    assert (meta.position, meta.runs) == (GENESIS, ())
    for i, batch in enumerate(batches):
        fresh = {key + bytes([i]) for key in batch}
        meta = index.extend(meta, fresh, Position(i + 1, i + 1, bytes(16)))
        expected |= fresh
        assert index.meta(IDENTITY) == meta
        assert present(index, meta) == sorted(expected)
        assert len(meta.runs) <= 3 * (1 + i.bit_length())
    index.close()


def test_whoever_comes_second_gets_what_the_first_one_wrote(index: Index) -> None:
    empty = index.meta(IDENTITY)
    first = index.extend(empty, [b"a"], Position(1, 1, bytes(16)))
    second = index.extend(empty, [b"b"], Position(2, 2, bytes(16)))
    assert second == first
    assert present(index, second) == [b"a"]


def test_the_map_grows(index: Index) -> None:
    rng = random.Random(0)
    keys = {rng.randbytes(200) for _ in range(100_000)}
    meta = index.extend(index.meta(IDENTITY), keys, Position(1, 1, bytes(16)))
    assert sum(1 for run in index.readers(meta) for _ in run.scan(LOW, HIGH)) == len(keys)


def test_another_repositorys_index_is_refused(index: Index) -> None:
    index.extend(index.meta(IDENTITY), [b"a"], Position(1, 1, bytes(16)))
    with pytest.raises(DamagedData, match="another repository"):
        index.meta(bytes(16))


def test_every_flipped_bit_of_the_meta_value_is_found() -> None:
    meta = Meta(IDENTITY, Position(5, 2, bytes(16)), ())
    data = meta.encoded()
    assert Meta.decode(data) == meta
    for bit in range(8 * len(data)):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(DamagedData):
            Meta.decode(bytes(flipped))


def test_a_file_shorter_than_its_header_says_is_never_mapped(tmp_path: Path) -> None:
    index = Index(FileSystem(), folder(tmp_path), writable=True, create=True)
    index.extend(index.meta(IDENTITY), [bytes([i]) * 30 for i in range(200)], GENESIS)
    index.close()
    file = tmp_path / "index/data.mdb"
    size = file.stat().st_size
    for cut in (1, 4095, 4096, 8191, 8192, size - 4096, size - 1):
        data = file.read_bytes()[:cut]
        (tmp_path / "cut").mkdir(exist_ok=True)
        (tmp_path / "cut/data.mdb").write_bytes(data)
        with pytest.raises(DamagedData, match=r"truncated|shorter"):
            Index(FileSystem(), tmp_path / "cut", writable=True)


@given(
    st.sets(st.binary(min_size=1, max_size=3), min_size=1, max_size=40),
    st.sampled_from([1, 100, 126, 127, 128, 300]),
)
def test_keys_of_one_length_and_of_any(keys: set[bytes], padding: int) -> None:
    """Lengths of one byte and of two, alike in a block and mixed."""
    padded = {key.ljust(padding, b"\0") for key in keys}
    for wanted in (padded, padded | keys):
        reader, _, directory = built(wanted)
        assert list(reader.scan(LOW, HIGH)) == sorted(wanted)
        encoded = directory.encoded()
        assert Directory.decode(encoded, block_check(encoded)) == directory


def test_what_is_no_directory_or_block_is_damage() -> None:
    """Bytes that match their checksum, but were not written by a writer of runs."""
    for raw in (
        b"\x01\x01",
        b"\x01\x01\x03ab",
        b"\x01\x00\x00",
        b"\x01\x02" + b"\x01k" + bytes(16),
    ):
        data = zstandard.ZstdCompressor().compress(raw)
        with pytest.raises(DamagedData):
            Directory.decode(data, block_check(data))
    _, _, directory = built({b"key"})
    for raw in (b"\x02\x03key", b"\x01\x03ke", b"\x01\x03key!", b"\x01\xff\xff\xff", b""):
        data = zstandard.ZstdCompressor().compress(raw)
        forged = Directory((directory.blocks[0]._replace(check=block_check(data)),), 1)
        with pytest.raises(DamagedData):
            list(RunReader(forged, {block_check(data): data}.get).scan(LOW, HIGH))
