from __future__ import annotations

from pathlib import Path

import pytest

from tests.models.conftest import project
from tests.recipes.trainings import make_images

__all__ = ["project"]


@pytest.fixture(autouse=True)
def alone(one_thread: None) -> None:
    """Every test trains in one thread."""


@pytest.fixture
def images(tmp_path: Path) -> Path:
    return make_images(tmp_path / "images", 16)
