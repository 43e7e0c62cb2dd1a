from __future__ import annotations

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
    assert "holds 1 version, " in mvc("backup", place).err
    assert mvc("backup", place, "--json").json["versions"] == 1
    done = mvc("restore", place, restored, "--json").json
    assert done["schema"] == "mvc.restore/1" and done["folder"] == str(restored)
    assert mvc("-C", restored, "show", "--id", "HEAD").out.strip() == made
    assert "missing:   model.safetensors" in mvc("-C", restored, "status", code=None).out
    mvc("-C", restored, "checkout", "HEAD", "-f")
    assert (restored / "model.safetensors").read_bytes() == mvc.write(1.0).read_bytes()
    assert "'mvc checkout HEAD PATH' writes a file" in mvc("restore", "model.x", code=3).err
    assert "there is a repository already" in mvc("restore", place, code=3).err
