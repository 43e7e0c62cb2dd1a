from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.json_outputs import FROZEN, transcript
from tests.cli.screens import FOLDER, Scene, scenes, written


@pytest.mark.parametrize(
    ("file", "scene"),
    [
        pytest.param(file, scene, id=f"{file.stem}: {scene}")
        for file in sorted(FOLDER.glob("*.txt"))
        for scene in scenes(file)
    ],
)
def test_screen(tmp_path: Path, file: Path, scene: Scene) -> None:
    wanted = written(file)[scene.title]
    assert scene.played(tmp_path) == wanted, f"run: python -m tests.cli.screens {file.stem}"


# -- JSON --------------------------------------------------------------------------------


@pytest.mark.usefixtures("prepared")
def test_objects_are_those_that_programs_know(tmp_path: Path) -> None:
    written = FROZEN.read_text(encoding="utf-8")
    assert transcript(tmp_path) == written, "run: python -m tests.cli.json_outputs"
