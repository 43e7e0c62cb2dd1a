from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.program import Mvc


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No settings, colours or zones of whoever runs the tests."""
    for name in ("NO_COLOR", "COLUMNS", "FORCE_COLOR", "_MVC_COMPLETE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("TZ", "UTC")


@pytest.fixture
def mvc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Mvc:
    """The program in an empty repository."""
    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.chdir(folder)
    made = Mvc(folder, capsys)
    made("init")
    return made
