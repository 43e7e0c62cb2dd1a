import random

import pytest

from mvc.maintenance.storage_graph import StorageGraph
from mvc.store.packs.records import Coding, Member


def member(name: str, base: str = "", text: str = "sub | zstd:1", start: int = 0) -> Member:
    return Member(1, oid(name), start, 10, Coding(text), oid(base)[:8] if base else b"", 0, 5, b"")


def oid(name: str) -> bytes:
    return name.encode().ljust(32, b"\0")


def graph(*members: Member, seconds: float = 1.0) -> StorageGraph:
    found = StorageGraph()
    for m in members:
        found.add(m, seconds)
    found.settle()
    return found


def test_a_chain_is_walked_from_either_end() -> None:
    found = graph(*(member(f"v{i}", f"v{i - 1}" if i % 6 else "") for i in range(7)))
    costs = [found.reach(oid(f"v{i}")) for i in range(7)]
    assert costs == [(1, 0), (2, 1), (3, 2), (4, 3), (5, 4), (6, 5), (1, 0)]
    joined = graph(*(member(f"v{i}", f"v{i - 1}" if i else "") for i in range(7)), member("v6"))
    assert [joined.reach(oid(f"v{i}"))[1] for i in range(7)] == [0, 1, 2, 3, 2, 1, 0]
    full = [joined.has(joined.full, (oid(f"v{i}"), 0)) for i in range(7)]
    assert full == [True, *[False] * 5, True]


def test_a_bridge_leads_one_way() -> None:
    found = graph(member("new"), member("new2", "old", "resize | sub | zstd:1"))
    assert found.reach(oid("old")) is None
    backwards = graph(member("b"), member("b", "a", "resize | sub | zstd:1"))
    assert backwards.reach(oid("a")) is None


def test_pieces_are_apart() -> None:
    found = graph(member("a"), member("a", start=32), member("b", "a", start=32))
    assert found.reach(oid("b"), 32) == (2, 1)
    assert found.reach(oid("b"), 0) is None
    assert len(found) == 2
    assert [found.reach(oid("a"), start) for start in (0, 32)] == [(1, 0), (1, 0)]


def test_what_is_only_named_is_not_reached() -> None:
    found = StorageGraph()
    found.name(oid("lost"))
    found.add(member("child", "lost"), 1.0)
    found.settle()
    assert found.reach(oid("lost")) is None
    assert found.reach(oid("child")) is None
    assert found.reach(oid("unknown")) is None


def test_a_path_begins_with_one_full_record() -> None:
    """The cheapest one; of equal ones the first. The walk may go on to it later than to another."""
    found = StorageGraph()
    rows = [("far", "", 5.0), ("near", "", 3.0), ("near", "", 2.0), ("near", "", 2.0)]
    rows += [("x", "far", 1.0), ("y", "near", 2.0), ("x", "y", 1.0), ("z", "x", 1.0)]
    for name, base, seconds in [*rows, ("lost", "gone", 1.0)]:
        found.add(member(name, base), seconds)
    found.settle()
    sources = {name: int(found.sources[found.node[row]]) for row, (name, *_) in enumerate(rows)}
    assert sources == {"far": 0, "near": 2, "x": 2, "y": 2, "z": 2}
    assert found.sources[found.node[len(rows)]] == -1


def test_costs_are_the_cheapest() -> None:
    """Against Bellman-Ford on random graphs."""
    rng = random.Random(2)
    for _ in range(50):
        found = StorageGraph()
        costs = {f"n{i}": float("inf") for i in range(12)}
        edges = []
        for i in range(12):
            found.name(oid(f"n{i}"))
        for i in range(30):
            a, b, price = rng.randrange(12), rng.randrange(12), rng.randrange(1, 20)
            if i % 10 == 0:
                found.add(member(f"n{a}"), price)
                costs[f"n{a}"] = min(costs[f"n{a}"], price)
            elif a != b:
                found.add(member(f"n{a}", f"n{b}"), price)
                edges += [(f"n{a}", f"n{b}", price), (f"n{b}", f"n{a}", price)]
        for _ in range(12):
            for a, b, price in edges:
                costs[b] = min(costs[b], costs[a] + price)
        found.settle()
        for name, cost in costs.items():
            reached = found.reach(oid(name))
            assert (reached[0] if reached else float("inf")) == pytest.approx(cost)
