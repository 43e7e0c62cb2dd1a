from __future__ import annotations

import pytest

from mvc.cli.catalog import COMMANDS
from tests.documents.commands import FOLDER, page


@pytest.mark.parametrize("name", COMMANDS)
def test_the_page_is_that_of_the_command(name: str) -> None:
    text = (FOLDER / f"{name}.md").read_text(encoding="utf-8")
    assert text == page(name), f"run: python -m tests.documents.commands {name}"


def test_every_page_is_that_of_a_command() -> None:
    assert {file.stem for file in FOLDER.iterdir()} == {*COMMANDS}
