"""A process that rounds subnormal numbers to zero codes tensors on a grid as others do."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import mvc

pytest.importorskip("torch")

LINES = "steps | gaps | zstd:1", "lattice | zlib:1"
_CODE = """
import sys, torch
from tests.codecs.grid.test_flushing import read, write
if not torch.set_flush_denormal(True):
    sys.exit(77)
read(sys.argv[1])
write(sys.argv[2])
assert torch.tensor([2.0**-126]) * 0.5 == 0
"""


def states() -> list[dict[str, np.ndarray]]:
    """Of each width, multiples of the smallest subnormal number that move by a few steps."""
    draw, found = np.random.default_rng(7), []
    counts = draw.integers(-60, 60, 3000)
    for _ in range(3):
        counts = counts + (draw.random(3000) < 0.1)
        found.append({str(width): subnormal(counts, width) for width in (2, 4, 8)})
    return found


def subnormal(counts: np.ndarray, width: int) -> np.ndarray:
    """Made of bits: this process may be one that rounds such numbers to zero."""
    signs = (counts < 0).astype(f"<u{width}") << np.array(8 * width - 1, f"<u{width}")
    return (np.abs(counts).astype(f"<u{width}") | signs).view(f"<f{width}")


def write(place: str | Path) -> None:
    for i, line in enumerate(LINES):
        with mvc.Repository.init(Path(place) / str(i)) as repo:
            for state in states():
                repo.commit(state, pipeline=line)


def read(place: str | Path) -> None:
    for i in range(len(LINES)):
        with mvc.Repository.open(Path(place) / str(i)) as repo:
            for back, state in enumerate(reversed(states())):
                stored = repo.checkout(f"HEAD~{back}")
                assert all(stored[key].tobytes() == state[key].tobytes() for key in state)
            assert repo.storage.fsck(full=True).sound


def test_both_modes_read_what_the_other_wrote(tmp_path: Path) -> None:
    write(tmp_path / "keeps")
    done = subprocess.run(
        [sys.executable, "-c", _CODE, tmp_path / "keeps", tmp_path / "flushes"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode == 77:
        pytest.skip("this processor cannot flush")
    assert done.returncode == 0, done.stderr
    read(tmp_path / "flushes")
    for i in range(len(LINES)):
        assert packed(tmp_path / "keeps" / str(i)) == packed(tmp_path / "flushes" / str(i))


def packed(place: Path) -> int:
    return sum(path.stat().st_size for path in (place / ".mvc/packs").iterdir())
