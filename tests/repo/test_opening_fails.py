"""Opening that fails holds nothing open: least of all an index, which is one a process."""

from __future__ import annotations

from pathlib import Path

import pytest

from mvc.api.repository import Repository
from mvc.errors import InvalidConfig
from mvc.store.index import folder as index_folder


def test_a_configuration_that_cannot_be_read_leaves_no_index_open(tmp_path: Path) -> None:
    Repository.init(tmp_path).close()
    (tmp_path / ".mvc" / "config.yaml").write_text("store: [")
    before = dict(index_folder._open)
    with pytest.raises(InvalidConfig) as _held:
        Repository.open(tmp_path)
    assert index_folder._open == before
    assert _held.value
