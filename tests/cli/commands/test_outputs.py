"""Places that commands write to: what must not be written over is not."""

from __future__ import annotations

import numpy as np
import pytest

from mvc.io.files import FileSystem

LOSSY = ("commit", "model.safetensors", "--pipeline", "vsol-0-fast")


def untouched(mvc, *command: object, code: int, says: str) -> None:
    """The command is refused, and nothing was recorded or written."""
    before = {p: p.read_bytes() for p in mvc.folder.rglob("*") if p.is_file()}
    assert says in mvc(*command, code=code).err
    assert {p: p.read_bytes() for p in mvc.folder.rglob("*") if p.is_file()} == before


@pytest.mark.parametrize("place", ["journal", "config.yaml", "new", "../.mvc/journal"])
def test_no_store_is_written_into(mvc, place: str) -> None:
    mvc.commit(1)
    mvc.write(2)
    to = f".mvc/{place}"
    says = "is inside the store of a repository"
    untouched(mvc, *LOSSY, "-o", to, "--deploy", "prod", code=2, says=says)
    untouched(mvc, "checkout", "HEAD", "-f", "-o", to, code=2, says=says)
    untouched(mvc, "show", "HEAD", "steps", "-o", to, code=2, says=says)
    untouched(mvc, "report", "-f", "-o", f"{to}.html", code=2, says=says)


def test_nor_by_a_link_or_of_another_repository(mvc) -> None:
    mvc.commit(1)
    mvc.write(2)
    (mvc.folder / "link").symlink_to(".mvc", target_is_directory=True)
    mvc("init", "other")
    for to in ("link/journal", "other/.mvc/journal", ".mvc"):
        untouched(mvc, *LOSSY, "-o", to, code=2, says="store of a repository")


def test_nor_into_a_folder_that_is_a_link_to_one(mvc) -> None:
    mvc.commit(1)
    mvc.write(2)
    (mvc.folder / "link").symlink_to(".mvc", target_is_directory=True)
    says = "link is inside the store of a repository"
    for command in (LOSSY, ("checkout", "HEAD", "-f"), ("show", "HEAD", "steps")):
        untouched(mvc, *command, "-o", "link", code=2, says=says)
    assert (mvc.folder / "link").is_symlink()


def test_a_link_into_a_store_is_replaced_and_not_followed(mvc) -> None:
    mvc.commit(1)
    before = (mvc.folder / ".mvc/config.yaml").read_bytes()
    (mvc.folder / "out").symlink_to(".mvc/config.yaml")
    mvc("checkout", "HEAD", "model.safetensors", "-f", "-o", "out")
    assert (mvc.folder / ".mvc/config.yaml").read_bytes() == before
    assert (mvc.folder / "out").read_bytes() == (mvc.folder / "model.safetensors").read_bytes()


def test_a_folder_without_permission_comes_before_the_commit(mvc, monkeypatch) -> None:
    mvc.commit(1)
    mvc.write(2)
    monkeypatch.setattr(FileSystem, "is_writable_dir", lambda *_: False)
    says = "no permission for . to write x.safetensors into"
    untouched(mvc, *LOSSY, "-o", "x.safetensors", "--deploy", "prod", code=3, says=says)


def test_places_that_cannot_be_written_to_come_before_the_commit(mvc) -> None:
    mvc.commit(1)
    mvc.write(2)
    (mvc.folder / "folder").mkdir()
    (mvc.folder / "notes.py").write_text("print(1)\n")
    for to, code, says in [
        ("nodir/x.safetensors", 3, "no folder nodir"),
        ("folder", 2, "folder is not a file"),
        ("/dev/null", 2, "/dev/null is not a file"),
        ("", 2, "a path is empty"),
        ("notes.py", 3, "notes.py exists and is not a model file"),
    ]:
        untouched(mvc, *LOSSY, "-o", to, "--deploy", "prod", code=code, says=says)


def test_older_production_weights_and_empty_files_are_replaced(mvc) -> None:
    mvc.commit(1)
    (mvc.folder / "served.safetensors").touch()
    for value in (2, 3):
        mvc.write(value)
        mvc(*LOSSY, "-o", "served.safetensors")
    assert mvc("identify", "served.safetensors").out


def test_production_weights_that_are_those_of_head(mvc) -> None:
    weight = np.full(30, 1.3, np.float32)
    mvc.write(1, w=weight)
    mvc(*LOSSY, "--in-place")
    mvc.write(1, w=weight + np.float32(1e-6))
    found = mvc(*LOSSY, "-o", "x.safetensors", code=1)
    assert "the production weights equal those of HEAD" in found.err
    assert "mvc checkout HEAD PATH -o FILE" in found.err


def test_a_lossy_setting_does_not_stop_files_without_tensors(mvc) -> None:
    (mvc.folder / "notes.txt").write_text("one")
    mvc.write(1)
    for preset in ("vsol-0-fast", "vsol-1-slow"):
        mvc("config", "commit.pipeline", preset)
        (mvc.folder / "notes.txt").write_text(preset)
        assert mvc("commit", "notes.txt").err == ""


def test_a_lossy_setting_stores_exactly_unless_production_weights_are_asked_for(mvc) -> None:
    mvc("config", "commit.pipeline", "vsol-0-fast")
    for value in (1.0, 1.3):
        mvc.write(value)
        said = mvc("commit", "model.safetensors").err
        assert "stored exactly: commit.pipeline is vsol-0-fast" in said and "--in-place" in said
        assert mvc("diff", "--exit-code").code == 0
    mvc.write(2.6)
    assert "Stored exactly" not in mvc("commit", "-a", "--in-place").err
    assert mvc("log", "-n", 1, "--json").json["commits"][0]["pipeline"] == "vsol-0-fast"
    mvc("config", "commit.pipeline", "vsol-1-slow")
    mvc.write(3)
    says = "commit.pipeline is vsol-1-slow: stage dsed:0.01 decides"
    untouched(mvc, "commit", "-a", "--in-place", code=2, says=says)
    mvc("commit", "-a")


def test_a_missing_loss_is_asked_for(mvc) -> None:
    mvc.commit(1)
    mvc.write(2)
    command = ("commit", "-a", "--in-place", "--pipeline", "vsol-1-fast")
    assert "--metric loss=X" in mvc(*command, code=2).err
    mvc(*command, "--metric", "loss=0.5")
