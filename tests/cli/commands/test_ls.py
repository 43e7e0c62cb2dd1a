from __future__ import annotations

import numpy as np


def test_files_and_tensors(mvc) -> None:
    mvc.commit(1, emb=np.zeros((100, 30), np.float16))
    out = mvc("ls").out
    assert out.startswith("model.safetensors  safetensors, 4 tensors, 6.3")
    row = next(line for line in out.splitlines() if line.split()[0] == "emb")
    assert row.split()[1:5] == ["float16", "100x30", "6.00", "kB"]
    assert "scalar" in out


def test_paths_and_names(mvc) -> None:
    mvc.write(1, "a/x.safetensors")
    mvc.write(2, "b.safetensors")
    mvc("commit", ".")
    assert mvc("ls", "--name-only").out == "a/x.safetensors\nb.safetensors\n"
    assert mvc("ls", "HEAD", "a", "--name-only").out == "a/x.safetensors\n"
    assert "no path c" in mvc("ls", "HEAD", "c", code=3).err


def test_json(mvc) -> None:
    id_ = mvc.commit(1)
    found = mvc("ls", "--json").json
    assert found["schema"] == "mvc.ls/1"
    assert found["commit"] == id_
    assert found["files"][0]["tensors"][0].keys() == {"key", "dtype", "shape", "bytes", "id"}
