"""What users of git type."""

from __future__ import annotations

import pytest

from mvc import __version__


@pytest.mark.parametrize(
    ("word", "hint"),
    [
        ("add", "mvc commit PATH"),
        ("push", "copy the folder"),
        ("restore", "mvc checkout HEAD PATH"),
        ("reset", "mvc undo"),
        ("retract", "--retract"),
    ],
)
def test_commands_of_git_are_answered(mvc, word: str, hint: str) -> None:
    first, second = mvc(word, "x", code=2).err.splitlines()
    assert first == f"mvc: there is no command '{word}'"
    assert second.startswith("hint: ") and hint in second


def test_help_and_version(mvc) -> None:
    assert mvc("help").out == mvc("--help").out
    assert mvc("help", "log").out == mvc("log", "--help").out
    assert "no command 'nope'" in mvc("help", "nope", code=2).err
    assert mvc("-V").out == f"mvc {__version__}\n"


def test_a_count_of_versions(mvc) -> None:
    for value in (1, 2, 3):
        mvc.commit(value)
    assert mvc("log", "-2", "--oneline").out == mvc("log", "-n", 2, "--oneline").out
    assert mvc("oplog", "-1").out == mvc("oplog", "-n", 1).out
    assert "-1" in mvc("log", "-n", -1, code=2).err
    mvc("log", "-0")


def test_switch_to_a_version(mvc) -> None:
    id_ = mvc.commit(1)
    mvc("tag", "v1")
    for name in ("v1", id_[:8], "HEAD~0"):
        first, second = mvc("switch", name, code=3).err.splitlines()
        assert first == f"mvc: {name} is a version, and not a branch"
        assert f"'mvc checkout {name}'" in second and f"'mvc switch -c NAME {name}'" in second
    mvc("branch", "experiment")
    assert "did you mean experiment?" in mvc("switch", "experimnt", code=3).err
    assert "'mvc switch -c nowhere'" in mvc("switch", "nowhere", code=3).err


def test_an_empty_commit_needs_no_path(mvc) -> None:
    id_ = mvc.commit(1)
    mvc("commit", "--allow-empty", "-m", "a marker")
    found = mvc("log", "-n", 1, "--json").json["commits"][0]
    assert (found["message"], found["parents"]) == ("a marker", [id_])
    assert "name paths" in mvc("commit", "-m", "x", code=2).err


def test_a_deployment_in_the_future_is_warned_about(mvc) -> None:
    mvc.write(1)
    said = mvc("commit", "model.safetensors", "--deploy", "prod", "--at", "2200-01-01T00:00Z").err
    assert "dated 2200-01-01T00:00:00+00:00, in the future: it counts from then on" in said
    assert "in the future" in mvc("deploy", "HEAD", "prod", "--at", "2201-01-01").err
    assert "in the future" not in mvc("deploy", "HEAD", "prod").err


def test_unchanged_files_are_counted(mvc) -> None:
    for i in range(3):
        mvc.write(i, f"{i}.safetensors")
    mvc("commit", ".")
    mvc.write(7, "0.safetensors")
    mvc("commit", "-a")
    out = mvc("show").out
    assert "0.safetensors" in out and "1.safetensors" not in out
    assert out.endswith("\n\n2 files unchanged (-v lists them)\n")
    assert "1.safetensors" in mvc("show", "-v").out
    assert len(mvc("show", "--json").json["files"]) == 3


def test_a_part_of_a_tensors_name_is_enough_for_a_hint(mvc) -> None:
    mvc.commit(1)
    assert "did you mean layer.bias?" in mvc("cat", "HEAD", "bias", code=3).err
    assert "did you mean layer.weight?" in mvc("cat", "HEAD", "WEIGHT", code=3).err
