from __future__ import annotations

from collections.abc import Iterator

import pytest

from reproduce.derived.flow import Models
from tests.reproduce.derived.tiny import recorded


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Models]:
    """Ten models that nobody writes to."""
    with recorded(tmp_path_factory.mktemp("mmlib"), "frozen") as made:
        yield made
