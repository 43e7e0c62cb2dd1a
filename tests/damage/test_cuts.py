"""T6: cut, zeroed, exchanged, doubled and lost: found, and fsck names just what is lost.

The cases and what is asked after each of them are in ``cuts.py``.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.children import note, outcome
from tests.damage import cuts, made
from tests.damage.subject import Subject
from tests.seeds import draw

SHARDS = 10


def test_a_sample_of_cuts_and_exchanges(tmp_path: Path) -> None:
    rng = draw("cuts")
    first = rng.randrange(9)
    found = outcome("damage.cuts", tmp_path / "repo", rng.getrandbits(32), first, 9, 2000)
    note("cuts and exchanges, a sample", found)
    assert found["tried"] == 2000
    assert min(found["found_by_fsck"], found["refused_at_opening"], found["versions_lost"]) > 100


def test_the_repository_that_is_cut_has_several_packs(tmp_path: Path) -> None:
    made.tiny(tmp_path)
    subject = Subject(tmp_path)
    packs = [path for path in subject.sound if path.suffix == ".pack"]
    assert len(packs) >= 4
    codings = {m.coding.text for span in subject.spans for m in span.members}
    assert {text.split(" | ")[0] for text in codings} >= {"sub", "xor", "patch", "resize"}
    cases = list(cuts.enumerated(subject.sound))
    total = sum(len(d) for p, d in subject.sound.items() if p.name != "witness")
    assert sum(kind == "truncated" for kind, _ in cases) == total
    assert all(make() != subject.sound for _, make in cases[::50])


def test_files_and_entries_lost_doubled_and_exchanged(tmp_path: Path) -> None:
    """Every such case. Exchanged packs once made fsck name a version that was whole."""
    made.tiny(tmp_path)
    subject = Subject(tmp_path)
    whole = ("deleted", "empty", "renamed", "exchanged", "replaced", "entr")
    counted: Counter[str] = Counter()
    for case in cuts.enumerated(subject.sound):
        if case[0].startswith(whole):
            cuts.check(subject, case, counted)
    note("files and entries lost, doubled, exchanged", counted)
    assert counted["tried"] > 60
    assert counted["noted_and_whole"] == 0


@pytest.mark.long
@pytest.mark.parametrize("shard", range(SHARDS))
def test_50000_cuts_and_exchanges(tmp_path: Path, shard: int) -> None:
    """Every truncation, every sector, every file; the rest is drawn."""
    seed = draw("cuts").getrandbits(32)
    found = outcome("damage.cuts", tmp_path / "repo", seed, shard, SHARDS, 50_000 // SHARDS)
    note("cuts and exchanges", found)


@pytest.mark.long
@pytest.mark.parametrize("round_", range(4))
def test_sectors_of_a_larger_repository(tmp_path: Path, round_: int) -> None:
    seed = draw("cuts").getrandbits(32)
    note("sectors of 64 KiB", outcome("damage.cuts", tmp_path / "repo", seed, 0, 0, 500))
