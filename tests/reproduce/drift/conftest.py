from __future__ import annotations

from collections.abc import Iterator

import pytest

from reproduce.drift.stream import Stream
from tests.reproduce.drift.small import recorded


@pytest.fixture(scope="session")
def stream(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stream]:
    """A recorded training that nobody writes to."""
    pytest.importorskip("sklearn")
    with recorded(tmp_path_factory.mktemp("evaluation") / "stream") as made:
        yield made
