"""Interrupted clones, fetches and pushes: nothing lost, nothing wrong, nothing to unlock."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.children import run
from tests.counters import count
from tests.crash.images import folder_in_memory
from tests.seeds import draw

WAYS = [(kind, how) for kind, ways in (
    ("folder", ("kill",)), ("http", ("up", "down", "lost")), ("ssh", ("up", "down", "server")),
    ("bucket", ("kill",)), ("s3", ("kill", "up", "down", "lost")),
) for how in ways]  # fmt: skip


def interrupt(otherwise: Path, kind: str, how: str, points: int) -> None:
    seed = draw("interrupted").getrandbits(32)
    with folder_in_memory(otherwise) as folder:
        counted = run("remote.interrupted", folder, seed, kind, how, points)
    count(f"interrupted transfers ({kind}, {how})", **counted, lost=0, wrong=0)
    assert counted["points"] == points


@pytest.mark.parametrize(("kind", "how"), [("folder", "kill"), ("http", "up")])
def test_an_interrupted_transfer_goes_on(kind: str, how: str, tmp_path: Path) -> None:
    interrupt(tmp_path, kind, how, 3)


@pytest.mark.long
@pytest.mark.parametrize(("kind", "how"), WAYS)
def test_transfers_interrupted_at_many_points_go_on(kind: str, how: str, tmp_path: Path) -> None:
    interrupt(tmp_path, kind, how, 3 * 40)
