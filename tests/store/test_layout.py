"""Which version a new one is coded against, from what leads to the last one."""

from __future__ import annotations

import random
from collections.abc import Iterable
from itertools import accumulate, repeat

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mvc.maintenance.repack.solve import Edge, Nodes, Priced, Solver
from mvc.maintenance.repack.solve import Selected as Plan
from mvc.store.graph.search import Link
from mvc.store.writing.layout import Layout

Chain = tuple[Link, ...]


def link(sequence: int, depth: int) -> Link:
    return Link(sequence.to_bytes(32, "big"), sequence, depth, 0, 1)


def grown(layout: Layout, under: Chain, sequence: int) -> Chain:
    """The chain of a version that is published after another one."""
    if not under or layout.ends(under, sequence):
        return (link(sequence, 0),)
    base = under.index(layout.base(under, sequence))
    return (*under[: base + 1], link(sequence, base + 1))


def chains(layout: Layout, sequences: Iterable[int]) -> list[Chain]:
    found: list[Chain] = []
    for sequence in sequences:
        found.append(grown(layout, found[-1] if found else (), sequence))
    return found


def power(number: int, step: int) -> int:
    """The largest power that divides a number."""
    return step * power(number // step, step) if number % step == 0 else 1


def digits(number: int, step: int) -> int:
    return number % step + digits(number // step, step) if number else 0


@pytest.mark.parametrize("step", [2, 3, 4, 5])
def test_each_version_goes_back_by_the_power_that_divides_it(step: int) -> None:
    made = chains(Layout(step=step), range(7, 48))
    for k, chain in enumerate(made[1:], 1):
        assert chain[-2].sequence - 7 == k - power(k, step)
        assert len(chain) - 1 == digits(k, step)


def test_known_bases() -> None:
    def bases(step: int) -> list[int]:
        return [chain[-2].sequence for chain in chains(Layout(step=step), range(22))[1:]]

    assert bases(2) == [0, 0, 2, 0, 4, 4, 6, 0, 8, 8, 10, 8, 12, 12, 14, 0, 16, 16, 18, 16, 20]
    assert bases(4) == [0, 1, 2, 0, 4, 5, 6, 4, 8, 9, 10, 8, 12, 13, 14, 0, 16, 17, 18, 16, 20]


@pytest.mark.parametrize(
    ("text", "most", "mean"),
    [("skip:5", 8, 3.8), ("skip:4", 6, 3.4), ("skip:3", 6, 2.9), ("skip:2", 4, 2.4),
     ("chain:8", 7, 3.4), ("chain:28", 27, 12.3)],
)  # fmt: skip
def test_deltas_of_31_versions(text: str, most: int, mean: float) -> None:
    deltas = [len(chain) - 1 for chain in chains(Layout.parse(text), range(31))]
    assert max(deltas) == most
    assert round(sum(deltas) / 31, 1) == mean


@pytest.mark.parametrize("text", ["chain", "chain:9", "skip:2", "skip:4", "skip:16"])
@pytest.mark.parametrize("interval", [1, 2, 3, 5, 10, 64])
@pytest.mark.parametrize("apart", [1, 2, 3, 16, 1000])
def test_the_interval_counts_versions(text: str, interval: int, apart: int) -> None:
    """Not operations: others may lie between, at regular distances."""
    layout = Layout.parse(text, interval)
    made = chains(layout, range(5, 5 + 200 * apart, apart))
    full = [i for i, chain in enumerate(made) if len(chain) == 1]
    assert full == list(range(0, 200, layout.interval))
    first = made[: layout.interval]
    assert max(map(len, first)) - 1 == layout.deepest or len(first) == 200


@pytest.mark.parametrize("text", ["skip:2", "skip:3", "skip:4", "skip:7"])
@pytest.mark.parametrize("apart", [2, 5, 50, 3000])
@pytest.mark.parametrize("seed", range(5))
def test_versions_at_irregular_distances(text: str, apart: int, seed: int) -> None:
    """A tensor that does not change with every commit, and others that are published between."""
    layout = Layout.parse(text)
    drawn = random.Random(seed)
    numbers = accumulate(drawn.randint(1, apart) for _ in repeat(None, 500))
    made = chains(layout, list(numbers))
    full = [i for i, chain in enumerate(made) if len(chain) == 1]
    assert 500 / 150 <= len(full) <= 500 / 32
    assert max(map(len, made)) - 1 <= 2 * layout.deepest


@given(st.integers(2, 16), st.lists(st.integers(1, 1 << 40), min_size=1, max_size=80, unique=True))
def test_no_way_is_longer_than_its_numbers_allow(step: int, numbers: list[int]) -> None:
    numbers.sort()
    layout = Layout(step=step)
    most, span = 0, max(1, numbers[-1] - numbers[0])
    while span:
        most, span = most + step - 1, span // step
    for chain in chains(layout, numbers):
        assert len(chain) - 1 <= most
        assert list(chain) == sorted(chain, key=lambda each: each.sequence)


@given(
    st.sampled_from(["chain:5", "skip:2", "skip:4"]),
    st.lists(st.tuples(st.integers(0, 100), st.integers(1, 9)), max_size=120),
)
def test_branches(text: str, steps: list[tuple[int, int]]) -> None:
    """Each version follows any earlier one: the chain is that of its own line."""
    layout = Layout.parse(text, 20)
    made, sequence = [(link(3, 0),)], 3
    for which, more in steps:
        sequence += more
        under = made[which % len(made)]
        chain = grown(layout, under, sequence)
        assert len(chain) == 1 or chain[:-1] == under[: len(chain) - 1]
        assert len(chain) - 1 <= 20
        made.append(chain)


@given(st.integers(2, 16), st.integers(0, 40), st.integers(1, 5000))
def test_reach_and_deepest_are_inverse(step: int, deltas: int, interval: int) -> None:
    layout = Layout(interval, step)
    assert layout.deepest == max(digits(k, step) for k in range(interval))
    reach = layout.reach(deltas)
    if reach < 10_000:
        assert all(digits(k, step) <= deltas for k in range(reach))
        assert digits(reach, step) == deltas + 1


@pytest.mark.parametrize("text", ["", "skip", "skip:1", "skip:17", "skip:04", "chain:0", "chain:",
                                  "chain:10001", "Skip:4", "skip:4 "])  # fmt: skip
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=text or None):
        Layout.parse(text)


def test_texts() -> None:
    assert str(Layout.parse("skip:4")) == "skip:4"
    assert Layout.parse("skip:4").interval == 64
    assert Layout.parse("chain").interval == 28
    assert Layout.parse("chain", 5) == Layout.parse("chain:5", 9) == Layout(5)
    assert str(Layout(5)) == "chain:5"


def price(layout: Layout, full: int, count: int) -> int:
    """What versions of one tensor take that are stored in full where that saves as much.

    Counted in deltas: of each version those that its recovery takes, and ``full`` for each full
    record. Deltas are decoded in both directions.
    """
    made: list[Chain] = []
    edges, sources = list[Edge](), set[int]()
    for number in range(count):
        under = made[-1] if made else ()
        chain = grown(layout, under, number)
        if len(chain) > 1:
            edges.append(Edge(chain[-2].sequence, number, 0, 1))
        if not under or layout.saved(under, number) >= full:
            sources.add(number)
            chain = (link(number, 0),)
        made.append(chain)
    versions = Nodes([full] * count, [0] * count, edges)
    times = versions.recovery(Plan(frozenset(sources), frozenset(range(len(edges)))))
    return full * len(sources) + sum(times.values())


@pytest.mark.parametrize(("text", "most"), [("chain", 1.15), ("skip:4", 1.15), ("skip:2", 1.15)])
@pytest.mark.parametrize("full", [2, 5, 12, 30, 80, 200])
def test_full_records_where_they_save_their_price_come_near_the_best_plan(
    text: str, most: float, full: int
) -> None:
    count = 150
    layout = Layout(step=Layout.parse(text).step)
    edges = [Edge(i - 1, i, 0, 1) for i in range(1, count)]
    versions = Nodes([full] * count, [0] * count, edges)
    best = Solver(Priced(versions, [[i] for i in range(count)], [0] * count, 1.0)).cheapest()
    assert best is not None
    assert price(layout, full, count) <= most * best.price
