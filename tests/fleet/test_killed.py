"""Whatever becomes of a follower, it keeps a whole deployed version, the live one in the end."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.children import run
from tests.counters import count
from tests.crash.images import folder_in_memory
from tests.seeds import draw


def kill(otherwise: Path, kind: str, points: int) -> None:
    seed = draw("killed followers").getrandbits(32)
    with folder_in_memory(otherwise) as folder:
        counted = run("fleet.killed", folder, seed, kind, points)
    count(f"killed followers ({kind})", **counted, torn=0, wrong=0)
    assert counted["points"] == points


@pytest.mark.parametrize("kind", ["folder", "http", "folder/", "http/", "folder+", "folder/+"])
def test_a_follower_that_was_killed_goes_on(kind: str, tmp_path: Path) -> None:
    kill(tmp_path, kind, 10)


@pytest.mark.long
@pytest.mark.parametrize("kind", ["folder", "http", "folder/", "http/", "folder+", "http/+"])
def test_followers_killed_at_many_points_go_on(kind: str, tmp_path: Path) -> None:
    kill(tmp_path, kind, 100)
