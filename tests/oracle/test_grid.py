"""Weights on a grid, as the independent reader finds them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.oracle.holding import codings_of, commit_states, rng


def on_grid(count: int) -> list[dict[str, np.ndarray]]:
    """Versions of which a twentieth of the entries moves, most by one step, up or down."""
    random = rng(7)
    numbers = np.array([random.integers(-90, 90) for _ in range(4000)])
    made = []
    for _ in range(count):
        moves = np.array([random.choice([0] * 37 + [-1, 1, 2]) for _ in range(4000)])
        numbers = numbers + moves
        made.append(
            {
                "single": (numbers * 2.0**-9).astype("f4").reshape(40, 100),
                "half": (numbers[:999] * 2.0**-7).astype("f2"),
                "double": (numbers[:50] * 2.0**3).astype("f8"),
                "integers": numbers[:70].copy(),
            }
        )
    return made


@pytest.mark.parametrize("pipeline", ["steps | gaps | zstd:huff", "steps | gaps | zlib:6"])
def test_series_on_a_grid(tmp_path: Path, pipeline: str):
    oracle = commit_states(tmp_path, *on_grid(33), pipeline=pipeline)
    codings = codings_of(oracle)
    assert pipeline in codings
    assert pipeline.replace("steps | gaps", "lattice") in codings
