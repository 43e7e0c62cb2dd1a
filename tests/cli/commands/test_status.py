from __future__ import annotations


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
        "changes": [{"path": "model.safetensors", "kind": "missing", "detail": ""}],
        "untracked": [],
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
