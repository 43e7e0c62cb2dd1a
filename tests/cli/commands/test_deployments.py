from __future__ import annotations


def test_newest_first_by_time(mvc) -> None:
    mvc.commit(1)
    mvc("deploy", "HEAD", "prod", "--at", "2026-11-02T10:00Z")
    mvc("deploy", "HEAD", "edge", "--at", "2026-11-01T10:00Z")
    lines = mvc("deployments").out.splitlines()
    assert lines[0].split() == ["time", "target", "commit", "state", "message"]
    assert [line.split()[1] for line in lines[1:]] == ["prod", "edge"]
    found = mvc("deployments", "edge", "--json").json
    assert found["schema"] == "mvc.deployments/1"
    assert [d["live"] for d in found["deployments"]] == [True]


def test_nothing_and_unknown(mvc) -> None:
    mvc.commit(1)
    result = mvc("deployments")
    assert (result.out, result.err) == ("", "nothing was deployed yet\n")
    mvc("deploy", "HEAD", "prod")
    assert "prod" in mvc("deployments", "prd", code=3).err
