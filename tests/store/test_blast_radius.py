"""How many versions one damaged record takes with it (docs/reliability.md)."""

from __future__ import annotations

from pathlib import Path

import pytest

from mvc.errors import DamagedData
from mvc.store.graph.search import Graph
from tests.store.skipping import CheckedHistory

INTERVAL = 16


def lost(graph: Graph, blobs: list[bytes], damaged: bytes) -> int:
    """Versions that cannot be recovered without any coding of one of them."""
    avoid = {step.place for step in graph.codings(damaged)}
    count = 0
    for id_ in blobs:
        try:
            graph.path(id_, avoid=avoid)
        except DamagedData:
            count += 1
    return count


@pytest.mark.parametrize(("layout", "closed", "tail"), [("skip:4", 3, 8), ("chain", 0, 8)])
def test_each_record_damaged_in_turn(tmp_path: Path, layout: str, closed: int, tail: int) -> None:
    history = CheckedHistory(tmp_path, layout, interval=INTERVAL)
    with history.open() as repo:
        for _ in range(2 * INTERVAL + 8):
            history.commit(repo)
        graph = repo.handle.store.graph
        blobs = history.blobs(repo)
        radius = [lost(graph, blobs, id_) for id_ in blobs]
    assert max(radius[: 2 * INTERVAL]) == closed
    assert radius[2 * INTERVAL] == max(radius) == tail
