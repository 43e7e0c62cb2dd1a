from __future__ import annotations

import pytest


@pytest.fixture
def history(mvc):
    for value in range(4):
        mvc.write(value)
        mvc(
            "commit", "model.safetensors", "-m", f"value {value}\n\nbody", "--author", "me",
            "--date", f"2026-11-0{value + 1}T12:00Z", "--metric", f"acc=0.{value}",
        )  # fmt: skip
    mvc("tag", "v1", "HEAD~1")
    mvc("deploy", "HEAD~2", "prod", "--at", "2026-11-02T13:00Z")
    return mvc


def test_reads_like_git(history) -> None:
    head = history("rev-parse", "--short", "HEAD").out.strip()
    lines = history("log").out.splitlines()
    assert lines[0] == f"commit {head} (HEAD -> main)"
    assert lines[1] == "Author:   me"
    assert lines[2].startswith("Date:     2026-11-04T12:00:00+00:00 (")
    assert lines[3].startswith("Pipeline: ")
    assert lines[4] == "Metrics:  acc=0.3"
    assert lines[5:9] == ["", "    value 3", "", "    body"]
    assert lines[9] == ""
    assert lines[10].endswith("(tag: v1)")


def test_deployments_are_shown(history) -> None:
    out = history("log", "-n", "3").out
    assert "[prod]" in out
    assert "Deployed: prod at 2026-11-02T13:00:00+00:00" in out


def test_brackets_are_for_what_is_live_now(history) -> None:
    history("deploy", "HEAD~1", "prod", "--at", "2026-11-03T13:00Z")
    history("deploy", "HEAD~2", "edge", "--at", "2026-11-03T13:00Z")
    lines = history("log", "--oneline").out.splitlines()
    assert [line[11:] for line in lines] == [
        "(HEAD -> main) value 3",
        "(tag: v1) [prod] value 2",
        "[edge] value 1",
        "value 0",
    ]
    assert "Deployed: prod at 2026-11-02T13:00:00+00:00" in history("log").out
    assert "[prod]" not in history("show", "HEAD~2").out
    history("deploy", "HEAD~1", "prod", "--retract")
    assert history("log", "--oneline").out.splitlines()[2].endswith(" [prod, edge] value 1")


def test_oneline_and_count(history) -> None:
    lines = history("log", "--oneline", "-n", "2").out.splitlines()
    assert len(lines) == 2
    assert lines[0].endswith("(HEAD -> main) value 3")
    assert history("log", "--oneline", "-n", "0").out == ""


def test_since_until_target(history) -> None:
    found = history("log", "--since", "2026-11-02", "--until", "2026-11-03T23:00", "--json").json
    assert [c["message"][:7] for c in found["commits"]] == ["value 2", "value 1"]
    found = history("log", "--target", "prod", "--json").json
    assert [c["message"][:7] for c in found["commits"]] == ["value 1"]
    assert found["commits"][0]["deployments"][0]["target"] == "prod"


def test_json_has_refs_and_parents(history) -> None:
    found = history("log", "--json").json
    assert found["schema"] == "mvc.log/1"
    commits = found["commits"]
    assert "main" in commits[0]["refs"]
    assert commits[0]["parents"] == [commits[1]["id"]]
    assert commits[-1]["parents"] == []


def test_graph_keeps_every_version(history) -> None:
    lines = history("log", "--graph", "--oneline").out.splitlines()
    assert len([line for line in lines if "value" in line]) == 4
    assert lines[0].startswith("* ")


def test_empty_repository(mvc) -> None:
    assert mvc("log", code=3).err.startswith("mvc: ")


def test_oneline_with_full_ids(mvc) -> None:
    id_ = mvc.commit(1)
    assert mvc("log", "--oneline", "-v").out.startswith(f"{id_} ")
