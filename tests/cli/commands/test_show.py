from __future__ import annotations

import numpy as np


def test_commit_and_changed_tensors(mvc) -> None:
    mvc.commit(1)
    id_ = mvc.commit(2)
    out = mvc("show").out
    assert out.startswith(f"commit {id_} (HEAD -> main)\n")
    assert "model.safetensors  safetensors, 3 tensors, " in out
    assert "1 changed" in out
    assert "layer.weight  float32" in out
    assert "layer.bias" not in out
    assert "layer.bias" in mvc("show", "-v").out


def test_long_lists_are_cut_unless_verbose(mvc) -> None:
    mvc.commit(**{f"t{i:03}": np.full(2, i, np.float32) for i in range(50)})
    assert "and 33 more (-v lists all)" in mvc("show").out
    assert "t049" in mvc("show", "-v").out


def test_json(mvc) -> None:
    mvc.commit(1)
    mvc.commit(2)
    found = mvc("show", "HEAD", "--json").json
    assert found["schema"] == "mvc.show/1"
    (file,) = found["files"]
    assert file["changed"] == {"layer.weight": "changed"}
    assert {t["key"]: t["shape"] for t in file["tensors"]}["layer.weight"] == [3, 4]
    assert found["removed"] == []
