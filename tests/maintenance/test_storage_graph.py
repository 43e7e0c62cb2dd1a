import random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from mvc.maintenance.graph import Reachability, StorageGraph
from mvc.store.journal.entries import Entry
from mvc.store.journal.frames import GENESIS, Recorded
from mvc.store.packs.records import Coding, Member, RecordHeader

PREDICTED = "optim:sgd.w.1:float32:0.1 | sub | zstd:1"


def member(
    name: str, base: str = "", text: str = "sub | zstd:1", start: int = 0, inputs: str = ""
) -> Member:
    """``inputs``: names of one letter or digit each, with the first letter of ``name`` before."""
    needs = tuple(oid(name[0] + each)[:8] for each in inputs)
    coding = Coding(PREDICTED if inputs else text)
    named = oid(base)[:8] if base else b""
    return Member(1, oid(name), start, 10, coding, named, 0, 5, b"", needs)


def oid(name: str) -> bytes:
    return name.encode().ljust(32, b"\0")


class Entries(list[Any]):
    add = list.append


class Priced(StorageGraph):
    def __init__(self) -> None:
        journal = SimpleNamespace(entry_list=Entries)
        super().__init__(SimpleNamespace(generation=0, journal=journal, packs=None))
        self.prices: list[float] = []

    def settle(self) -> None:
        super().settle()
        self.price(np.array(self.prices))


def add(found: Priced, member: Member, seconds: float, *, damaged: bool = False) -> None:
    """As an operation of its own."""
    number = len(found.entries)
    recorded = Recorded(Entry("x", 1), number, number, GENESIS, copies=2, check=b"")
    record = 1, number, RecordHeader((member,), False, 0, 5)
    found.add(recorded, [record], {(1, number, 0)} if damaged else ())
    found.prices.append(seconds)


def named(found: Priced, id_: bytes) -> None:
    """A damaged payload: the object is known, and no more."""
    add(found, member(id_.rstrip(b"\0").decode()), 0, damaged=True)


def graph(*members: Member, seconds: float = 1.0) -> Priced:
    found = Priced()
    for m in members:
        add(found, m, seconds)
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
    found = Priced()
    named(found, oid("lost"))
    add(found, member("child", "lost"), 1.0)
    found.settle()
    assert found.reach(oid("lost")) is None
    assert found.reach(oid("child")) is None
    assert found.reach(oid("unknown")) is None


def test_a_path_begins_with_one_full_record() -> None:
    """The cheapest one; of equal ones the first. The walk may go on to it later than to another."""
    found = Priced()
    rows = [("far", "", 5.0), ("near", "", 3.0), ("near", "", 2.0), ("near", "", 2.0)]
    rows += [("x", "far", 1.0), ("y", "near", 2.0), ("x", "y", 1.0), ("z", "x", 1.0)]
    for name, base, seconds in [*rows, ("lost", "gone", 1.0)]:
        add(found, member(name, base), seconds)
    found.settle()
    sources = {name: int(found.sources[found.node[row]]) for row, (name, *_) in enumerate(rows)}
    assert sources == {"far": 0, "near": 2, "x": 2, "y": 2, "z": 2}
    assert found.sources[found.node[len(rows)]] == -1


def test_costs_are_the_cheapest() -> None:
    """Against Bellman-Ford on random graphs."""
    rng = random.Random(2)
    for _ in range(50):
        found = Priced()
        costs = {f"n{i}": float("inf") for i in range(12)}
        edges = []
        for i in range(12):
            named(found, oid(f"n{i}"))
        for i in range(30):
            a, b, price = rng.randrange(12), rng.randrange(12), rng.randrange(1, 20)
            if i % 10 == 0:
                add(found, member(f"n{a}"), price)
                costs[f"n{a}"] = min(costs[f"n{a}"], price)
            elif a != b:
                add(found, member(f"n{a}", f"n{b}"), price)
                edges += [(f"n{a}", f"n{b}", price), (f"n{b}", f"n{a}", price)]
        for _ in range(12):
            for a, b, price in edges:
                costs[b] = min(costs[b], costs[a] + price)
        found.settle()
        for name, cost in costs.items():
            reached = found.reach(oid(name))
            assert (reached[0] if reached else float("inf")) == pytest.approx(cost)


def test_a_prediction_needs_its_base_and_all_its_inputs() -> None:
    rows = [member("n1"), member("n2"), member("n3", "n1", inputs="24"), member("n5", "n3")]
    lacking = graph(*rows, member("n4", "n6"))
    assert [lacking.reach(oid(f"n{i}")) for i in (3, 4, 5)] == [None, None, None]
    lost = graph(*rows)
    assert lost.reach(oid("n3")) is None
    assert not lost.sound[2]
    late = graph(*rows, member("n4", "n2"), member("n2", start=32))
    assert [late.reach(oid(f"n{i}")) for i in (3, 4, 5)] == [(2, 1), (2, 1), (3, 2)]
    assert late.last_steps[0][late.node[2]] == 2
    other = graph(*rows, member("n4", start=32))  # the same piece is needed
    assert other.reach(oid("n3")) is None


def test_predictions_that_need_each_other_lead_nowhere() -> None:
    found = graph(member("n1"), member("n2", "n1", inputs="3"), member("n3", "n1", inputs="2"))
    assert [found.reach(oid(f"n{i}")) for i in (1, 2, 3)] == [(1, 0), None, None]


def test_any_predictions_are_reached_when_they_can_be() -> None:
    """Against rounds over all codings, until one finds nothing more."""
    rng, names, predicted = random.Random(3), "0123456789ab", 0
    for _ in range(200):
        rows = [member("n0"), member("n1")]
        for _ in range(24):
            name, base = rng.sample(names, 2)
            inputs = "".join(rng.choices(names, k=rng.choice([0, 0, 1, 2, 4])))
            rows.append(member(f"n{name}", f"n{base}", inputs=inputs))
        reached, before = set[bytes](), -1
        while before < len(reached):
            before = len(reached)
            for row in rows:
                if {row.base, *row.inputs} - {b""} <= reached:
                    reached.add(row.id[:8])
                    predicted += bool(row.inputs)
                if row.id[:8] in reached and row.base and not row.inputs:
                    reached.add(row.base)
        found, grown = Priced(), Reachability()
        ids = {oid(f"n{name}")[:8]: oid(f"n{name}") for name in names}
        for id_ in ids.values():
            named(found, id_)
        for row in rows:
            add(found, row, 1.0)
            base, inputs = ids.get(row.base), [ids[each] for each in row.inputs]
            grown.add(row.id, 0, base, reversible=not inputs, inputs=inputs)
        found.settle()
        assert {prefix for prefix, id_ in ids.items() if (id_, 0) in grown} == reached
        assert {prefix for prefix, id_ in ids.items() if found.reach(id_)} == reached
    assert predicted > 1000
