from __future__ import annotations

from tests.cli.program import record


def test_like_git(mvc) -> None:
    mvc.commit(1)
    assert mvc("status").out == "On branch main\nNothing to commit, the files are as in HEAD\n"
    mvc.write(2)
    mvc.write(0, "new.safetensors")
    out = mvc("status").out
    assert "modified: model.safetensors (1 of 3 tensors changed)" in " ".join(out.split())
    assert "new.safetensors" in out.partition("Not tracked")[2]
    assert mvc("status", "-s").out == "M model.safetensors\n? new.safetensors\n"
    assert mvc("status", "-s", "--no-untracked").out == "M model.safetensors\n"


def test_json(mvc) -> None:
    id_ = mvc.commit(1)
    (mvc.folder / "model.safetensors").unlink()
    found = mvc("status", "--json").json
    assert found == {
        "schema": "mvc.status/1",
        "branch": "main",
        "head": id_,
        "changes": [
            {
                "path": "model.safetensors",
                "kind": "missing",
                "detail": "",
                "not_written": False,
                "same_as": None,
            }
        ],
        "untracked": [],
        "dead_links": [],
    }


def test_removed_and_detached(mvc) -> None:
    mvc.commit(1)
    id_ = mvc.commit(2)
    mvc("checkout", "HEAD~1")
    mvc("checkout", id_)
    mvc("rm", "--cached", "model.safetensors")
    out = mvc("status").out
    assert out.startswith(f"HEAD detached at {id_[:10]}\n")
    assert "Left out of the next commit:" in out


def test_paths_are_given_from_the_working_folder(mvc, monkeypatch) -> None:
    mvc.write(1, "sub/a.safetensors")
    mvc.commit(1)
    monkeypatch.chdir(mvc.folder / "sub")
    assert mvc("status", "-s").out == "? a.safetensors\n"
    mvc("commit", "a.safetensors")
    mvc.write(2)
    assert mvc("status", "-s").out == "M ../model.safetensors\n"
    assert mvc("status", "--json").json["changes"][0]["path"] == "model.safetensors"


def test_a_state_from_python_is_not_missing(mvc) -> None:
    record(mvc, 1, 2)
    assert mvc("status").out.splitlines() == [
        "On branch main",
        "",
        "Recorded from Python, not written as a file ('mvc checkout HEAD PATH' does):",
        "  model.safetensors",
        "",
        "Nothing to commit",
    ]
    assert mvc("status", "-s").out == ""
    (change,) = mvc("status", "--json").json["changes"]
    assert (change["kind"], change["not_written"]) == ("missing", True)
    mvc("checkout", "HEAD", "model.safetensors")
    assert mvc("status").out == "On branch main\nNothing to commit, the files are as in HEAD\n"


def test_missing_files_are_not_to_be_committed(mvc) -> None:
    mvc.commit(1)
    (mvc.folder / "model.safetensors").unlink()
    lines = mvc("status").out.splitlines()
    assert lines[2] == "Missing (use 'mvc checkout HEAD PATH', or 'mvc rm PATH'):"
    assert lines[3].split() == ["missing:", "model.safetensors"]
    mvc("checkout", "HEAD", "model.safetensors")
    assert mvc("status", "-s").out == ""


def test_files_that_head_left_behind(mvc) -> None:
    record(mvc, 1, 2)
    id_ = mvc("rev-parse", "HEAD").out.strip()
    mvc("checkout", "main")
    record(mvc, 3)
    lines = mvc("status").out.splitlines()
    assert lines[2].startswith("As in another version (use 'mvc checkout HEAD PATH'")
    assert lines[3].endswith(f"model.safetensors (as in {id_[:10]}, value 2)")
    (change,) = mvc("status", "--json").json["changes"]
    assert (change["kind"], change["same_as"]) == ("modified", id_)
