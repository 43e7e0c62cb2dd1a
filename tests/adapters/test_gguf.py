"""GGUF files: tensors by structure, one content with other formats, hostile headers are opaque."""

from __future__ import annotations

import struct
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file

import mvc
from mvc.adapters.files.cursor import FileCursor
from mvc.adapters.files.detect import parse_file, why_opaque
from mvc.adapters.files.gguf import read_gguf
from mvc.adapters.python.state import values
from mvc.errors import BadModelFile
from mvc.model.hashing import blob_id
from mvc.model.tensor import TensorSpec
from tests.adapters.gguf_files import Tensor, gguf, setting, small, text
from tests.adapters.helpers import MemorySource, by_key, round_trip, to_entry

ROWS = np.arange(12, dtype="<f4").reshape(3, 4)
ONE: list[Tensor] = [("w", "F32", (3, 4), ROWS.tobytes())]


@pytest.mark.parametrize("alignment", [1, 8, 32, 64, 4096])
def test_tensors_have_the_order_of_torch_and_quantised_ones_are_rows_of_blocks(alignment: int):
    entry = round_trip(small(alignment))
    assert entry.format == "gguf"
    found = by_key(entry)
    assert {key: str(tensor.spec) for key, tensor in found.items()} == {
        "token_embd.weight": "float32[3, 4]",
        "output.weight": "float16[4, 3]",
        "blk.0.attn_q.weight": "uint8[2, 36]",
        "blk.0.ffn_up.weight": "uint8[1, 144]",
        "empty": "float32[0, 4]",
        "positions": "int8[5]",
    }
    spec = TensorSpec("float32", (3, 4))
    assert found["token_embd.weight"].id == blob_id(spec, ROWS.tobytes())
    _, _, blobs = to_entry(parse_file(MemorySource(small(alignment)), "m"))
    arrays = values(entry, lambda i: blobs[i], None, "numpy")
    assert np.array_equal(arrays["output.weight"], ROWS.reshape(4, 3))
    assert arrays["blk.0.attn_q.weight"].tobytes() == bytes(range(72))


def test_a_tensor_in_two_formats_is_one_content_and_either_file_identifies_it(tmp_path: Path):
    half = np.random.default_rng(0).standard_normal((300, 200)).astype(np.float16)
    norm = np.ones(200, np.float32)
    (tmp_path / "m.gguf").write_bytes(
        gguf([("w", "F16", half.shape, half.tobytes()), ("norm", "F32", (200,), norm.tobytes())])
    )
    save_file({"w": half, "norm": norm}, tmp_path / "m.safetensors")
    with mvc.Repository.init(tmp_path) as repo:
        first = repo.commit(tmp_path / "m.safetensors")
        second = repo.commit(tmp_path / "m.gguf")
        assert second.stored_bytes < half.nbytes / 50  # the contents are there
        for name in ("m.gguf", "m.safetensors"):
            found = {each.commit for each in repo.identify(tmp_path / name)}
            assert found == {first.id, second.id}


def test_a_repository_without_such_files_needs_no_new_reader(tmp_path: Path):
    with mvc.Repository.init(tmp_path) as repo:
        save_file({"w": ROWS}, tmp_path / "m.safetensors")
        repo.commit(tmp_path / "m.safetensors")
        assert b"gguf" not in (tmp_path / ".mvc/format").read_bytes()
        (tmp_path / "m.gguf").write_bytes(small())
        repo.commit(tmp_path / "m.gguf")
        assert b"features=gguf " in (tmp_path / ".mvc/format").read_bytes()


def test_no_tensors_scalars_and_bytes_at_the_end():
    assert round_trip(gguf([])).format == "gguf"
    assert round_trip(gguf([], [setting("a", 8, "b")])).tensors == ()
    scalar = round_trip(gguf([("s", "F32", (), bytes(4))]))
    assert scalar.tensors[0].spec == TensorSpec("float32", ())
    padded = round_trip(gguf(ONE) + bytes(16))
    assert padded.format == "gguf" and padded.size == len(gguf(ONE)) + 16


def _moved(*offsets: int, shape: tuple[int, ...] = (3, 4)) -> bytes:
    """Tensors of 48 bytes at these offsets."""
    head = b"GGUF" + struct.pack("<IQQ", 3, len(offsets), 0)
    for i, offset in enumerate(offsets):
        head += text(f"t{i}") + struct.pack("<I", len(shape))
        head += struct.pack(f"<{len(shape)}QIQ", *shape[::-1], 0, offset)
    return head + bytes(-len(head) % 32) + bytes(256)


def test_tensors_may_lie_in_any_order_but_not_over_each_other():
    entry = round_trip(_moved(128, 0, 64))
    assert [tensor.key for tensor in entry.tensors] == ["t1", "t2", "t0"]
    for offsets in ((0, 32), (0, 0), (1 << 63,), ((1 << 64) - 32,), (232,)):
        assert round_trip(_moved(*offsets)).format == "opaque"
    assert round_trip(_moved(0, shape=(1 << 62, 1 << 62))).format == "opaque"
    assert round_trip(_moved(0, shape=(1 << 63,))).format == "opaque"


BAD = {
    "big-endian": (gguf(ONE, order=">"), "big-endian"),
    "version 1": (gguf(ONE, version=1), "GGUF version is 1"),
    "version 4": (gguf(ONE, version=4), "GGUF version is 4"),
    "two of one name": (gguf(ONE * 2), "two tensors have the same name"),
    "setting twice": (gguf(ONE, [setting("a", 7, True)] * 2), "a setting twice"),
    "alignment 0": (gguf(ONE, [setting("general.alignment", 4, 0)]), "alignment"),
    "alignment of text": (gguf(ONE, [setting("general.alignment", 8, "32")]), "alignment"),
    "long name": (gguf([("n" * 1025, *ONE[0][1:])]), "longer than 1024 bytes"),
    "name with controls": (gguf([("a\nb", *ONE[0][1:])]), "control character"),
    "no name": (gguf([("", *ONE[0][1:])]), "empty name"),
    "unknown type": (gguf([("w", "UNKNOWN", (2,), bytes(8))]), "a tensor has the unknown type 77"),
    "half a block": (gguf([("w", "Q4_0", (2, 33), bytes(36))]), "whole blocks of Q4_0"),
    "no row of blocks": (gguf([("w", "Q4_0", (), bytes(18))]), "whole blocks of Q4_0"),
    "dimensions": (
        b"GGUF" + struct.pack("<IQQ", 3, 1, 0) + text("w") + b"\xff" * 4000,
        "4,294,967,295 dimensions",
    ),
    "nested array": (
        gguf(ONE, [text("a") + struct.pack("<IIQ", 9, 9, 1 << 60)]),
        "a setting has the unknown type 9",
    ),
    "many tensors": (b"GGUF" + struct.pack("<IQQ", 3, 1 << 40, 0) + bytes(99), "tensors"),
    "many settings": (b"GGUF" + struct.pack("<IQQ", 3, 0, 1 << 40) + bytes(99), "settings"),
    "long array": (
        gguf([], [text("a") + struct.pack("<IIQ", 9, 4, 1 << 62)]),
        "it is truncated",
    ),
    "long text": (gguf([], [text("a") + struct.pack("<IQ", 8, 1 << 63)]), "it is truncated"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_what_is_not_read_is_opaque_with_a_reason(name: str):
    data, reason = BAD[name]
    assert round_trip(data).format == "opaque"
    why, hint = why_opaque(MemorySource(data), "m.gguf")
    assert reason in why and hint


def test_a_vocabulary_of_many_megabytes_lies_in_the_skeleton():
    words = [f"token number {i} of the vocabulary" for i in range(262_144)]
    data = gguf(ONE, [setting("tokenizer.ggml.tokens", 9, (8, words))])
    began = time.process_time()
    entry = round_trip(data)
    assert time.process_time() - began < 5
    assert entry.format == "gguf" and entry.skeleton_size > 10e6
    header = read_gguf(FileCursor(MemorySource(data)))
    assert header.settings == {"tokenizer.ggml.tokens": "string[262144]"}


def test_a_long_walk_ends():
    empty = text("a") + struct.pack("<IIQ", 9, 8, 4_100_000) + bytes(8 * 4_100_000)
    data = gguf([], [empty])
    began = time.process_time()
    with pytest.raises(LookupError, match="too many parts"):
        read_gguf(FileCursor(MemorySource(data)))
    assert time.process_time() - began < 20
    assert parse_file(MemorySource(data), "m.gguf").format == "opaque"


def test_a_file_that_is_cut_off_is_refused_in_either_byte_order(tmp_path: Path):
    with mvc.Repository.init(tmp_path) as repo:
        for order in "<>":
            data = gguf(ONE, order=order)
            for end in (40, len(data) - 1):
                (tmp_path / "m.gguf").write_bytes(data[:end])
                with pytest.raises(BadModelFile, match="truncated"):
                    repo.commit(tmp_path / "m.gguf")


@given(
    st.lists(
        st.tuples(
            st.sampled_from([("F32", 4), ("F16", 2), ("BF16", 2), ("F64", 8), ("I8", 1)]),
            st.lists(st.integers(0, 5), max_size=4),
        ),
        max_size=6,
    ),
    st.sampled_from([1, 2, 16, 32, 256]),
    st.sampled_from([2, 3]),
    st.randoms(),
)
@settings(deadline=None)
def test_any_file_comes_back(tensors, alignment: int, version: int, random_):
    made: list[Tensor] = [
        (f"t{i}", kind, tuple(shape), random_.randbytes(int(np.prod(shape)) * size))
        for i, ((kind, size), shape) in enumerate(tensors)
    ]
    data = gguf(
        made, [setting("general.alignment", 4, alignment)], alignment=alignment, version=version
    )
    entry = round_trip(data)
    assert entry.format == "gguf"
    assert {t.key: t.spec.shape for t in entry.tensors} == {t[0]: t[2] for t in made}
    for key, _, _, content in made:
        assert by_key(entry)[key].id == blob_id(by_key(entry)[key].spec, content)
