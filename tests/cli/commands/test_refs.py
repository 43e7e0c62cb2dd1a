"""branch, switch and tag."""

from __future__ import annotations


def test_branches(mvc) -> None:
    mvc.commit(1)
    mvc.commit(2)
    mvc("branch", "side", "HEAD~1")
    listed = mvc("branch").out.splitlines()
    assert listed[0].split()[:2] == ["*", "main"]
    assert listed[1].split()[0] == "side"
    assert "Switched to branch side" in mvc("switch", "side").err
    mvc("branch", "-m", "work")
    found = mvc("branch", "--json").json
    assert found["current"] == "work"
    assert {b["name"]: b["current"] for b in found["branches"]} == {"main": False, "work": True}
    assert mvc("branch", "-d", "work", code=3).err.startswith("mvc: ")


def test_deleting_what_would_be_lost_needs_force(mvc) -> None:
    mvc.commit(1)
    mvc("switch", "-c", "side")
    mvc.commit(2)
    mvc("switch", "main")
    assert "side" in mvc("branch", "-d", "side", code=3).err
    assert "Deleted branch side" in mvc("branch", "-d", "-f", "side").err


def test_switch_start(mvc) -> None:
    first = mvc.commit(1)
    mvc.commit(2)
    assert "add -c" in mvc("switch", "side", "HEAD~1", code=2).err
    assert "new branch side" in mvc("switch", "-c", "side", "HEAD~1").err
    assert mvc("rev-parse", "HEAD").out.strip() == first
    assert mvc("switch", "nowhere", code=3).err.startswith("mvc: there is no branch nowhere")


def test_tags(mvc) -> None:
    first = mvc.commit(1)
    mvc.commit(2)
    assert "Tag v1 is at" in mvc("tag", "v1", "HEAD~1").err
    assert mvc("tag").out.split()[:2] == ["v1", first[:10]]
    assert mvc("tag", "v1", code=3).err.startswith("mvc: ")
    mvc("tag", "-f", "v1")
    assert mvc("tag", "--json").json["tags"][0]["commit"] != first
    assert "Deleted tag v1" in mvc("tag", "-d", "v1").err
    assert mvc("tag").out == ""


def test_wrong_usage(mvc) -> None:
    mvc.commit(1)
    mvc("branch", "a", "HEAD", "c", code=2)
    mvc("branch", "-d", code=2)
    mvc("branch", "-d", "-m", "x", code=2)
    mvc("tag", "-d", code=2)
