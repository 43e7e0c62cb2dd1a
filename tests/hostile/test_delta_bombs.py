"""Deltas that lead nowhere, round in circles, or far too far, under valid checksums."""

from __future__ import annotations

from pathlib import Path

import pytest

from mvc import Repository
from mvc.codecs.patch import encode_patch
from mvc.errors import DamagedData
from mvc.store.format import format_line
from mvc.store.packs.records import MANIFEST
from mvc.store.recovery.rates import Rates
from tests.counters import count
from tests.hostile.bounded import Outcome, bounded
from tests.hostile.forged import DELTA, FULL, Forger, Piece, delta, full, name, raw_id, recover

__all__ = ["recover"]

ZERO = bytes(64)
STEP = delta(b"\1" * 64, ZERO)


def attempt(forger: Forger, wanted: bytes, nbytes: int = 64, *, seconds: float = 5) -> Outcome:
    root = forger.write()
    outcome = bounded("tests.hostile.forged:recover", root, wanted.hex(), nbytes)
    count("delta bombs", tried=1, max_MiB=outcome.peak >> 20, max_ms=int(outcome.seconds * 1000))
    return outcome.within(512, seconds)


def refused(forger: Forger, wanted: bytes, nbytes: int = 64, *, seconds: float = 5) -> None:
    outcome = attempt(forger, wanted, nbytes, seconds=seconds)
    assert outcome.error == "DamagedData", outcome


@pytest.fixture
def forger(tmp_path: Path) -> Forger:
    return Forger(tmp_path / "repo")


def chain(length: int, text: str = DELTA, step: bytes = STEP) -> list[Piece]:
    """name(0) in full, then deltas, each to the one before."""
    pieces = [Piece(name(0), 64, full(ZERO))]
    return pieces + [Piece(name(i), 64, step, text, name(i - 1)) for i in range(1, length + 1)]


def test_an_honest_chain_comes_back(forger: Forger) -> None:
    new = b"\1" * 64
    pieces = [Piece(name(1), 64, full(ZERO)), Piece(raw_id(new), 64, STEP, DELTA, name(1))]
    forger.publish(forger.record(pieces))
    assert attempt(forger, raw_id(new)).error == ""


def test_its_own_base(forger: Forger) -> None:
    forger.publish(forger.record([Piece(name(1), 64, STEP, DELTA, name(1))]))
    refused(forger, name(1))


@pytest.mark.parametrize("length", [2, 3, 1000])
def test_a_cycle(forger: Forger, length: int) -> None:
    pieces = [Piece(name(i), 64, STEP, DELTA, name((i + 1) % length)) for i in range(length)]
    forger.publish(forger.record(pieces))
    refused(forger, name(0))


def test_a_cycle_over_several_entries(forger: Forger) -> None:
    for i in range(20):
        forger.publish(forger.record([Piece(name(i), 64, STEP, DELTA, name((i + 1) % 20))]))
    refused(forger, name(0))


def test_a_base_that_is_missing(forger: Forger) -> None:
    forger.publish(forger.record([Piece(name(1), 64, STEP, DELTA, name(2))]))
    refused(forger, name(1))


@pytest.mark.parametrize(
    "depth", [pytest.param(n, marks=pytest.mark.long) for n in (110_000, 1_000_000)]
)
def test_a_chain_too_deep_to_be_walked(forger: Forger, depth: int) -> None:
    """Time is bounded by the search's own limit, memory by the headers: 55 bytes of a pack
    become up to 800 bytes. So the million, a pack of 75 MB, is let have more than the rest."""
    pieces = chain(depth)
    for at in range(0, len(pieces), 125_000):
        forger.publish(forger.record(pieces[at : at + 125_000]))
    outcome = bounded("tests.hostile.forged:recover", forger.write(), name(depth).hex(), 64)
    count("delta bombs", tried=1, max_MiB=outcome.peak >> 20, max_ms=int(outcome.seconds * 1000))
    assert outcome.within(512 if depth < 1_000_000 else 1024, 30).error == "DamagedData"


@pytest.mark.parametrize("depth", [1000, pytest.param(50_000, marks=pytest.mark.long)])
def test_a_chain_that_can_be_walked_but_ends_in_a_wrong_hash(forger: Forger, depth: int) -> None:
    forger.publish(forger.record(chain(depth)))
    refused(forger, name(depth), seconds=20)


@pytest.mark.parametrize("depth", [30, 3000])
@pytest.mark.parametrize("bridge", ["resize", "patch", "mixed"])
def test_bridges_after_bridges(forger: Forger, bridge: str, depth: int) -> None:
    """Each is crossed by recovering what lies before it: no recursion, no doubling of work."""
    patch = encode_patch(memoryview(b"\2" * 64), memoryview(ZERO))
    pieces = chain(0)
    for i in range(1, depth + 1):
        kind = ("patch", "resize", "delta")[i % 3] if bridge == "mixed" else bridge
        text = {"patch": "patch", "delta": DELTA}.get(kind, f"resize | {DELTA}")
        payload = patch if kind == "patch" else STEP
        pieces.append(Piece(name(i), 64, payload, text, name(i - 1)))
    forger.publish(forger.record(pieces))
    refused(forger, name(depth), seconds=20)


@pytest.mark.parametrize("lengths", [(64, 128), (128, 64), (64, 0), (0, 64), (64, 1 << 40)])
def test_lengths_that_do_not_match(forger: Forger, lengths: tuple[int, int]) -> None:
    base, own = lengths
    pieces = [
        Piece(name(0), base, full(bytes(base)) if base else b"\x52"),
        Piece(name(1), own, STEP, DELTA, name(0)),
    ]
    forger.publish(forger.record(pieces))
    for wanted in (64, own if own < 1 << 30 else 64):
        refused(forger, name(1), wanted)


@pytest.mark.parametrize("size", [1 << 33, 1 << 40, 1 << 61])
@pytest.mark.parametrize("text", [f"resize | {DELTA}", "cast:float32>bfloat16 | " + DELTA, "patch"])
def test_a_base_of_an_impossible_size(forger: Forger, text: str, size: int) -> None:
    """It would be made in memory to cross the bridge."""
    constant = bytes((40 << 2 | 2,)) + bytes((1,)) * 0 + bytes((1,))
    pieces = [
        Piece(name(0), size, constant, "raw"),
        Piece(name(1), 64, STEP, text, name(0)),
    ]
    forger.publish(forger.record(pieces))
    refused(forger, name(1))


@pytest.mark.parametrize("width", [5_000, pytest.param(120_000, marks=pytest.mark.long)])
def test_a_fan_of_edges(forger: Forger, width: int) -> None:
    """One object with very many deltas from it and to it, none of which help."""
    pieces = [Piece(name(i), 64, STEP, DELTA, name(0)) for i in range(1, width)]
    pieces += [Piece(name(0), 64, STEP, DELTA, name(i)) for i in range(200_000, 201_000)]
    forger.publish(forger.record(pieces))
    refused(forger, name(0), seconds=30)


def test_a_group_that_claims_a_terabyte(forger: Forger) -> None:
    pieces = [Piece(name(i), 1 << 40, b"", "planes:all | zstd:1") for i in range(4)]
    forger.publish(forger.record(pieces, group=b"\x12" + bytes(40)))
    refused(forger, name(0), 1 << 20)


@pytest.mark.parametrize("size", [1 << 33, 1 << 40, 1 << 61])
def test_an_object_that_claims_a_terabyte(forger: Forger, size: int) -> None:
    constant = bytes((40 << 2 | 2, 1))
    forger.publish(forger.record([Piece(name(0), size, constant, "raw")]))
    refused(forger, name(0), size)


CODINGS = [
    "", "nonsense", "pickle", "import os", "sub", "zstd:99", "raw | raw", "patch | patch",
    "resize", "resize | resize | raw", "cast:float32>bfloat16", "cast:a>b | raw", "cast: | raw",
    "cast:float32>float64 | raw", "x" * 400, "planes:all | zstd:1", "elide | raw", "\x1b[2J",
    "none", "lossless", "vsol", DELTA, FULL, "sub | raw",
]  # fmt: skip


def test_codings_that_do_not_exist_or_do_not_fit(forger: Forger) -> None:
    """Named by the data, with and without a base, alone and in a group."""
    pieces, regions = [Piece(name(0), 64, full(ZERO))], []
    for i, text in enumerate(CODINGS):
        pieces.append(Piece(name(10 + i), 64, STEP, text))
        pieces.append(Piece(name(100 + i), 64, STEP, text, name(0)))
        for at, base in ((200, b""), (300, name(0))):
            member = Piece(name(at + i), 64, b"", text, base)
            regions.append(forger.record([member], group=b"\x06" + bytes(70)))
    forger.publish(forger.record(pieces), *regions)
    root = forger.write()
    bounded("tests.hostile.test_delta_bombs:all_refused", root).within(512, 20)


def all_refused(root: str) -> None:
    from mvc.api.repository import Repository
    from mvc.errors import DamagedData
    from mvc.model.tensor import TensorSpec

    with Repository.open(root) as repo:
        spec = TensorSpec("raw", (64,))
        for first in (10, 100, 200, 300):
            for i, text in enumerate(CODINGS):
                try:
                    repo.handle.store.recovery.blob(name(first + i), spec)
                except DamagedData as error:
                    assert error.message.isprintable()
                    continue
                raise AssertionError(f"{text!r} was taken")
        assert repo.storage.fsck(full=True).problems is not None


@pytest.mark.long
def test_a_manifest_that_unfolds_to_its_limit(forger: Forger) -> None:
    """256 MiB of zeros, as a patch without a base and as a chain of two."""
    big = 256 << 20
    patch = encode_patch(memoryview(bytes(big)), memoryview(b""))
    over = encode_patch(memoryview(bytes(big + 1)), memoryview(b""))
    forger.publish(
        forger.record(
            [
                Piece(name(1), big, patch, "patch", kind=MANIFEST),
                Piece(name(2), big, patch, "patch", name(1), kind=MANIFEST),
                Piece(name(3), big + 1, over, "patch", kind=MANIFEST),
            ]
        )
    )
    root = forger.write()
    for wanted in (1, 2, 3):
        outcome = bounded("tests.hostile.test_delta_bombs:manifest", root, name(wanted).hex())
        assert outcome.within(800, 20).error == "DamagedData"


def manifest(root: str, id_: str) -> None:
    from mvc.api.repository import Repository

    with Repository.open(root) as repo:
        repo.handle.store.recovery.manifest(bytes.fromhex(id_))


# -- predictions -----------------------------------------------------------------------

GREATER = "optim:greater:float32"
PUSHED = "optim:adam.1:float32:1.0,0.001,0.5,1e-08"


def foreseen(
    id_: int, base: int, *inputs: int, text: str = GREATER, nbytes: int = 64, step: bytes = STEP
) -> Piece:
    """A piece with inputs by their numbers."""
    coding = f"{text} | {DELTA}" if text else DELTA
    return Piece(name(id_), nbytes, step, coding, name(base), inputs=[name(i) for i in inputs])


@pytest.mark.parametrize(
    ("piece", "why"),
    [
        (foreseen(1, 0, 1), "from itself"),
        (foreseen(1, 0, 2), "not stored"),
        (foreseen(1, 1, 0), "no full record"),
        (foreseen(1, 0), "prediction that does not fit"),
        (foreseen(1, 0, 0, 0), "prediction that does not fit"),
        (foreseen(1, 0, 0, text=""), "has inputs, but no prediction"),
        (foreseen(1, 0, 0, text="resize"), "has inputs, but no prediction"),
        (foreseen(1, 0, 0, text="optim:greater:float16"), "unknown coding"),
        (foreseen(1, 0, 0, text="optim:greater:float32:"), "unknown coding"),
        (foreseen(1, 0, 0, text="optim:greatest:float32"), "unknown coding"),
        (foreseen(1, 0, 0, text="optim:momentum.1:float32:nan"), "unknown coding"),
        (foreseen(1, 0, 0, text="optim:momentum.1:float32:1"), "unknown coding"),
        (foreseen(1, 0, 0, text=f"optim:momentum.1:float32:{'9' * 300}"), "unknown coding"),
        (foreseen(1, 0, 3), "have different lengths"),
        (foreseen(1, 3, 0), "have different lengths"),
    ],
)
def test_predictions_of_what_is_not_there(forger: Forger, piece: Piece, why: str) -> None:
    short = Piece(name(3), 32, full(bytes(32)))
    forger.publish(forger.record([Piece(name(0), 64, full(ZERO)), short, piece]))
    with pytest.raises(DamagedData, match=why):
        recover(str(forger.write()), name(1).hex(), 64)


def test_a_prediction_in_a_group(forger: Forger) -> None:
    text = f"{GREATER} | sub | planes:all | zstd:1"
    forger.publish(forger.record([Piece(name(0), 64, full(ZERO))]))
    piece = Piece(name(1), 64, b"", text, name(0), inputs=[name(0)])
    forger.publish(forger.record([piece], group=b"\x09\x00"))
    with pytest.raises(DamagedData, match="prediction that does not fit"):
        recover(str(forger.write()), name(1).hex(), 64)


@pytest.mark.parametrize("length", [2, 1000])
def test_predictions_in_a_circle(forger: Forger, length: int) -> None:
    pieces = [foreseen(i, 0, i % length + 1) for i in range(1, length + 1)]
    forger.publish(forger.record([Piece(name(0), 64, full(ZERO)), *pieces]))
    refused(forger, name(1))


@pytest.mark.parametrize("depth", [3000])
def test_predictions_of_which_each_needs_the_four_before(forger: Forger, depth: int) -> None:
    """Each is made once, however many need it."""
    pieces = [
        foreseen(i, max(i - 3, 0), max(i - 1, 0), max(i - 2, 0), text=PUSHED)
        for i in range(1, depth + 1)
    ]
    forger.publish(forger.record([Piece(name(0), 64, full(ZERO)), *pieces]))
    refused(forger, name(depth), seconds=20)


def test_more_pieces_at_once_than_fit_into_memory(forger: Forger) -> None:
    """Each needs the next while its own base waits: 200 pieces of 32 MiB would lie in memory."""
    large = 32 << 20
    full_, step = full(bytes(1 << 20)), delta(bytes(1 << 20), bytes(1 << 20))
    assert len(full_) == len(step) == 2
    full_ = step = full_[:1] + b"\1" * 31 + full_[1:] * 32
    pieces = [Piece(name(1000 + i), large, full_) for i in range(200)]
    pieces += [foreseen(i, 1000 + i, i + 1, nbytes=large, step=step) for i in range(199)]
    pieces.append(foreseen(199, 1199, 1198, nbytes=large, step=step))
    forger.publish(forger.record(pieces))
    root = forger.write()
    outcome = bounded("tests.hostile.forged:recover", root, name(0).hex(), large)
    assert outcome.within(512, 20).error == "DamagedData"


@pytest.mark.parametrize("coding", [DELTA, FULL, "", "nonsense", "sub | planes:all | zstd:1"])
@pytest.mark.parametrize(
    "text",
    [
        GREATER,
        "optim:nonsense:float32",
        "optim:root.1g:int8",
        "optim:root.1g:float32:1.0,1.0,1.0,1.0",
        "optim:root.1g",
        "optim:pushed.1g:float64:nan:5",
        "optim:",
    ],
)
def test_how_long_a_prediction_takes_that_leads_nowhere(
    forger: Forger, text: str, coding: str
) -> None:
    """It is counted, and damage is told when it is read."""
    inputs = [name(3)] * (2 if "root" in text or "pushed" in text else 1)
    piece = Piece(name(1), 64, STEP, f"{text} | {coding}", name(0), inputs=inputs)
    forger.publish(forger.record([Piece(name(0), 64, full(ZERO)), piece]))
    root = forger.write()
    (root / ".mvc/format").write_bytes(format_line(frozenset({"optim"})))
    with Repository.open(root) as repo:
        (step,) = repo.handle.store.graph.codings(name(1))
        assert Rates().payload(step.header, step.member) > 0
        repo.storage.stats()
