from __future__ import annotations

from pathlib import Path

import pytest

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
