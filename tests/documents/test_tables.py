from __future__ import annotations

from pathlib import Path

import pytest

from tests.documents.tables import pages, rendered


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.stem)
def test_tables_are_those_of_the_commands(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert text == rendered(page), "run: python -m tests.documents.tables"
