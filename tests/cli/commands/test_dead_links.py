"""Symbolic links that lead nowhere: named and left out, and nothing else is held up."""

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


def warnings(said: str) -> list[str]:
    return [line for line in said.splitlines() if "warning" in line]


def dead(mvc: Mvc) -> list[str]:
    return sorted(
        str(p.relative_to(mvc.folder)) for p in mvc.folder.rglob("*.safetensors") if not p.exists()
    )


def test_status_shows_the_rest_and_names_it(linked: Mvc) -> None:
    for arguments in ((), ("-s",), ("--json",)):
        found = linked("status", *arguments)
        said = warnings(found.err)
        assert len(said) == len(dead(linked))
        assert all("symbolic link that leads nowhere" in line for line in said)
        assert all(any(name in line for line in said) for name in dead(linked))
    assert found.json["dead_links"] == dead(linked)
    assert found.json["untracked"] == ["sub/new.safetensors"]
    assert [c["kind"] for c in found.json["changes"]] == ["modified"]


def test_status_of_tracked_files_alone_does_not_look(linked: Mvc) -> None:
    found = linked("status", "--no-untracked", "--json")
    assert not found.err and found.json["dead_links"] == []


@pytest.mark.parametrize("arguments", [(".",), (".", "-m", "all"), ("sub", ".", "--json")])
def test_commit_of_the_folder_records_the_rest(linked: Mvc, arguments: tuple[str, ...]) -> None:
    said = warnings(linked("commit", *arguments).err)
    assert len(said) == len(dead(linked)) and "leads nowhere" in said[0]
    assert linked("ls", "--name-only").out.split() == ["model.safetensors", "sub/new.safetensors"]
    assert linked("status", "--json").json["untracked"] == []


def test_commit_of_everything_tracked_is_not_held_up(linked: Mvc) -> None:
    linked("commit", "-a", "-m", "two")
    (change,) = linked("status", "--json", "--no-untracked").json["changes"]
    assert change["kind"] == "unchanged"


def test_commit_of_the_link_itself_is_refused(linked: Mvc) -> None:
    before = linked("log", "--json").out
    found = linked("commit", "loop.safetensors", code=3)
    assert found.err.startswith(
        "mvc: loop.safetensors is a symbolic link that leads nowhere\nhint: "
    )
    assert linked("log", "--json").out == before


def test_one_that_is_ignored_is_not_named(linked: Mvc) -> None:
    (linked.folder / ".mvcignore").write_text("loop.safetensors\nother.safetensors\n")
    assert not linked("status").err
    assert not warnings(linked("commit", ".").err)


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
    linked("commit", ".")
    linked("checkout", "HEAD~1", "-f")
    assert (linked.folder / "loop.safetensors").is_symlink()
