"""Symbolic links that lead nowhere: status lists them, a commit of their folder refuses them."""

from __future__ import annotations

import os

import pytest

from tests.cli.program import Mvc

LINKS = {"itself": "loop.safetensors", "each other": "sub/other.safetensors", "absent": "absent"}


@pytest.fixture(params=LINKS.values(), ids=LINKS)
def linked(mvc: Mvc, request: pytest.FixtureRequest) -> Mvc:
    """A committed file, one that is not tracked, and a link between them."""
    mvc.commit(1.0)
    mvc.write(2.0)
    mvc.write(3.0, "sub/new.safetensors")
    os.symlink(request.param, mvc.folder / "loop.safetensors")
    if request.param.startswith("sub"):
        os.symlink("../loop.safetensors", mvc.folder / request.param)
    return mvc


def dead(mvc: Mvc) -> list[str]:
    return sorted(
        str(p.relative_to(mvc.folder)) for p in mvc.folder.rglob("*.safetensors") if not p.exists()
    )


def test_status_shows_the_rest_and_lists_it(linked: Mvc) -> None:
    assert linked("status", "-s").out.splitlines()[-len(dead(linked)) :] == [
        f"L {name}" for name in dead(linked)
    ]
    said = linked("status").out
    assert "Broken symbolic links (a commit refuses them):\n" in said
    assert all(f"\n  {name}\n" in said for name in dead(linked))
    found = linked("status", "--json")
    assert found.json["dead_links"] == dead(linked)
    assert found.json["untracked"] == ["sub/new.safetensors"]
    assert [c["kind"] for c in found.json["changes"]] == ["modified"]


@pytest.mark.parametrize("arguments", [(".",), (".", "-m", "all"), ("sub", ".")])
def test_commit_of_the_folder_is_refused(linked: Mvc, arguments: tuple[str, ...]) -> None:
    """A model whose file is missing behind a link, as in a Hub cache, would be incomplete."""
    before = linked("log", "--json").out
    found = linked("commit", *arguments, code=3)
    said = [f"mvc: {name} is a symbolic link whose target does not exist" for name in dead(linked)]
    assert found.err.splitlines()[0] in said
    assert ".mvcignore" in found.err
    assert linked("log", "--json").out == before
    for name in dead(linked):
        (linked.folder / name).unlink()
    linked("commit", *arguments)
    assert linked("status", "-s").out == ""


def test_a_checkpoint_with_a_missing_file_is_not_imported(mvc: Mvc) -> None:
    run = mvc.folder.parent / "runs"
    mvc.folder, folder = run, mvc.folder
    mvc.write(1.0, "checkpoint-1/model-1-of-2.safetensors")
    link = run / "checkpoint-1/model-2-of-2.safetensors"
    link.symlink_to("../blobs/missing")
    for source in (run, run / "checkpoint-1"):
        found = mvc("import", source, code=3)
        assert (
            "model-2-of-2.safetensors is a symbolic link whose target does not exist" in found.err
        )
    link.rename(run / "model.safetensors")
    assert "target does not exist" in mvc("import", run, code=3).err
    (run / "model.safetensors").unlink()
    mvc("import", run)
    mvc.folder = folder


def test_commit_of_everything_tracked_is_not_held_up(linked: Mvc) -> None:
    linked("commit", "-a", "-m", "two")
    (change,) = linked("status", "--json").json["changes"]
    assert change["kind"] == "unchanged"


def test_commit_of_the_link_itself_is_refused(linked: Mvc) -> None:
    before = linked("log", "--json").out
    found = linked("commit", "loop.safetensors", code=3)
    assert found.err.startswith(
        "mvc: loop.safetensors is a symbolic link whose target does not exist\nhint: "
    )
    assert linked("log", "--json").out == before


def test_one_that_is_ignored_is_not_named(linked: Mvc) -> None:
    (linked.folder / ".mvcignore").write_text("loop.safetensors\nother.safetensors\n")
    assert "target does not exist" not in linked("status").out
    linked("commit", ".")


def test_a_tracked_file_that_became_one_is_missing_and_comes_back(linked: Mvc) -> None:
    model = linked.folder / "model.safetensors"
    model.unlink()
    model.symlink_to("model.safetensors")
    (change,) = linked("status", "--json").json["changes"]
    assert (change["path"], change["kind"]) == ("model.safetensors", "missing")
    linked("commit", "-a", "--allow-empty")
    linked("diff")
    linked("checkout", "HEAD", "model.safetensors", "-f")
    assert model.is_file() and not model.is_symlink()


def test_other_commands_are_not_held_up(linked: Mvc) -> None:
    linked("diff")
    linked("diff", "loop.safetensors", code=3)
    linked("identify", "loop.safetensors", code=3)
    linked("import", "sub", "loop.safetensors", code=3)
    linked("commit", "sub/new.safetensors")
    linked("checkout", "HEAD~1", "-f")
    assert (linked.folder / "loop.safetensors").is_symlink()
