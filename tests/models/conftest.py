from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.models.project import NETS, Project


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Project]:
    made = Project(tmp_path / "project", monkeypatch)
    made.write(NETS)
    yield made
    made.forget()
