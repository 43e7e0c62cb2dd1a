from __future__ import annotations


def test_forms(mvc) -> None:
    first, second = mvc.commit(1), mvc.commit(2)
    assert mvc("rev-parse", "HEAD", "HEAD~1").out.split() == [second, first]
    assert mvc("rev-parse", "--short", "main").out == second[:10] + "\n"
    assert mvc("rev-parse", first[:8]).out.strip() == first
    found = mvc("rev-parse", "HEAD^", "--json").json
    assert found == {
        "schema": "mvc.rev-parse/1",
        "revisions": [{"rev": "HEAD^", "id": first}],
    }


def test_unknown(mvc) -> None:
    mvc.commit(1)
    result = mvc("rev-parse", "mian", code=3)
    assert "main" in result.err
    assert mvc("rev-parse", "HEAD~5", code=3).err.startswith("mvc: ")
