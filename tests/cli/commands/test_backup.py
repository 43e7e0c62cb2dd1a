from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from tests.cli.program import Mvc


@pytest.mark.parametrize("bare", [False, True])
def test_the_next_step_of_a_restore_works(mvc: Mvc, tmp_path: Path, bare: bool) -> None:
    mvc.commit(1.0)
    mvc("config", "core.bare", "true" if bare else "false")
    mvc("backup", tmp_path / "backup")
    said = mvc("restore", tmp_path / "backup", tmp_path / "a folder").err
    program, *words = shlex.split(said.partition("next: ")[2])
    assert program == "mvc" and mvc(*words).code == 0
    assert (tmp_path / "a folder/model.safetensors").exists() != bare


def test_a_backup_and_what_is_made_of_it(mvc: Mvc, tmp_path: Path) -> None:
    made = mvc.commit(1.0)
    place, restored = tmp_path / "backup", tmp_path / "restored"
    assert "has 1 version, " in mvc("backup", place).err
    assert mvc("backup", place, "--json").json["versions"] == 1
    done = mvc("restore", place, restored, "--json").json
    assert done["schema"] == "mvc.restore/1" and done["folder"] == str(restored)
    assert mvc("-C", restored, "show", "--id", "HEAD").out.strip() == made
    assert "missing:   model.safetensors" in mvc("-C", restored, "status", code=None).out
    mvc("-C", restored, "checkout", "HEAD", "-f")
    assert (restored / "model.safetensors").read_bytes() == mvc.write(1.0).read_bytes()
    assert "'mvc checkout HEAD PATH' restores a file" in mvc("restore", "model.x", code=3).err
    assert "a repository exists already" in mvc("restore", place, code=3).err


@pytest.mark.parametrize("bare", [False, True])
def test_the_next_step_works_where_the_branch_of_head_has_no_version(
    mvc: Mvc, tmp_path: Path, bare: bool
) -> None:
    server = tmp_path / "server"
    mvc("init", server, *(["--bare"] if bare else []))
    mvc("switch", "-c", "other")
    mvc.commit(1.0)
    mvc("remote", "add", "origin", server)
    mvc("push", "origin", "other")
    mvc("-C", server, "backup", tmp_path / "backup")
    said = mvc("restore", tmp_path / "backup", tmp_path / "restored").err
    _, *words = shlex.split(said.partition("next: ")[2])
    assert "value 1" in mvc(*words).out


def test_a_served_folder_is_backed_up_with_its_tokens(mvc: Mvc, tmp_path: Path) -> None:
    served, place = tmp_path / "served", tmp_path / "backup"
    mvc.commit(1.0)
    for name in ("one", "group/two"):
        mvc("init", "--bare", served / name)
        mvc("remote", "add", name[-3:], served / name)
        mvc("push", name[-3:])
    mvc("-C", served, "serve", "token", "add", "ci", "--scope", "one:read")
    assert "has 1 version" in mvc("-C", served / "one", "backup", tmp_path / "alone").err
    assert not (tmp_path / "alone/.mvc-tokens").exists()
    for more in "ab":
        said = mvc("-C", served, "backup", place).err
        assert f"{place}/one has 1 version, " in said and f"{place}/group/two has" in said
        tokens = place / ".mvc-tokens"
        assert said.splitlines()[-1] == f"{tokens} contains the tokens"
        assert tokens.read_bytes() == (served / ".mvc-tokens").read_bytes()
        assert tokens.stat().st_mode & 0o777 == 0o600
        assert mvc("-C", place / "group/two", "fsck").code == 0
        mvc("-C", served, "serve", "token", "add", more, "--scope", "read")
    lines = mvc("-C", served, "backup", place, "--json").out.splitlines()
    assert [json.loads(line)["folder"] for line in lines] == [f"{place}/one", f"{place}/group/two"]
    refused = mvc("restore", place, tmp_path / "restored", code=3).err
    assert f"restore each repository below it, for example: mvc restore {place}/one DIR" in refused
    assert mvc("restore", place / "one", tmp_path / "restored").code == 0
    assert "is inside the served folder" in mvc("-C", served, "backup", "copy", code=2).err
    assert not (served / "copy").exists()
