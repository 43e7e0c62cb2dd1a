"""examples/picture.py: the commands of the story run, and their output becomes an SVG."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest

pytest.importorskip("sklearn")

import picture


def test_the_story_runs_and_is_drawn(tmp_path: Path) -> None:
    steps = picture.record(tmp_path)
    printed = "\n".join(line.plain for step in steps for line in step.lines)
    assert "Rolled back prod" in printed and "then.safetensors written" in printed
    assert (tmp_path / "then.safetensors").stat().st_size > 64 * 10 * 4
    root = ElementTree.fromstring(picture.draw(steps))
    texts = ["".join(node.itertext()) for node in root.iter("{http://www.w3.org/2000/svg}text")]
    assert texts == [line.plain for step in steps for line in step.lines]
