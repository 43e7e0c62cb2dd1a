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


def test_forgotten_versions_are_marked(mvc) -> None:
    id_ = mvc.commit(1)
    mvc("deploy", "HEAD", "prod")
    mvc.commit(2)
    mvc("deploy", "HEAD", "edge")
    mvc("forget", id_, "-f")
    rows = {line.split()[1]: line for line in mvc("deployments").out.splitlines()[1:]}
    assert "  live, forgotten on 20" in rows["prod"]
    assert "forgotten" not in rows["edge"]
    found = {d["target"]: d for d in mvc("deployments", "--json").json["deployments"]}
    assert found["prod"]["forgotten"].startswith("20") and found["prod"]["live"]
    assert found["edge"]["forgotten"] is None
