"""A training is killed while its versions are proven and their weights dropped."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.children import run
from tests.counters import count
from tests.crash.images import folder_in_memory
from tests.seeds import draw


@pytest.mark.parametrize("kills", [6, pytest.param(100, marks=pytest.mark.long)])
def test_every_durable_version_survives_a_kill_at_any_point_of_proofs(
    tmp_path: Path, kills: int
) -> None:
    """Stored, or made again bit for bit."""
    seed = draw("kills of proofs").getrandbits(32)
    with folder_in_memory(tmp_path) as folder:
        counted = run("crash.proving", folder, seed, kills)
    count("trainings killed while versions are proven and dropped", **counted)
    assert counted["lost"] == 0
    assert counted["kills"] > kills // 2
    assert counted["found"] >= counted["durable"] > 0
    assert kills < 100 or 0 < counted["in_proofs"] < kills
