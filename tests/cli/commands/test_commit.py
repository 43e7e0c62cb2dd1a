from __future__ import annotations

import io

import numpy as np
import torch

from mvc.api.repository import Repository


def test_an_author_of_two_lines_is_refused(mvc) -> None:
    mvc.write(1)
    for author in ("x\ny", ""):
        err = mvc("commit", "model.safetensors", "--author", author, code=3).err
        assert "author" in err


def test_a_model_whose_tensors_cannot_be_named_is_told(mvc) -> None:
    torch.save({"a\nb": torch.ones(3)}, mvc.folder / "odd.pt")
    torch.save({"a": torch.ones(3)}, mvc.folder / "usual.pt")
    made = mvc("commit", "odd.pt", "usual.pt")
    assert "odd.pt is kept whole, as bytes" in made.err
    assert "usual.pt is" not in made.err
    torch.save({"a\nb": torch.zeros(3)}, mvc.folder / "odd.pt")
    assert "odd.pt" not in mvc("commit", "-a").err  # once is enough


def test_a_byte_order_mark_is_no_part_of_a_message(mvc, monkeypatch) -> None:
    mvc.write(1)
    monkeypatch.setattr("sys.stdin", io.StringIO("\ufeffsubject\n\nbody\n"))
    mvc("commit", "model.safetensors", "-m", "-")
    (entry,) = mvc("log", "--json").json["commits"]
    assert entry["message"] == "subject\n\nbody\n"


def test_an_older_file_is_refused_and_named(mvc) -> None:
    with Repository.open(mvc.folder) as repo:
        repo.commit({"w": np.zeros(9)}, message="step 1")
        first = repo.find()
        repo.checkout(to=repo.root)
        repo.commit({"w": np.ones(9)}, message="step 2")
    assert f"modified:  model.safetensors (as in {first.short}, step 1)" in mvc("status").out
    said = mvc("commit", "-a", code=3).err.splitlines()
    assert said[0].startswith(f"mvc: model.safetensors is as in version {first.short}, older than")
    assert said[1].startswith("hint: 'mvc checkout HEAD model.safetensors' updates the file")
    mvc("commit", "model.safetensors")
    with Repository.open(mvc.folder) as repo:
        assert repo.manifest().root == repo.manifest(first).root
