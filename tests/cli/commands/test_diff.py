from __future__ import annotations

import numpy as np
from safetensors.numpy import save_file

from mvc.api.repository import Repository
from tests.recipes.by_hand import drop, trained


def test_json(mvc) -> None:
    mvc.commit(0)
    mvc.write(3, extra=np.zeros(2, np.float16))
    found = mvc("diff", "--json").json
    assert found["schema"] == "mvc.diff/1"
    assert found["differs"] is True
    (file,) = found["files"]
    rows = {t["key"]: t for t in file["tensors"]}
    assert rows["layer.weight"]["l2"] == 3.0
    assert rows["layer.weight"]["changed_share"] == 1 / 12
    assert rows["extra"]["kind"] == "added"
    assert rows["extra"]["new"] == {"dtype": "float16", "shape": [2]}


def test_resized_shows_both_shapes(mvc) -> None:
    mvc.commit(0)
    mvc.write(0, **{"layer.bias": np.zeros(5, np.float32)})
    assert "3 -> 5" in mvc("diff").out


def test_many_rows_are_cut_and_counted(mvc) -> None:
    mvc.commit(0, **{f"t{i}": np.zeros(2, np.float32) for i in range(60)})
    mvc.commit(1, **{f"t{i}": np.ones(2, np.float32) for i in range(45)},
               **{f"t{i}": np.zeros(2, np.float32) for i in range(45, 60)})  # fmt: skip
    out = mvc("diff", "HEAD~1", "HEAD").out
    assert "  ... and 6 more (-v lists all)" in out.splitlines()
    assert "unchanged:" not in out and len(out.splitlines()) == 45
    assert "more" not in mvc("diff", "HEAD~1", "HEAD", "-v").out


def test_relations(mvc) -> None:
    """A word at the end of the line of a file."""
    mvc.commit(0)
    mvc.commit(3)
    line = mvc("diff", "HEAD~1", "HEAD", "--stat").out.splitlines()[0]
    assert line == "model.safetensors  1 changed, 2 unchanged (fine-tuned version)"
    mvc.write(3, **{"head.weight": np.ones((2, 2))})
    assert mvc("diff").out.splitlines()[0].endswith(" (extended)")
    found = mvc("diff", "--json").json["relations"]["model.safetensors"]
    assert found == {
        "path": "model.safetensors", "kind": "extended", "base_path": "model.safetensors",
        "tensors": 4, "shared": 3, "equal": 3,
    }  # fmt: skip
    save_file({"other": np.zeros(7)}, str(mvc.folder / "model.safetensors"))
    assert mvc("diff").out.splitlines()[0].endswith(" (nothing in common)")
    mvc.write(4, "copy.safetensors")
    mvc("commit", "copy.safetensors", "-m", "copy")
    line = mvc("diff", "HEAD~1", "HEAD", "--stat").out.splitlines()[0]
    assert line == "copy.safetensors  added (fine-tuned version of model.safetensors)"
    only = mvc("diff", "HEAD", "copy.safetensors", "--json").json["relations"]
    assert [found["kind"] for found in only.values()] == ["equal"]
    (mvc.folder / "notes.txt").write_text("words")
    mvc("commit", "notes.txt", "-m", "notes")
    assert "notes.txt" not in mvc("diff", "HEAD~1", "HEAD", "--json").json["relations"]


def test_versions_without_weights_are_compared_by_hashes(mvc) -> None:
    with Repository.open(mvc.folder) as repo:
        base = repo.commit({"w": np.zeros(4000)}).id
        noise = {"w": np.random.default_rng(0).random(4000)}
        made = trained(repo, lambda given: noise, {}, base)
        drop(repo, made)
        repo.storage.gc(grace="0")
    done = mvc("diff", "HEAD~1", "HEAD")
    assert "1 changed" in done.out
    assert "only hashes are compared: the weights of version" in " ".join(done.err.split())
    found = mvc("diff", "HEAD~1", "HEAD", "--json").json
    assert "were dropped" in found["unmeasured"]["model.safetensors"]
    assert found["files"][0]["tensors"][0]["l2"] is None
