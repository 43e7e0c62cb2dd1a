"""Metadata of model files and types of quantised tensors, on the screens and as JSON."""

from __future__ import annotations

import math

import numpy as np
from safetensors.numpy import save_file

from mvc.api.repository import Repository
from tests.adapters.gguf_files import Tensor, gguf, setting
from tests.cli.program import Mvc

SETTINGS = [
    setting("general.architecture", 8, "llama"),
    setting("general.name", 8, "a\nb\x1b[31m"),
    setting("tokenizer.ggml.tokens", 9, (8, ["x"] * 300)),
    setting("tokenizer.chat_template", 8, "y" * 900),
    setting("x.nan", 6, math.nan),
    setting("x.bytes", 8, b"\xff\xfe"),
    *(setting(f"x.{i}", 4, i) for i in range(30)),
]


def model(change: int, kind: str = "Q4_0") -> bytes:
    size = {"Q4_0": 36, "Q4_1": 40}[kind]
    blocks = bytes([change]) + bytes(range(2 * size - 1))
    norm = np.full(64, change, np.float32).tobytes()
    tensors: list[Tensor] = [("w", kind, (2, 64), blocks), ("norm", "F32", (64,), norm)]
    return gguf(tensors, SETTINGS)


def test_screens_name_the_types_of_quantised_tensors(mvc: Mvc) -> None:
    path = mvc.folder / "m.gguf"
    path.write_bytes(model(1))
    mvc("commit", "m.gguf")
    path.write_bytes(model(2))
    out = mvc("diff").out
    assert "Q4_0 2x36" in out and "norm" in out
    mvc("commit", "m.gguf")
    assert "Q4_0" in mvc("ls").out and "uint8" not in mvc("ls").out
    out = mvc("show").out
    assert "w       Q4_0" in out and "float32" in out
    path.write_bytes(model(2, "Q4_1"))
    assert "Q4_0 2x36 -> Q4_1 2x40" in mvc("diff").out


def test_the_figures_of_blocks_are_not_those_of_numbers(mvc: Mvc) -> None:
    for change in (1, 2):
        (mvc.folder / "m.gguf").write_bytes(model(change))
        mvc("commit", "m.gguf")
    (file,) = mvc("diff", "HEAD~1", "HEAD", "--json").json["files"]
    assert file["types"] == [{"w": "Q4_0"}, {"w": "Q4_0"}]
    norm, w = sorted(file["tensors"], key=lambda tensor: tensor["key"])
    assert w["changed_share"] == 1 / 72 and w["l2"] is None and w["cosine"] is None
    assert norm["max_abs"] == 1.0


def test_metadata_are_bounded_and_printable(mvc: Mvc) -> None:
    (mvc.folder / "m.gguf").write_bytes(model(1))
    mvc("commit", "m.gguf")
    lines = mvc("show").out.splitlines()
    assert "  general.architecture     llama" in lines
    assert "  general.name             a\\nb\\x1b[31m" in lines
    assert "  tokenizer.ggml.tokens    string[300]" in lines
    assert "  tokenizer.chat_template  " + "y" * 200 in lines
    assert "  ... and 16 more (-v lists all)" in lines
    assert "y" * 900 in mvc("show", "-v").out
    (file,) = mvc("show", "--json").json["files"]
    assert file["types"] == {"w": "Q4_0"}
    assert file["metadata"]["tokenizer.ggml.tokens"] == "string[300]"
    assert file["metadata"]["x.nan"] == "NaN"
    assert file["metadata"]["x.29"] == 29 and len(file["metadata"]) == len(SETTINGS)


def test_metadata_of_safetensors(mvc: Mvc) -> None:
    path = mvc.folder / "m.safetensors"
    save_file({"w": np.ones(3)}, path, {"format": "pt", "note": "fine\ttuned"})
    mvc("commit", "m.safetensors")
    assert "  note      fine\\ttuned" in mvc("show").out.splitlines()
    (file,) = mvc("show", "--json").json["files"]
    assert file["metadata"] == {"format": "pt", "note": "fine\ttuned"}
    with Repository.open(mvc.folder) as repo:
        assert repo.open_file("HEAD", "m.safetensors").facts == (file["metadata"], {})
