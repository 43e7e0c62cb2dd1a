"""``mvc commit`` with a lossy pipeline: production weights have a place."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import load_file, save_file


def write(folder: Path, value: float) -> None:
    state = {"w": torch.full((30,), value), "mean": torch.full((3,), value)}
    save_file(state, folder / "model.safetensors")


def test_to_a_file_and_in_place(mvc) -> None:
    folder = mvc.folder
    write(folder, 1.0)
    lossy = ("commit", "model.safetensors", "--pipeline", "vsol-0-fast", "--exact", "mean")
    mvc(*lossy, "--in-place")
    write(folder, 1.3)
    done = mvc(*lossy, "-o", "served.safetensors", "-m", "to serve")
    assert "to serve: 2 of 2 tensors changed" in done.out
    assert done.err.endswith("the production weights are in served.safetensors\n")
    served = load_file(folder / "served.safetensors")
    training = load_file(folder / "model.safetensors")
    assert served["w"][0] == 1.25 and served["mean"][0] == training["mean"][0]
    assert training["w"][0] == torch.tensor(1.3)
    mvc(*lossy, "--in-place", "--allow-empty")
    assert load_file(folder / "model.safetensors")["w"][0] == 1.25
    assert mvc("status", "--json").json["changes"][0]["kind"] == "unchanged"
    mvc("checkout", "HEAD", "-o", "again.safetensors")
    again = (folder / "again.safetensors").read_bytes()
    assert again == (folder / "model.safetensors").read_bytes()
    assert '"pipeline": "vsol-0-fast"' in mvc("show", "HEAD", "--json").out


def test_refused(mvc) -> None:
    write(mvc.folder, 1.0)
    commit = ("commit", "model.safetensors", "--pipeline")
    found = mvc(*commit, "vsol-0-fast", code=2)
    assert "production weights" in found.err and "replace the file with --in-place" in found.err
    assert "dsed:0 decides" in mvc(*commit, "vsol-0-slow", "--in-place", code=2).err
    assert "need a lossy pipeline" in mvc(*commit, "lossless", "-o", "x", code=2).err
    assert "no tensor q" in mvc(*commit, "vsol-0-fast", "--in-place", "--exact", "q", code=3).err
    assert mvc("log", code=3).out == ""
    assert not (mvc.folder / "x").exists()
