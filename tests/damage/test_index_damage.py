"""Damage to the index: the right answer, an error or a new index, never a wrong answer.

The cases, and everything that is asked after each of them, are in ``indexes.py``. LMDB
would follow damaged pointers out of its file; its pages are looked at before. A process
that dies all the same is counted, and without the index, which loses nothing, the same
questions must be answered.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from pathlib import Path

import pytest

from tests.children import outcome
from tests.counters import count
from tests.damage import indexes
from tests.seeds import draw

ROUNDS = 3


def damage(folder: Path, cases: int) -> Counter[str]:
    """In memory where there is such a folder: making indexes anew costs flushes."""
    shared = Path("/dev/shm")
    where = shared if shared.is_dir() else folder
    with tempfile.TemporaryDirectory(dir=where, prefix="mvc-index-") as made:
        seed = draw("index").getrandbits(32)
        found = outcome("damage.indexes", Path(made) / "repo", seed, cases)
    assert found["wrong"] == found["foreign"] == found["hangs"] == 0
    outcomes = ("right", "remade", "refused", "deaths")
    assert sum(found[outcome] for outcome in outcomes) == found["tried"] == cases
    assert found["cured"] == found["deaths"] == 0
    return found


def test_damage_to_the_index_gives_no_wrong_answer(tmp_path: Path) -> None:
    found = damage(tmp_path, 120)
    count("index: bit flips and truncations, a sample", **found)
    assert min(found["right"], found["remade"]) > 10


def test_every_kind_of_damage_meets_every_way_of_opening() -> None:
    pairs = {
        (indexes.KINDS[i % len(indexes.KINDS)],
         indexes.MODES[i // len(indexes.KINDS) % len(indexes.MODES)])
        for i in range(120)
    }  # fmt: skip
    assert len(pairs) == len(indexes.KINDS) * len(set(indexes.MODES))


@pytest.mark.long
@pytest.mark.parametrize("round_", range(ROUNDS))
def test_many_damaged_indexes_give_no_wrong_answer(tmp_path: Path, round_: int) -> None:
    count("index: bit flips and truncations", **damage(tmp_path, 1000))
