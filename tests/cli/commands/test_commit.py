from __future__ import annotations

import torch


def test_a_folder_means_its_files_and_cwd_counts(mvc, monkeypatch) -> None:
    mvc.write(1, "sub/a.safetensors")
    mvc.write(2, "sub/b.safetensors")
    (mvc.folder / "sub/.mvcignore").write_text("b.*\n")
    monkeypatch.chdir(mvc.folder / "sub")
    mvc("commit", ".")
    listed = mvc("ls", "--name-only").out.splitlines()
    assert listed == ["sub/.mvcignore", "sub/a.safetensors"]


def test_more_stored_than_looked_at_has_no_share(mvc) -> None:
    mvc.write(1)
    (mvc.folder / "tiny.txt").write_text("x")
    assert "%" not in mvc("commit", "tiny.txt").out


def test_an_author_of_two_lines_is_refused(mvc) -> None:
    mvc.write(1)
    for author in ("x\ny", ""):
        err = mvc("commit", "model.safetensors", "--author", author, code=3).err
        assert "author" in err


def test_opaque_is_remembered_for_its_path(mvc) -> None:
    """A damaged file that was kept on purpose holds up neither other files nor its successor."""
    mvc.write(1)
    cut = mvc.folder / "cut.safetensors"
    whole = mvc.write(2, "whole.safetensors").read_bytes()
    cut.write_bytes(whole[:-4])
    assert "cut.safetensors is no sound model file" in mvc("commit", ".", code=3).err
    mvc("commit", ".", "--opaque")
    mvc.write(3)
    mvc("commit", ".")
    cut.write_bytes(whole[:-8])
    mvc("commit", "-a")
    cut.write_bytes(whole)
    mvc("commit", "cut.safetensors")
    cut.write_bytes(whole[:-4])  # it was whole in the meantime
    mvc("commit", "-a", code=3)


def test_what_is_opaque_by_right_is_still_checked(mvc) -> None:
    """A format without tensors is no choice: a model file cut off at its path is refused."""
    (mvc.folder / "model.bin").write_bytes(b"\x80\x02}q\x00." * 100)
    mvc("commit", "model.bin")
    (mvc.folder / "model.bin").write_bytes(b"PK\x03\x04" + b"\0" * 600)
    assert "cut off" in mvc("commit", "model.bin", code=3).err


def test_a_model_whose_tensors_cannot_be_named_is_told(mvc) -> None:
    torch.save({"a\nb": torch.ones(3)}, mvc.folder / "odd.pt")
    torch.save({"a": torch.ones(3)}, mvc.folder / "usual.pt")
    made = mvc("commit", "odd.pt", "usual.pt")
    assert "odd.pt is kept whole, as bytes" in made.err
    assert "usual.pt is" not in made.err
    torch.save({"a\nb": torch.zeros(3)}, mvc.folder / "odd.pt")
    assert "odd.pt" not in mvc("commit", "-a").err  # once is enough
