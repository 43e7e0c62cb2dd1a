from __future__ import annotations


def test_checkouts_are_what_forget_and_repack_go_by(mvc) -> None:
    ids = [mvc.commit(n) for n in range(1, 6)]
    mvc("checkout", ids[1], "-o", "out")
    mvc("switch", "main")
    said = mvc("forget", "--unqueried", "-n")
    assert "3 states to forget" in said.out
    assert "Queries are recorded since 20" in said.err + said.out
    found = mvc("forget", "--unqueried", "-n", "--json").json
    assert {each["id"] for each in found["versions"]} == {ids[0], ids[2], ids[3]}
    assert (found["rules"], found["queries_since_ns"] > 0) == ("--unqueried", True)
    plan = mvc("repack", "--add-queried", "1", "-n", "--json").json
    assert plan["goal"].startswith("add ")
    both = mvc("repack", "--add-queried", "1", "--interval", "3", code=2)
    assert "exclude each other" in both.err
    mvc("forget", "--unqueried", "-f")
    assert mvc("show", ids[0], "--json").json["forgotten"] is not None
    assert mvc("show", ids[1], "--json").json["forgotten"] is None


def test_where_nothing_is_recorded(mvc) -> None:
    mvc.commit(1)
    (mvc.folder / ".mvc/queries").unlink()
    assert "no query of a version is recorded" in mvc("forget", "--unqueried", "-n", code=2).err
    assert "no version was asked for yet" in mvc("repack", "--add-queried", "1", code=2).err
    assert mvc("forget", "--keep-last", "1", "-n", "--json").json["queries_since"] is None
