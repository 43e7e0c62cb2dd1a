"""A file under a new name is told in one way by every command."""

from __future__ import annotations

WORDS = "new.safetensors (was model.safetensors)"


def test_status_commit_show_and_diff_agree(mvc) -> None:
    mvc.write(2, "other.safetensors")
    mvc("commit", "other.safetensors")
    mvc.commit(1)
    (mvc.folder / "model.safetensors").rename(mvc.folder / "new.safetensors")
    assert f"  renamed:   {WORDS}\n" in mvc("status").out
    made = mvc("commit", "-a", "-m", "another name").out
    assert made.splitlines()[1:] == [f" renamed   {WORDS}"]
    assert "0 of 3 tensors changed" in made
    shown = mvc("show").out
    assert ", renamed (was model.safetensors)\n" in shown
    assert "removed" not in shown and ", new" not in shown
    compared = mvc("diff", "HEAD~1", "HEAD").out.splitlines()
    assert compared[0] == ("new.safetensors  renamed (was model.safetensors), 3 unchanged")


def test_for_programs(mvc) -> None:
    mvc.commit(1)
    (mvc.folder / "model.safetensors").rename(mvc.folder / "new.safetensors")
    (path,) = mvc("commit", "-a", "--json").json["paths"]
    assert (path["path"], path["kind"]) == ("new.safetensors", "renamed")
    assert (path["renamed_from"], path["tensors_changed"]) == ("model.safetensors", 0)
    found = mvc("show", "--json").json
    assert found["files"][0]["renamed_from"] == "model.safetensors"
    assert (found["files"][0]["changed"], found["removed"]) == ({}, [])
    (file,) = mvc("diff", "HEAD~1", "HEAD", "--json").json["files"]
    assert (file["kind"], file["renamed_from"]) == ("renamed", "model.safetensors")


def test_two_files_of_the_same_bytes(mvc) -> None:
    """Each old name is used once, the first for the first."""
    for name in ("a.safetensors", "b.safetensors"):
        mvc.write(1, name)
    mvc("commit", ".")
    for name in ("a.safetensors", "b.safetensors"):
        (mvc.folder / name).rename(mvc.folder / f"x{name}")
    told = mvc("status", "--json").json["changes"]
    pairs = [("xa.safetensors", "was a.safetensors"), ("xb.safetensors", "was b.safetensors")]
    assert [(c["path"], c["detail"]) for c in told] == pairs
    made = mvc("commit", "-a", "--json").json["paths"]
    assert [(p["path"], f"was {p['renamed_from']}") for p in made] == pairs
    files = mvc("diff", "HEAD~1", "HEAD", "--json").json["files"]
    assert [(f["path"], f"was {f['renamed_from']}") for f in files] == pairs
