from __future__ import annotations


def test_leaves_out_of_the_next_commit(mvc) -> None:
    mvc.commit(1)
    mvc.write(1, "b.safetensors")
    mvc("commit", "b.safetensors")
    assert mvc("rm", "b.safetensors").err == "rm b.safetensors\n"
    assert not (mvc.folder / "b.safetensors").exists()
    mvc("commit", "-m", "without b")
    assert mvc("ls", "--name-only").out == "model.safetensors\n"


def test_cached_keeps_the_file(mvc) -> None:
    mvc.commit(1)
    found = mvc("rm", "--cached", "model.safetensors", "--json").json
    assert found == {"schema": "mvc.rm/1", "removed": ["model.safetensors"], "kept_on_disk": True}
    assert (mvc.folder / "model.safetensors").exists()


def test_work_is_not_deleted(mvc) -> None:
    mvc.commit(1)
    mvc.write(2)
    assert "-f" in mvc("rm", "model.safetensors", code=3).err
    assert (mvc.folder / "model.safetensors").exists()
    mvc("rm", "-f", "model.safetensors")
    mvc("rm", code=2)
    assert "nowhere" in mvc("rm", "nowhere", code=3).err


def test_what_is_not_tracked_is_named(mvc) -> None:
    assert "no file is tracked yet" in mvc("rm", "x", code=3).err
    mvc.commit(1)
    err = mvc("rm", "nope", code=3).err
    assert "nope is not tracked" in err and "hint: 'mvc ls'" in err


def test_a_path_whose_place_is_a_folder_now(mvc) -> None:
    path = mvc.write(1, "d/y.safetensors")
    mvc("commit", path)
    path.unlink()
    inside = mvc.write(2, "d/y.safetensors/q.safetensors")
    assert mvc("rm", "d/y.safetensors").err == "rm d/y.safetensors\n"
    assert inside.exists()
    mvc("commit", inside)
    assert mvc("ls", "--name-only").out == "d/y.safetensors/q.safetensors\n"
