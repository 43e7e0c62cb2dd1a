"""Guards of the bit-flip suite: without a checksum it must notice that something is missed.

Checksums are made blind one by one, some that cover the same bytes also as a group: what
is compared with a blind one fits. A sample of the bits that it covers is then flipped as
``flips.py`` does it, which must fail, and for the reason that damage was not seen.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import blake3
import pytest

from mvc.store import format as format_
from mvc.store.index import index, runs
from mvc.store.journal import frames as journal_frames
from mvc.store.packs import reader as pack_reader
from mvc.store.packs import records
from mvc.store.recovery import recover
from tests.damage import cuts, indexes, made
from tests.damage.flips import flip_bits
from tests.damage.subject import Subject, Wrong
from tests.seeds import draw

Patch = pytest.MonkeyPatch
UNSEEN = re.compile(
    "fsck does not see it|reads otherwise|came back with other bytes|was opened|"
    "neither opening nor fsck"
)


class _AnyBytes(bytes):
    """Equal to everything."""

    def __eq__(self, other: object) -> bool:
        return True

    def __ne__(self, other: object) -> bool:
        return False

    __hash__ = bytes.__hash__


class _AnyText(str):
    """Equal to everything, and so is what it is put in front of."""

    def __eq__(self, other: object) -> bool:
        return True

    def __ne__(self, other: object) -> bool:
        return False

    def __add__(self, other: str) -> _AnyText:
        return _AnyText(str(self) + other)

    __hash__ = str.__hash__


class _Blind:
    """A hash whose digests fit everything."""

    def __init__(self, *data: Any, **options: Any) -> None:
        self._hasher = blake3.blake3(*data, **options)

    def update(self, data: Any) -> None:
        self._hasher.update(data)

    def digest(self, length: int = 32) -> bytes:
        return _AnyBytes(self._hasher.digest(length))

    def hexdigest(self, length: int = 32) -> str:
        return _AnyText(self._hasher.hexdigest(length))

    def done(self) -> bytes:
        return _AnyBytes(32)


class _BlindBlob(_Blind):
    def __init__(self, spec: object, *, parallel: bool = False) -> None:
        super().__init__()


def _format(patch: Patch) -> None:
    patch.setattr(format_, "blake3", _Blind)


def _journal(patch: Patch) -> None:
    patch.setattr(journal_frames, "blake3", _Blind)


def _headers(patch: Patch) -> None:
    seeing = records.payload_check

    def payload_check(payload: Any) -> bytes:
        with pytest.MonkeyPatch.context() as back:
            back.setattr(records, "blake3", blake3.blake3)
            return seeing(payload)

    patch.setattr(pack_reader, "payload_check", payload_check)
    patch.setattr(records, "blake3", _Blind)


def _first_bytes(patch: Patch) -> None:
    from mvc.maintenance.fsck import packs

    patch.setattr(packs, "PACK_HEADER", _AnyBytes(pack_reader.PACK_HEADER))


def _payloads(patch: Patch) -> None:
    patch.setattr(pack_reader, "payload_check", lambda payload: _AnyBytes(8))


def _objects(patch: Patch) -> None:
    patch.setattr(recover, "BlobHasher", _BlindBlob)
    patch.setattr(recover, "blob_id", lambda *data, **options: _AnyBytes(32))
    patch.setattr(recover.Manifest, "id_of", lambda data: _AnyBytes(32))


def _payloads_and_objects(patch: Patch) -> None:
    _payloads(patch)
    _objects(patch)


GUARDS: dict[str, tuple[Callable[[Patch], None], str]] = {
    "check of format": (_format, "format"),
    "check of a journal's frame": (_journal, "journal"),
    "first bytes of a pack": (_first_bytes, "pack"),
    "check of a record's header": (_headers, "header"),
    "check of a payload": (_payloads, "payload"),
    "hash of an object": (_objects, "payload"),
    "check of a payload and hash of an object": (_payloads_and_objects, "payload"),
}


@pytest.fixture(scope="module")
def subject(tmp_path_factory: pytest.TempPathFactory) -> Subject:
    root = tmp_path_factory.mktemp("guards") / "repo"
    made.small(root)
    return Subject(root)


@pytest.mark.parametrize("missing", GUARDS)
def test_the_bit_flips_see_a_missing(
    missing: str, subject: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    blind, kind = GUARDS[missing]
    bits = _bits_of(subject, kind, draw("guards"), 400)
    flip_bits(subject, bits[:20], 10)  # sound, it lets these pass
    blind(monkeypatch)
    reasons = []
    for bit in bits:
        try:
            flip_bits(subject, [bit], 10**9)
        except Wrong as noticed:
            reasons.append(str(noticed))
            if UNSEEN.search(reasons[-1]):
                return
        finally:
            subject.mend()
    pytest.fail(f"nobody missed the check; {reasons[:3]}")


def _bits_of(subject: Subject, kind: str, rng: random.Random, count: int) -> list[int]:
    """Bits of the spans of a kind, the same number of each span."""
    begins, at = [], 0
    for span in subject.spans:
        length = span.end - span.start
        begins += [(8 * at, 8 * (at + length))] if span.kind == kind else []
        at += length
    each = count // len(begins) + 1
    bits = [rng.randrange(*span) for span in begins for _ in range(each)]
    rng.shuffle(bits)
    return bits


def test_lost_entries_are_seen_by_the_chain_of_the_journal(
    subject: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each entry is sound in itself: only the chain of checksums tells that one is missing."""
    cases = [case for case in cuts.entries_moved(subject.sound) if case[0] == "entry left out"]
    cases = cases[1:-1]  # the first is the repository's identity, the last the witness knows
    for case in cases[:5]:
        cuts.check(subject, case, Counter())
    position = journal_frames.Position

    def unlinked(offset: int, sequence: int, chain: bytes) -> journal_frames.Position:
        return position(offset, sequence, _AnyBytes(chain))

    monkeypatch.setattr(journal_frames, "Position", unlinked)
    with pytest.raises(Wrong):
        for case in cases:
            cuts.check(subject, case, Counter())


def _blocks(patch: Patch) -> None:
    patch.setattr(runs, "block_check", lambda data: _AnyBytes(blake3.blake3(data).digest(16)))


def _whole_index(patch: Patch) -> None:
    _blocks(patch)
    patch.setattr(index, "blake3", _Blind)


def test_a_process_dies_without_the_look_at_the_pages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Flipped bits in the pointers of the main tree's root: refused with it, fatal without."""
    sound, work = tmp_path / "sound", tmp_path / "work"
    expected, data = indexes.prepare(sound)
    header = max(
        0, indexes.PAGE, key=lambda at: int.from_bytes(data[at + 144 : at + 152], "little")
    )
    root = indexes.PAGE * int.from_bytes(data[header + 128 : header + 136], "little")
    cases = []
    for i in range(4):
        damaged = bytearray(data)
        damaged[root + 17 + 2 * i] ^= 0x40  # 16 KiB further: far behind the end of the page
        cases.append(bytes(damaged))
    with_it = [indexes.outcome_of(sound, work, case, "read", expected) for case in cases]
    assert with_it == ["remade"] * len(cases)
    monkeypatch.setattr(index, "check_pages", lambda file: None)
    without = [indexes.outcome_of(sound, work, case, "read", expected) for case in cases]
    assert "deaths" in without


@pytest.mark.parametrize("blind", [_blocks, _whole_index], ids=["blocks", "blocks and meta"])
def test_damage_to_the_index_is_seen_without_a_missing_check_of(
    blind: Callable[[Patch], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wrong answers or foreign errors; LMDB itself sees nothing."""
    sound, work = tmp_path / "sound", tmp_path / "work"
    expected, data = indexes.prepare(sound)
    frames = [m.start() for m in re.finditer(re.escape(b"\x28\xb5\x2f\xfd"), data)]
    rng = draw("guards")
    blind(monkeypatch)
    assert indexes.outcome_of(sound, work, data, "read_only", expected) == "right"
    for _ in range(80):
        damaged = bytearray(data)
        damaged[rng.choice(frames) + rng.randrange(8, 200)] ^= 1 << rng.randrange(8)
        outcome = indexes.outcome_of(sound, work, bytes(damaged), "read_only", expected)
        if outcome in {"wrong", "foreign"}:
            return
    pytest.fail("80 flipped bits were all seen or did no harm")
