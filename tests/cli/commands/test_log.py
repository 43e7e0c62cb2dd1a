from __future__ import annotations

import numpy as np
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


# -- metrics, paths, ranges, all branches --------------------------------------------------


def messages(result) -> list[str]:
    return [c["message"].splitlines()[0] for c in result.json["commits"]]


def test_a_table_of_metrics(history) -> None:
    history.write(9)
    history("commit", "model.safetensors", "-m", "last", "--metric", "loss=0.25",
            "--param", "lr=0.1")  # fmt: skip
    lines = history("log", "--metrics").out.splitlines()
    assert lines[0].split() == ["version", "refs", "live", "on", "date", "acc", "loss", "message"]
    assert lines[1].split()[-2:] == ["0.25", "last"]
    assert [line.split()[-3:] for line in lines[2:]] == [
        [f"0.{i}" if i else "0", "value", str(i)] for i in (3, 2, 1, 0)
    ]
    assert "Params:   lr=0.1" in history("show").out
    assert history("log", "-n", "1", "--json").json["commits"][0]["params"] == {"lr": "0.1"}


def test_sorted_by_a_metric(history) -> None:
    history.write(9)
    history("commit", "model.safetensors", "-m", "without")
    history.write(10)
    history("commit", "model.safetensors", "-m", "no number", "--metric", "acc=nan")
    assert messages(history("log", "--sort", "acc", "--json")) == [f"value {i}" for i in "3210"]
    assert messages(history("log", "--sort", "-acc", "-n", "2", "--json")) == ["value 0", "value 1"]
    assert messages(history("log", "--best", "acc", "--json")) == ["value 3"]
    assert messages(history("log", "--best", "-acc", "HEAD~3", "--json")) == ["value 0"]
    assert history("log", "--best", "acc", "--oneline").out.endswith(" value 3\n")
    wrong = history("log", "--best", "accuracy", code=3)
    assert "no version has the metric accuracy" in wrong.err
    assert "there is: acc" in wrong.err
    history("log", "--best", "acc", "--sort", "acc", code=2)
    history("log", "--graph", "--metrics", code=2)


def test_of_equal_values_the_newer_version_comes_first(mvc) -> None:
    for value in range(3):
        mvc.write(value)
        mvc("commit", "model.safetensors", "-m", f"{value}", "--metric", "acc=1")
    assert messages(mvc("log", "--sort", "acc", "--json")) == ["2", "1", "0"]
    assert messages(mvc("log", "--sort", "-acc", "--json")) == ["2", "1", "0"]


def test_versions_that_changed_a_path(history) -> None:
    history.write(0, name="sub/other.safetensors")
    history("commit", "sub", "-m", "other")
    history.write(9)
    history("commit", "model.safetensors", "-m", "model")
    assert messages(history("log", "sub", "--json")) == ["other"]
    assert messages(history("log", "HEAD", "sub/other.safetensors", "--json")) == ["other"]
    found = messages(history("log", "-n", "2", "model.safetensors", "--json"))
    assert found == ["model", "value 3"]
    history("rm", "sub/other.safetensors")
    history("commit", "-a", "-m", "gone")
    found = messages(history("log", "HEAD", "sub/other.safetensors", "--json"))
    assert found == ["gone", "other"]
    assert "no version, branch or tag nowhere" in history("log", "nowhere", code=3).err
    (history.folder / "v1").mkdir()
    assert messages(history("log", "v1", "-n", "1", "--json")) == ["value 2"]  # names come first


def test_a_range_of_versions(history) -> None:
    history("switch", "-c", "exp", "HEAD~1")
    for value in (7, 8):
        history.write(value)
        history("commit", "model.safetensors", "-m", f"exp {value}")
    assert messages(history("log", "main..exp", "--json")) == ["exp 8", "exp 7"]
    assert messages(history("log", "main..", "--json")) == ["exp 8", "exp 7"]
    assert messages(history("log", "exp..main", "--json")) == ["value 3"]
    assert messages(history("log", "..main", "--json")) == ["value 3"]
    assert messages(history("log", "exp..HEAD~1", "--json")) == []
    history("deploy", "exp", "prod")
    assert messages(history("log", "main..exp", "--target", "prod", "--json")) == ["exp 8"]
    assert "nowhere" in history("log", "main..nowhere", code=3).err
    assert history("log", "main...exp", code=3).err


def test_all_branches_children_before_parents_whatever_the_clocks_said(history) -> None:
    history("switch", "-c", "exp", "HEAD~1")
    history.write(7)
    history("commit", "model.safetensors", "-m", "exp", "--date", "2020-01-01")
    history("switch", "main")
    found = history("log", "--all", "--json").json["commits"]
    assert sorted(c["message"].splitlines()[0] for c in found) == [
        "exp", *(f"value {i}" for i in range(4))
    ]  # fmt: skip
    seen: set[str] = set()
    for commit in found:
        assert not seen & set(commit["parents"])
        seen.add(commit["id"])
    assert messages(history("log", "--json"))[0] == "value 3"
    lines = history("log", "--all", "--graph", "--oneline").out.splitlines()
    assert sum("*" in line for line in lines) == 5
    assert any(line.startswith("|/") for line in lines)
    history("log", "--all", "main", code=2)


def test_relations(mvc) -> None:
    mvc.commit(0)
    mvc.commit(1)
    mvc.commit(1, **{"head.weight": np.ones((2, 2))})
    lines = mvc("log", "--relations").out.splitlines()
    assert [line for line in lines if line.startswith("Relation:")] == [
        "Relation: extended (3 of 4 tensors shared, 3 equal)",
        "Relation: fine-tuned version (1 of 3 tensors changed)",
        "Relation: base",
    ]
    short = mvc("log", "--relations", "--oneline").out.splitlines()
    assert [line.rpartition(" (")[2] for line in short] == [
        "extended)", "fine-tuned version)", "base)",
    ]  # fmt: skip
    table = mvc("log", "--relations", "--metrics").out.splitlines()
    assert "relation" in table[0] and "fine-tuned version" in table[2]
    found = mvc("log", "--relations", "--json", "-n1").json["commits"][0]["relations"]
    assert found[0]["kind"] == "extended" and found[0]["base_path"] == "model.safetensors"
    assert "relations" not in mvc("log", "--json").json["commits"][0]
    assert "Relation" not in mvc("log").out


def test_relations_of_several_models(mvc) -> None:
    mvc.commit(0)
    mvc.write(1, "b.safetensors")
    mvc("commit", "b.safetensors", "-m", "b")
    mvc.write(5)
    mvc.write(6, "b.safetensors")
    mvc("commit", "-a", "-m", "both")
    lines = mvc("log", "--relations", "--oneline").out.splitlines()
    both = "b.safetensors fine-tuned version, model.safetensors fine-tuned version"
    assert lines[0].endswith(f"both ({both})")
    assert lines[1].endswith("b (b.safetensors fine-tuned version)")
