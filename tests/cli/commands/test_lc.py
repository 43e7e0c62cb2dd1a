"""Approximated checkpoints on the command line."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save_file

from mvc.api.repository import Repository
from tests.cli.program import Mvc


def write(path: Path, step: int) -> None:
    random = np.random.default_rng(step)
    save_file({"w": np.arange(3000, dtype=np.float32) + random.random(3000, np.float32)}, path)


def test_commit_and_repack(mvc: Mvc) -> None:
    file = mvc.folder / "model.safetensors"
    for step in range(9):
        write(file, step)
        given = file.read_bytes()
        mvc("commit", "--pipeline", "lc:x=2,huffman", "model.safetensors", "-m", f"step {step}")
        assert file.read_bytes() == given
    mvc("checkout", "HEAD", "model.safetensors", "-o", "before.safetensors")
    before = load_file(mvc.folder / "before.safetensors")["w"]
    assert not np.array_equal(before, load_file(file)["w"])
    with Repository.open(mvc.folder) as repo:
        repo.storage.join_steps()
    mvc("checkout", "HEAD", "model.safetensors", "-o", "after.safetensors")
    assert np.array_equal(before, load_file(mvc.folder / "after.safetensors")["w"])
    mvc("fsck", "--full")


def test_the_setting_is_told(mvc: Mvc) -> None:
    file = mvc.folder / "model.safetensors"
    mvc("config", "commit.pipeline", "lc")
    for step in range(2):
        write(file, step)
        said = mvc("commit", "model.safetensors", "-m", f"step {step}").err
        assert "stored approximately: commit.pipeline is lc" in said
    assert "modified" in mvc("status").out  # the file is not what HEAD holds
    (mvc.folder / "notes.txt").write_text("no tensors")
    assert "Approximated" not in mvc("commit", "notes.txt").err
