"""The example of docs/frameworks/lightning.md runs and prints what the page says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.frameworks.need import need

need("lightning", "lightning.pytorch")

PAGE = Path(__file__).parents[2] / "docs" / "frameworks" / "lightning.md"


def without_ids(text: str) -> list[str]:
    return re.sub(r"\b[0-9a-f]{64}\b", "ID", text).split()


def test_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = re.search(r"```python\n(.*?)```\n\nprints\n\n```\n(.*?)```", PAGE.read_text(), re.S)
    assert found is not None
    monkeypatch.chdir(tmp_path)
    exec(compile(found[1], str(PAGE), "exec"), {"__name__": "page"})
    assert without_ids(capsys.readouterr().out) == without_ids(found[2])
