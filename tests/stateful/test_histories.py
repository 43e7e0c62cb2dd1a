"""A repository against a model: random histories with every aim of repack, forget and gc between.

Every version comes back bit for bit after every operation, by its old id.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.counters import count
from tests.crash.images import folder_in_memory
from tests.seeds import draw
from tests.stateful.histories import History


def _run(otherwise: Path, histories: int, steps: int) -> None:
    rng, counts = draw("histories"), Counter[str]()
    with folder_in_memory(otherwise) as folder:
        for number in range(histories):
            seed = str(rng.getrandbits(64))
            (place := folder / str(number)).mkdir()
            history = History(place, seed)
            try:
                history.run(steps)
            except BaseException as error:
                raise AssertionError(f"history {number}: seed {seed!r}, {steps} steps") from error
            counts += history.counts
    print(dict(sorted(counts.items())))
    kept = {name: counts[name] for name in ("commits", "checkouts")}
    repacks = sum(n for name, n in counts.items() if name.startswith("repack "))
    named = {name: counts[name] for name in ("forget", "forget_by_rule", "gc", "treat_index")}
    count("random histories", histories=histories, **kept, repacks=repacks, **named, wrong=0)


def test_every_version_of_a_random_history_comes_back(tmp_path: Path) -> None:
    _run(tmp_path, 5, 45)


@pytest.mark.long
@pytest.mark.parametrize("round_", range(6))
def test_every_version_of_many_random_histories_comes_back(tmp_path: Path, round_: int) -> None:
    _run(tmp_path, 50, 55)
