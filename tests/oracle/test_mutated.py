"""Mutated bytes: mvc's fast path, its ordinary path and the second reader give one value, or all
refuse. Of manifests and columns the second reader alone may read more: it leaves the rules of a
layout, and those of compressed frames, to the id of what comes out.
"""

from __future__ import annotations

import random
from types import ModuleType

import pytest

from mvc.codecs import words
from mvc.model.manifest import Shape
from tests.counters import count
from tests.fuzz.mutate import mutate
from tests.oracle.mutated import FORMS, agree
from tests.seeds import draw

SHARES = {"entries": 44, "commits": 26, "record headers": 36, "manifests": 20, "columns": 30,
          "groups": 4}  # fmt: skip
"""Of a hundred and sixty mutants, how many each form gets."""


def mutant(data: bytes, other: bytes, rng: random.Random) -> bytes:
    """One changed byte, which is often read, or more changes, which are mostly refused."""
    if rng.random() < 0.6:
        at = rng.randrange(len(data))
        return data[:at] + bytes([data[at] ^ 1 << rng.randrange(8)]) + data[at + 1 :]
    return mutate(data, other, rng)


def compare(name: str, tried: int) -> None:
    form, rng = FORMS[name], draw(f"mutated {name}")
    seeds, whole = form.seeds(), 0
    for number, data in enumerate(seeds):
        assert agree(form, data, seeds[number - 1]), f"seed {number} is refused"
    for _ in range(tried):
        at = rng.randrange(len(seeds))
        before = seeds[at - 1]
        whole += agree(form, mutant(seeds[at], before, rng), before)
    count(f"mutated {name}, three readers", tried=tried, read=whole, differ=0)
    assert 0 < whole < tried


@pytest.mark.parametrize("name", [*FORMS])
def test_a_sample_of_mutants_is_read_alike(name: str) -> None:
    compare(name, 12 * SHARES[name])


@pytest.mark.long
@pytest.mark.parametrize("round_", range(4))
@pytest.mark.parametrize("name", [*FORMS])
def test_160000_mutants_are_read_alike(
    name: str, round_: int, kernels: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(words, "kernels", kernels)
    compare(name, 250 * SHARES[name])


# -- what is compared, and what is seen ----------------------------------------------------


def test_fields_that_are_not_compared_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MVC_SEED", "1")

    def ids(self: Shape, data: bytes) -> bytes | None:
        return b"".join([data[place] for place in self._objects])

    monkeypatch.setattr(Shape, "ids", ids)
    with pytest.raises(AssertionError, match="finds other ids"):
        compare("manifests", 20_000)
