from __future__ import annotations

from tests.documents.tables import PAGE, rendered


def test_tables_are_those_of_the_commands() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert text == rendered(), "run: python -m tests.documents.tables"
