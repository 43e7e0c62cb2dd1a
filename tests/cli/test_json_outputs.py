from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.json_outputs import FROZEN, transcript


@pytest.mark.usefixtures("prepared")
def test_objects_are_those_that_programs_know(tmp_path: Path) -> None:
    written = FROZEN.read_text(encoding="utf-8")
    assert transcript(tmp_path) == written, "run: python -m tests.cli.json_outputs"
