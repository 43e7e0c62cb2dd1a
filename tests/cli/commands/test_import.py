from __future__ import annotations

import os
import time
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from mvc.cli.commands.start import import_


def test_quiet_says_nothing(mvc, tmp_path) -> None:
    mvc.write(1, "runs/a.safetensors")
    result = mvc("-q", "import", mvc.folder / "runs")
    assert (result.out, result.err) == ("", "")


def test_an_interruption_says_what_was_kept(mvc, monkeypatch) -> None:
    for i in range(3):
        mvc.write(i, f"runs/{i}.safetensors")
    whole, kept = import_.import_checkpoints, []

    def interrupted(repo, sources, *, on_imported, **options):
        def then(version):
            on_imported(version)
            kept.append(version)
            if len(kept) == 2:
                raise KeyboardInterrupt

        return whole(repo, sources, on_imported=then, **options)

    monkeypatch.setattr(import_, "import_checkpoints", interrupted)
    err = mvc("import", mvc.folder / "runs", code=130).err
    assert "2 versions imported so far; repeat the command to continue" in err
    monkeypatch.undo()
    monkeypatch.chdir(mvc.folder)
    assert "1 version imported" in mvc("import", mvc.folder / "runs").out


def test_the_note_names_a_branch_if_head_got_no_version(mvc) -> None:
    mvc.write(0, "runs/a/checkpoint-1.safetensors")
    mvc.write(1, "runs/a/checkpoint-2.safetensors")
    mvc.write(2, "runs/b/checkpoint-1.safetensors")
    mvc.write(3, "runs/b/checkpoint-2.safetensors")
    mvc.commit(4)
    err = mvc("import", "runs").err
    assert "'mvc switch BRANCH' writes the files of a branch" in err and "HEAD ." not in err


# -- checkpoints that are no sound models ------------------------------------------------------


@pytest.fixture
def torn(mvc) -> Path:
    """Five checkpoint folders, of which the second was cut off."""
    run = mvc.folder / "run"
    for number in range(5):
        file = run / f"checkpoint-{number}" / "model.safetensors"
        file.parent.mkdir(parents=True)
        save_file({"w": np.full(4000, number, np.float32)}, file)
        if number == 1:
            os.truncate(file, 9000)
        os.utime(file, (1e9 + number, 1e9 + number))
    return run


def test_a_torn_checkpoint_is_named_by_its_folder(mvc, torn: Path) -> None:
    said = mvc("import", "run", code=3).err
    assert "checkpoint-1: model.safetensors is not a valid model file: it is truncated" in said
    assert "--skip-broken" in said
    assert len(mvc("log", "--all", "--json").json["commits"]) == 1


def test_torn_checkpoints_are_skipped_and_listed(mvc, torn: Path) -> None:
    done = mvc("import", "--skip-broken", "run")
    assert "warning: skipped (invalid model files): run/checkpoint-1" in done.err
    assert done.out.startswith("4 versions imported")
    again = mvc("import", "--skip-broken", "run", "--json").json
    assert [Path(path).name for path in again["broken"]] == ["checkpoint-1"]
    assert len(again["versions"]) == 4 and not any(each["kept"] for each in again["versions"])
    mvc("fsck", "--full")


def test_only_torn_checkpoints(mvc, torn: Path) -> None:
    done = mvc("import", "--skip-broken", "run/checkpoint-1")
    assert "skipped (invalid model files)" in done.err and "nothing imported" in done.out


def test_an_ambiguous_time_in_a_name_is_named(mvc, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    name = "model-20261025-0230.npy"
    np.save(mvc.folder / name, np.zeros(3))
    said = mvc("import", name, "--time", "name:model-%Y%m%d-%H%M.npy", code=None).err
    monkeypatch.undo()
    time.tzset()
    assert said.startswith(f"mvc: {name}: ")
