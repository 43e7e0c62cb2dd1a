"""A snapshot knows the objects of every entry that it lists."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from mvc.api.repository import Repository
from mvc.maintenance.graph import read_records


def test_entries_end_where_the_view_stands(tmp_path: Path) -> None:
    with Repository.init(tmp_path) as repo, Repository.open(tmp_path) as other:
        repo.commit({"a": np.arange(10)})
        view = repo.handle.store.snapshot
        known = [recorded.sequence for recorded in view.entries()]
        going = view.entries()
        other.commit({"a": np.arange(11)})
        assert [recorded.sequence for recorded in going] == known
        assert [recorded.sequence for recorded in view.entries()] == known
        assert len(read_records(view).entries) == len(known) + 1
        assert len(list(view.entries())) == len(known) + 1
