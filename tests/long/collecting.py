"""A plugin for pytest that writes the ids of the tests it collects to a file, one a line."""

from __future__ import annotations

from pathlib import Path

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--collected", metavar="FILE", required=True)


def pytest_collection_finish(session: pytest.Session) -> None:
    path = Path(session.config.getoption("--collected"))
    path.write_text("".join(f"{item.nodeid}\n" for item in session.items), encoding="utf-8")
