from __future__ import annotations

import re

import torch


def test_one_line_says_what_happened(mvc) -> None:
    mvc.write(1)
    first = mvc("commit", "model.safetensors", "-m", "nightly\n\nmore")
    line, added = first.out.splitlines()
    assert re.fullmatch(
        r"\[main [0-9a-f]{10}\] nightly: 3 of 3 tensors changed, "
        r"[\d.]+ k?B stored for [\d.]+ k?B",
        line,
    )
    assert added.split() == ["added", "model.safetensors"]
    mvc.write(2)
    second = mvc("commit", "-a", "--deploy", "prod", "--at", "2026-11-20T10:00Z")
    assert "1 of 3 tensors changed" in second.out
    assert second.out.endswith("deployed to prod at 2026-11-20T10:00:00+00:00\n")


def test_json(mvc) -> None:
    mvc.write(1)
    found = mvc(
        "commit", "model.safetensors", "-m", "m", "--metric", "acc=.5", "--metric", "loss=nan",
        "--author", "me", "--date", "2026-11-01T00:00Z", "--deploy", "prod", "--json",
    ).json  # fmt: skip
    assert found["schema"] == "mvc.commit/1"
    assert found["branch"] == "main"
    assert found["commit"]["author"] == "me"
    assert found["commit"]["time"] == "2026-11-01T00:00:00+00:00"
    assert found["commit"]["metrics"] == {"acc": 0.5, "loss": "NaN"}
    assert found["paths"] == [
        {
            "path": "model.safetensors",
            "kind": "added",
            "tensors_changed": 3,
            "tensors": 3,
            "renamed_from": None,
            "same_as": None,
        }
    ]
    assert found["deployment"]["target"] == "prod"
    assert found["raw_bytes"] == 68
    assert found["stored_bytes"] > 0
    assert mvc("rev-parse", "HEAD").out.strip() == found["commit"]["id"]


def test_quiet_prints_nothing(mvc) -> None:
    mvc.write(1)
    result = mvc("-q", "commit", "model.safetensors")
    assert (result.out, result.err) == ("", "")


def test_a_folder_means_its_files_and_cwd_counts(mvc, monkeypatch) -> None:
    mvc.write(1, "sub/a.safetensors")
    mvc.write(2, "sub/b.safetensors")
    (mvc.folder / "sub/.mvcignore").write_text("b.*\n")
    monkeypatch.chdir(mvc.folder / "sub")
    mvc("commit", ".")
    listed = mvc("ls", "--name-only").out.splitlines()
    assert listed == ["sub/.mvcignore", "sub/a.safetensors"]


def test_wrong_usage(mvc) -> None:
    mvc.write(1)
    assert "--deploy" in mvc("commit", "model.safetensors", "--at", "now", code=2).err
    assert "not both" in mvc("commit", "-a", "-m", "x", "-F", "model.safetensors", code=2).err
    assert "NAME=VALUE" in mvc("commit", "-a", "--metric", "acc", code=2).err
    assert "not a number" in mvc("commit", "-a", "--metric", "acc=high", code=2).err
    assert mvc("commit", "nowhere.pt", code=3).err.startswith("mvc: there is no file nowhere.pt")
    assert mvc("commit", "model.safetensors", "--pipeline", "xor | nope", code=3).out == ""


def test_nothing_to_commit_is_one(mvc) -> None:
    mvc.commit(1)
    assert mvc("commit", "-a", code=1).err.startswith("mvc: nothing to commit")
    assert mvc("commit", "-a", "--json", code=1).json["kind"] == "nothing-to-commit"
    assert "0 of 3 tensors changed" in mvc("commit", "model.safetensors", "--allow-empty").out


def test_removed_paths_are_named(mvc) -> None:
    mvc.commit(1)
    mvc.write(2, "other.safetensors")
    mvc("commit", "other.safetensors")
    mvc("rm", "other.safetensors")
    result = mvc("commit", "-m", "drop")
    assert "removed   other.safetensors" in result.out


def test_more_stored_than_looked_at_has_no_share(mvc) -> None:
    mvc.write(1)
    (mvc.folder / "tiny.txt").write_text("x")
    assert "%" not in mvc("commit", "tiny.txt").out


def test_an_author_of_two_lines_is_refused(mvc) -> None:
    mvc.write(1)
    for author in ("x\ny", ""):
        err = mvc("commit", "model.safetensors", "--author", author, code=3).err
        assert "author" in err


def test_weights_that_are_not_new(mvc) -> None:
    first = mvc.commit(1)
    mvc.commit(2)
    mvc.write(1)
    result = mvc("commit", "-a")
    assert result.err == f"model.safetensors is what it was in {first[:10]}, value 1\n"
    mvc.write(2)
    (path,) = mvc("commit", "-a", "--json").json["paths"]
    assert path["same_as"] == mvc("rev-parse", "HEAD~2").out.strip()
    mvc.write(3)
    assert mvc("commit", "-a").err == ""


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


def test_params_are_shown_by_show_and_diff(mvc) -> None:
    mvc.write(1)
    mvc(
        "commit", "model.safetensors", "--param", "lr=0.1", "--param", "data=a=b", "--metric", "x=1"
    )
    mvc.write(2)
    made = mvc("commit", "-a", "--param", "lr=0.2", "--metric", "x=2", "--json").json
    assert made["commit"]["params"] == {"lr": "0.2"}
    assert "Params:   data=a=b  lr=0.1\n" in mvc("show", "HEAD~1").out
    lines = mvc("diff", "HEAD~1", "HEAD").out.splitlines()
    assert lines[:2] == ["Metrics:  x 1 -> 2", "Params:   data a=b -> (none), lr 0.1 -> 0.2"]
    found = mvc("diff", "HEAD~1", "HEAD", "--json").json
    assert found["params"] == {"data": ["a=b", None], "lr": ["0.1", "0.2"]}
    assert mvc("diff", "HEAD", "--json").json["params"] == {}
    assert "a param is NAME=VALUE" in mvc("commit", "-a", "--param", "lr", code=2).err


def test_a_model_whose_tensors_cannot_be_named_is_told(mvc) -> None:
    torch.save({"a\nb": torch.ones(3)}, mvc.folder / "odd.pt")
    torch.save({"a": torch.ones(3)}, mvc.folder / "usual.pt")
    made = mvc("commit", "odd.pt", "usual.pt")
    assert "odd.pt is kept whole, as bytes" in made.err
    assert "usual.pt is" not in made.err
    torch.save({"a\nb": torch.zeros(3)}, mvc.folder / "odd.pt")
    assert "odd.pt" not in mvc("commit", "-a").err  # once is enough
