"""2 and 16 pushers at once beside a gc of the remote."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.children import run
from tests.counters import count
from tests.remote.kit.places import KINDS


def push(kind: str, pushers: int, rounds: int, folder: Path) -> None:
    counted = run("remote.pushers", folder, kind, pushers, rounds)
    count(f"pushers at once ({kind})", **counted, lost=0)
    assert counted["pushes"] == pushers * rounds
    assert counted["collections"]


@pytest.mark.parametrize("kind", ["folder", "http"])
def test_two_pushers_beside_a_collection(kind: str, tmp_path: Path) -> None:
    push(kind, 2, 3, tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("pushers", [2, 16])
@pytest.mark.parametrize("kind", KINDS)
def test_many_pushers_beside_a_collection(kind: str, pushers: int, tmp_path: Path) -> None:
    push(kind, pushers, 10, tmp_path)
