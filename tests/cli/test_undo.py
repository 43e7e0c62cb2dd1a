from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.program import ROOT


def test_undo_goes_back_one_operation_at_a_time(mvc) -> None:
    first, second = mvc.commit(1), mvc.commit(2)
    mvc("tag", "v1")
    said = mvc("undo")
    assert said.out == f"Undid operation 3 (tag): tag v1 {second[:10]} -> none\n"
    assert said.err == f"HEAD is on main, at {second[:10]}\n"
    said = mvc("undo")
    assert said.out == f"Undid operation 2 (commit): main {second[:10]} -> {first[:10]}\n"
    assert f"HEAD is on main, at {first[:10]}\nThe files are not touched" in said.err
    assert mvc("rev-parse", "HEAD").out.strip() == first
    assert mvc("undo").err.startswith("HEAD is on main, without a version yet\n")
    said = mvc("undo", code=3)
    assert (said.out, said.err.splitlines()[0]) == ("", "mvc: there is nothing to undo")
    assert mvc("log", second, "-n", 1, "--oneline").out.startswith(second[:10])


def test_the_advice_is_sound(mvc) -> None:
    """What it says of files leads to those of HEAD, and redo to the others again."""
    mvc.commit(1)
    old = Path("model.safetensors").read_bytes()
    mvc.commit(2)
    new = Path("model.safetensors").read_bytes()
    assert "'mvc checkout -f HEAD'" in mvc("undo").err
    assert Path("model.safetensors").read_bytes() == new
    assert [c["kind"] for c in mvc("status", "--json").json["changes"]] == ["modified"]
    mvc("checkout", "HEAD", code=3)
    mvc("checkout", "-f", "HEAD")
    assert Path("model.safetensors").read_bytes() == old
    assert mvc("status", "--json").json["branch"] == "main"
    mvc("undo", 3)
    mvc("checkout", "-f", "HEAD")
    assert Path("model.safetensors").read_bytes() == new


def test_a_switch_and_a_checkout_are_undone(mvc) -> None:
    first, _ = mvc.commit(1), mvc.commit(2)
    mvc("switch", "-c", "side")
    mvc("checkout", first)
    mvc("undo")
    assert mvc("status", "--json").json["branch"] == "side"
    mvc("undo")
    mvc("undo")
    assert mvc("branch", "--json").json["current"] == "main"
    assert [b["name"] for b in mvc("branch", "--json").json["branches"]] == ["main"]


def test_what_rm_took_out_comes_back(mvc) -> None:
    mvc.commit(1)
    mvc("rm", "--cached", "model.safetensors")
    said = mvc("undo")
    assert "to leave out next: nothing" in said.out
    assert said.err.count("\n") == 1  # the file is there
    mvc("commit", "-a", code=1)
    mvc("rm", "model.safetensors")
    advice = mvc("undo").err.splitlines()[-1]
    assert advice == (
        "model.safetensors is not there: 'mvc checkout HEAD model.safetensors' writes it"
    )
    mvc(*advice.split("'")[1].split()[1:])
    mvc("commit", "-a", code=1)


def test_deployments_are_retracted_not_undone(mvc) -> None:
    mvc.commit(0)
    mvc.write(1)
    mvc("commit", "-a", "--deploy", "prod")
    id_ = mvc("rev-parse", "HEAD").out.strip()
    said = mvc("undo", "-n")
    advice = next(line for line in said.err.splitlines() if "to retract it" in line)
    assert advice.endswith(f": mvc deploy {id_[:10]} prod --retract")
    mvc("undo")
    assert mvc("rev-parse", "--at", "now").out.strip() == id_
    mvc(*advice.partition(": mvc ")[2].split())
    assert mvc("deployments", "--json").json["deployments"][0]["retracted"]
    assert "retract" in mvc("undo", 4, code=3).err


def test_the_advice_names_the_moment_where_there_are_two(mvc) -> None:
    mvc.write(1)
    mvc("commit", "model.safetensors", "--deploy", "prod")
    mvc("deploy", "HEAD", "prod")
    advice = next(line for line in mvc("undo", 1).err.splitlines() if "to retract it" in line)
    mvc(*advice.partition(": mvc ")[2].split())
    found = mvc("deployments", "--json").json["deployments"]
    assert [(d["sequence"], d["retracted"]) for d in found] == [(2, False), (1, True)]


def test_dry_run_changes_nothing(mvc) -> None:
    mvc.commit(1)
    id_ = mvc.commit(2)
    said = mvc("undo", "-n")
    assert said.out.startswith("Would undo operation 2 (commit): main ")
    assert said.err.startswith("HEAD would be on main, at ")
    assert mvc("undo", "-n", "--json").json["number"] is None
    assert mvc("rev-parse", "HEAD").out.strip() == id_


def test_refusals(mvc) -> None:
    mvc.commit(1)
    mvc.commit(2)
    said = mvc("undo", 1, code=3).err.splitlines()
    assert said == [
        "mvc: main has moved since operation 1: operation 2 (commit) did that",
        "hint: undo that one first: 'mvc undo 2'",
    ]
    assert mvc("undo", 9, "--json", code=3).json["kind"] == "unknown-operation"
    assert mvc("undo", "x", code=2).out == ""
    mvc("undo", -1, code=2)
    mvc("undo", 2**70, code=3)


def test_json(mvc) -> None:
    first, second = mvc.commit(1), mvc.commit(2)
    found = mvc("undo", "--json").json
    assert found["schema"] == "mvc.undo/1"
    assert (found["number"], found["undone"]["number"]) == (3, 2)
    assert found["refs"] == [{"name": "heads/main", "old": second, "new": first}]
    assert found["head"] == {"branch": "main", "commit": first, "moved": True}
    assert found["undone"]["commits"] == [second]
    listed = mvc("oplog", "--json").json
    assert listed["schema"] == "mvc.oplog/1"
    assert [(o["number"], o["undoes"], o["undone_by"]) for o in listed["operations"]] == [
        (3, 2, None), (2, None, 3), (1, None, None), (0, None, None),
    ]  # fmt: skip
    assert listed["operations"][1]["refs"] == [{"name": "heads/main", "old": first, "new": second}]


def test_oplog(mvc) -> None:
    id_ = mvc.commit(1)
    mvc("deploy", "HEAD", "prod")
    mvc("deploy", "HEAD", "prod", "--retract")
    mvc("rm", "--cached", "model.safetensors")
    mvc("undo", 1)
    lines = mvc("oplog").out.splitlines()
    assert lines[0].split() == ["number", "time", "operation", "state", "changes", "about"]
    said = [" ".join(line.split()[2:]) for line in lines[1:]]
    assert said == [
        f"undo main {id_[:10]} -> none undoes 1",
        "rm to leave out next: model.safetensors",
        "retract operation 2 retracted on prod",
        f"deploy {id_[:10]} live on prod",
        f"commit undone by 5 main none -> {id_[:10]} value 1",
        "init HEAD none -> main",
    ]
    assert len(mvc("oplog", "-n", 2).out.splitlines()) == 3
    assert mvc("oplog", "-n", 0).out == ""
    assert f"{id_} live on prod" in mvc("oplog", "-v").out


@pytest.mark.parametrize("command", [["oplog"], ["undo"]])
def test_neither_needs_arrays(mvc, command: list[str]) -> None:
    mvc.commit(1)
    script = (
        f"import sys; from mvc.cli.main import run; code = run(['-q', *{command!r}]); "
        "print(code, [m for m in ('torch', 'numpy', 'rich') if m in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=mvc.folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.stderr == "0 []\n"
