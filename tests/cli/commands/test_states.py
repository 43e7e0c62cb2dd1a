"""States by themselves: ``mvc fetch REMOTE REV``, ``mvc push --states`` and ``--partial``."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.cli.program import Mvc


@pytest.fixture
def few(mvc: Mvc, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Mvc:
    """In a clone with the newest state alone of three versions; ``backup`` is an empty remote."""
    for value in (1, 2, 3):
        mvc.commit(value)
    mvc("clone", "-q", "--states", "last:1", mvc.folder, tmp_path / "few")
    mvc("init", "-q", "--bare", tmp_path / "backup")
    monkeypatch.chdir(tmp_path / "few")
    mvc("remote", "add", "backup", tmp_path / "backup")
    return mvc


def test_a_state_is_fetched_by_the_command_that_the_hint_names(few: Mvc) -> None:
    said = few("checkout", "HEAD~2", "-o", "x.safetensors", code=3).err
    command = said.partition("'mvc ")[2].partition("'")[0]
    assert command.startswith("fetch origin ")
    assert few("show", "HEAD~2").err == f"'mvc {command}' fetches the state, if origin has it\n"
    assert "'mvc fetch origin" in few("show", "HEAD").err  # what it changed is not known
    result = few(*command.split())
    assert result.out.splitlines()[1].startswith("1 version, ")
    few("checkout", "HEAD~2", "-o", "x.safetensors")
    assert few(*command.split()).err == "Everything up to date\n"
    found = few("fetch", "--json", "origin", "HEAD~1").json
    assert (found["versions"], found["updates"]) == (1, [])
    assert "does not combine with" in few("fetch", "-p", "origin", "HEAD~1", code=2).err


def test_a_push_without_a_state_must_be_meant(few: Mvc) -> None:
    said = few("push", "backup", code=3).err
    assert "neither this repository nor backup has" in said and "--partial" in said
    few("push", "--partial", "backup")
    few("fetch", "origin", "HEAD~1")
    result = few("push", "backup", "--states", "HEAD~1")
    assert result.out.startswith("To ") and "1 version, " in result.out
    assert few("push", "backup", "--states", "HEAD~1").err == "Everything up to date\n"
    assert few("push", "backup", "--states", "HEAD~2", code=3).err.startswith("mvc: the state of")
    assert "--states cannot be combined with" in few("push", "-f", "--states", "HEAD", code=2).err


def test_data_that_stay_at_home_are_named(few: Mvc, tmp_path: Path) -> None:
    few("remote", "add", "-f", "-o", "data=false", "backup", tmp_path / "backup")
    few("fetch", "-q", "origin", "HEAD~1", "HEAD~2")
    (tmp_path / "rows.csv").write_text("1,2\n")
    few("import", "--data", tmp_path / "rows.csv")
    few("push", "backup")
    result = few("push", "backup", "data/rows.csv")
    assert result.err.startswith("not sent: the files of data sets (data=false): ")
    few("push", "-q", "backup", "--states", "data/rows.csv")


def test_a_clone_without_states_says_how_its_files_come(mvc: Mvc, tmp_path: Path) -> None:
    mvc.commit(1)
    said = mvc("clone", "--states", "none", mvc.folder, tmp_path / "bare").err
    words = re.findall("'mvc (.*?)'", said)
    assert [each.split()[0] for each in words] == ["fetch", "checkout"]
    for each in words:
        mvc("-C", tmp_path / "bare", *each.split())
    assert list((tmp_path / "bare").glob("*.*"))
