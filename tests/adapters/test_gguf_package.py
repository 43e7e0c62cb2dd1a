"""Files of llama.cpp's own package: byte for byte, and every tensor that its reader has."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mvc
from mvc.adapters.files.cursor import FileCursor
from mvc.adapters.files.gguf import read_gguf
from tests.adapters.helpers import MemorySource

gguf = pytest.importorskip("gguf")

RANDOM = np.random.default_rng(0)
Add = Callable[[Any], None]


def quantised(*types: str, rows: int = 6, columns: int = 512) -> Add:
    """Weights of each of these types, quantised, or of any bytes where the package cannot."""

    def add(writer: Any) -> None:
        for name in types:
            kind = gguf.GGMLQuantizationType[name]
            weights = RANDOM.standard_normal((rows, columns)).astype(np.float32)
            try:
                data = gguf.quants.quantize(weights, kind)
            except NotImplementedError:
                numbers, nbytes = gguf.GGML_QUANT_SIZES[kind]
                shape = (rows, columns // numbers * nbytes)
                data = np.frombuffer(RANDOM.bytes(rows * shape[1]), np.uint8).reshape(shape)
            writer.add_tensor(f"blk.0.{name}.weight", data, raw_dtype=kind)

    return add


def plain(writer: Any) -> None:
    for dtype in ("float32", "float16", "float64", "int8", "int16", "int32", "int64"):
        for shape in ((7,), (3, 4), (2, 3, 4), (2, 1, 3, 5)):
            array = (RANDOM.standard_normal(shape) * 9).astype(dtype)
            writer.add_tensor(f"{dtype}.{len(shape)}", array)


def settings(writer: Any) -> None:
    """Every type of setting, with a vocabulary."""
    words = [f"word {i} ä".encode() for i in range(3000)]
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(words)
    writer.add_token_scores([0.5] * len(words))
    writer.add_token_types([1] * len(words))
    writer.add_chat_template("{{ bos }}" * 9000)
    writer.add_context_length(4096)
    writer.add_rope_freq_base(1e6)
    writer.add_bool("x.flag", val=True)
    writer.add_float64("x.wide", 0.1)
    writer.add_int64("x.least", -(2**62))
    writer.add_uint64("x.most", 2**63)
    writer.add_array("x.flags", [True, False])
    writer.add_array("x.sections", [16, 24, 24, 0])


def adapter(writer: Any) -> None:
    writer.add_type("adapter")
    writer.add_string("adapter.type", "lora")
    for name in ("lora_a", "lora_b"):
        array = RANDOM.standard_normal((4, 64)).astype(np.float16)
        writer.add_tensor(f"blk.0.attn_q.weight.{name}", array)


def aligned(alignment: int) -> Add:
    def add(writer: Any) -> None:
        writer.add_custom_alignment(alignment)
        plain(writer)

    return add


FILES: dict[str, tuple[str, tuple[Add, ...]]] = {
    "plain": ("llama", (plain,)),
    "brain floats": ("gemma3", (quantised("BF16", "F16", "F32"), settings)),
    "q4_0": ("llama", (quantised("Q4_0", "Q4_1", "F32"), settings)),
    "q5_0": ("qwen3", (quantised("Q5_0", "Q5_1"),)),
    "q8_0": ("bert", (quantised("Q8_0", columns=384), plain)),
    "k-quants": ("llama", (quantised("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "Q8_K"),)),
    "i-quants": (
        "deepseek2",
        (
            quantised("IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S"),
            quantised("IQ3_XXS", "IQ3_S", "IQ4_NL", "IQ4_XS"),
        ),
    ),
    "ternary": ("bitnet", (quantised("TQ1_0", "TQ2_0"),)),
    "four bits": ("gpt-oss", (quantised("MXFP4", "NVFP4"),)),
    "vocabulary": ("llama", (settings,)),
    "adapter": ("llama", (adapter,)),
    "aligned to 64": ("whisper", (aligned(64),)),
    "aligned to 4096": ("clip", (aligned(4096), settings)),
}


def written(path: Path, name: str) -> None:
    architecture, parts = FILES[name]
    writer = gguf.GGUFWriter(path, architecture)
    for add in parts:
        add(writer)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.mark.parametrize("name", FILES)
def test_a_file_comes_back_with_every_tensor(tmp_path: Path, name: str) -> None:
    path = tmp_path / "m.gguf"
    written(path, name)
    data = path.read_bytes()
    theirs = {str(each.name): each for each in gguf.GGUFReader(path).tensors}
    with mvc.Repository.init(tmp_path) as repo:
        commit = repo.commit(path)
        entry = commit.entries["m.gguf"]
        assert entry.format == "gguf"
        assert {tensor.key for tensor in entry.tensors} == theirs.keys()
        file = repo.open_file(commit.id, "m.gguf")
        for tensor in entry.tensors:
            there = theirs[tensor.key]
            assert bytes(file.tensor_bytes(tensor)) == there.data.tobytes()
            assert there.data.dtype.name in {tensor.spec.dtype, "uint8"}  # it has no bfloat16
            if there.data.dtype != np.uint8 or tensor.spec.dtype == "uint8":
                assert tensor.spec.shape == there.data.shape
            else:
                assert tensor.spec.shape == tuple(there.shape[::-1])
        repo.checkout(commit.id, path="m.gguf", to=tmp_path / "back.gguf")
        assert (tmp_path / "back.gguf").read_bytes() == data


def test_types_have_the_sizes_of_the_package() -> None:
    from mvc.adapters.files.gguf import TYPES

    theirs = {
        int(kind): (kind.name, *size)
        for kind, size in gguf.GGML_QUANT_SIZES.items()
        if kind.name != "Q8_1"  # of two float16 in ggml, which the package has not followed
    }
    assert {code: row for code, row in TYPES.items() if row[0] != "Q8_1"} == theirs


def test_settings_are_as_their_reader_has_them(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    written(path, "q4_0")
    found = read_gguf(FileCursor(MemorySource(path.read_bytes()))).settings
    for name, field in gguf.GGUFReader(path).fields.items():
        if not name.startswith("GGUF."):
            value = field.contents()
            assert found[name] == value or (
                str(found[name]).endswith(f"[{len(value)}]")
                if isinstance(value, list)
                else value.startswith(found[name])
            )
