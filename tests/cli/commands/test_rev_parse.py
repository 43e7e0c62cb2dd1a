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


def test_live_at_a_moment(mvc) -> None:
    first, second = mvc.commit(1), mvc.commit(2)
    mvc("deploy", first, "prod", "--at", "2026-01-01T00:00Z")
    mvc("deploy", second, "prod", "--at", "2026-01-02T00:00Z")
    assert mvc("rev-parse", "--at", "2026-01-01T12:00Z").out.strip() == first
    assert mvc("rev-parse", "--at", "2026-01-02T00:00Z", "--target", "prod").out.strip() == second
    assert "2026-01-01" in mvc("rev-parse", "--at", "2025-12-31T00:00Z", code=3).err
    assert mvc("rev-parse", code=2).err
    assert mvc("rev-parse", "HEAD", "--at", "2026-01-02T00:00Z", code=2).err
    assert mvc("rev-parse", "HEAD", "--target", "prod", code=2).err
