"""T5: every flipped bit of format, journal and packs is found, none gives wrong bytes.

What is checked after each flip, and what on a sample of them, is in ``flips.py``. The
flips run in child processes, so that a dead process is a counted failure.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from mvc.model.statement import Deployment, Retraction
from tests.children import note, outcome
from tests.damage import made
from tests.damage.flips import flip_bits
from tests.damage.subject import Subject
from tests.seeds import draw

SHARDS = 24


def test_a_sample_of_all_bits(tmp_path: Path) -> None:
    """About 5,000 bits, evenly spread, beginning somewhere else each time."""
    begin = draw("bit flips").randrange(101)
    found = outcome("damage.flips", tmp_path / "repo", "part", begin, 101, 250)
    note("bit flips, a sample of a small repository", found)
    assert found["found"] == found["tried"] > 5000
    assert found["healed"] > 500
    assert found["asked_everything"] >= 20


def test_the_sample_is_of_a_repository_of_64_kib(tmp_path: Path) -> None:
    """Every byte of format, journal and packs is flipped, and all kinds of records are there."""
    made.small(tmp_path)
    subject = Subject(tmp_path)
    known = [data for path, data in subject.sound.items() if path.name != "witness"]
    assert subject.size == sum(map(len, known))
    assert 1 << 16 <= subject.size < 5 << 14
    assert {span.kind for span in subject.spans} == {
        "format", "journal", "pack", "header", "payload",
    }  # fmt: skip
    members = [m for span in subject.spans if span.kind == "header" for m in span.members]
    assert {m.coding.transform.partition(":")[0] for m in members} == {
        "", "resize", "patch", "optim",
    }  # fmt: skip
    assert {len(m.inputs) for m in members} == {0, 2}
    assert {m.coding.text for m in members} >= {"xor | planes:all | zstd:1"}
    assert {bool(m.base) for m in members} == {True, False}
    entries = [recorded.entry for recorded in subject.entries]
    assert all(any(e.of(kind) for e in entries) for kind in (Retraction, Deployment))
    verdict = subject.everything(full=True)
    assert not verdict.found and not verdict.lost


def test_a_bit_that_decoding_does_not_look_at_loses_nothing(tmp_path: Path) -> None:
    """It is damage, and is reported; but fsck once named versions as lost that came back.

    Of a payload that is one chunk, the first byte also says how large a chunk would be.
    Frames of zstd have a bit that decoders pass over.
    """
    made.small(tmp_path)
    subject = Subject(tmp_path)
    begins, at = [], 0
    for span in subject.spans:
        begins += [8 * at + 3] if span.kind == "payload" else []
        at += span.end - span.start
    found = flip_bits(subject, begins, 1)
    assert found["asked_everything"] == found["found"] == len(begins) > 50
    whole = 0
    for bit in begins:
        with subject.flipped(bit):
            verdict = subject.everything()
            assert verdict.found
            whole += not verdict.lost
    assert whole > 10


@pytest.mark.long
@pytest.mark.parametrize("part", range(8))
def test_a_third_of_all_bits(tmp_path: Path, part: int) -> None:
    """Each seed chooses its third."""
    shard = 3 * part + draw("thirds").randrange(3)
    found = outcome("damage.flips", tmp_path / "repo", "part", shard, SHARDS, 500)
    note("bit flips, a third of all bits of 64 KiB", found)
    assert found["found"] == found["tried"]


@pytest.mark.long
@pytest.mark.parametrize("round_", range(1))
def test_random_bits_of_a_large_repository(tmp_path: Path, round_: int) -> None:
    seed = draw("bit flips").getrandbits(32)
    found = outcome("damage.flips", tmp_path / "repo", "random", seed, 20_000, 4000)
    note("bit flips, random in 27 MB", found)
    assert found["found"] == found["tried"] == 20_000
