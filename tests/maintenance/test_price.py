"""store.storage_weight: what is chosen for real commits, its price, and how it is shown."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

import mvc
from mvc.ids import CommitId
from mvc.io.files import FileSystem
from mvc.maintenance.repack.goal import Goal
from mvc.maintenance.repack.plan import RepackProblem
from mvc.maintenance.repack.problem import attempt
from mvc.maintenance.repack.rules import ContentPlan, history
from mvc.maintenance.repack.solve import Nodes, Priced, Selected, Solver, Training, Tree
from mvc.maintenance.weights import Alternative
from mvc.repo.config import set_value
from tests.maintenance.test_priced import Assigned, check

State = dict[str, np.ndarray]


class Mixed:
    """30 versions of five architectures, six of each: fine-tuned, moved a little, trained anew.

    ``proven``: for some of them, that a training of some seconds makes them again.
    """

    def __init__(self, root: Path, layout: str = "chain", weight: float | None = None) -> None:
        root.mkdir(parents=True, exist_ok=True)
        mvc.Repository.init(root).close()
        set_value(FileSystem(), root / ".mvc/config.yaml", "store.layout", layout)
        self.repo = mvc.Repository.open(root) if weight is None else weighed(root, weight)
        self.draw = np.random.default_rng(3)
        self.states: list[tuple[CommitId, State]] = []
        self.proven: dict[CommitId, Alternative] = {}
        kinds = ("small", "tuned", "anew", "small", "tuned")
        for architecture in range(5):
            width = 300 + 40 * architecture
            state = {"body": self.normal(width, width), "head": self.normal(width, 40)}
            self.keep(state)
            for n in range(5):
                before = self.states[-1][0]
                state = self.changed(state, kinds[(n + architecture) % 5])
                self.keep(state)
                if (n + architecture) % 3 == 1:
                    seconds = (0.003, 0.02, 60.0)[(n + architecture) // 3]
                    self.proven[self.states[-1][0]] = Alternative(before, "", seconds)

    def normal(self, *shape: int) -> np.ndarray:
        return (self.draw.standard_normal(shape) * 0.05).astype(np.float32)

    def changed(self, state: State, kind: str) -> State:
        if kind == "tuned":
            return {**state, "head": self.normal(*state["head"].shape)}
        if kind == "anew":
            return {name: self.normal(*value.shape) for name, value in state.items()}
        return {n: v * np.float32(1 + 1e-6) for n, v in state.items()}

    def keep(self, state: State) -> None:
        self.states.append((self.repo.commit(dict(state)).id, state))

    def are_right(self) -> bool:
        return all(
            np.array_equal(back[name], value)
            for id_, state in self.states
            for back in [self.repo.checkout(id_)]
            for name, value in state.items()
        )


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mixed]:
    made = Mixed(tmp_path_factory.mktemp("mixed"))
    yield made
    made.repo.close()


def problems(mixed: Mixed, weight: float) -> Priced:
    (path,) = mixed.repo.manifest().by_path
    proven = {id_: replace(each, path=path) for id_, each in mixed.proven.items()}
    goal = Goal(weight=weight, alternatives=proven)
    costs = RepackProblem(mixed.repo.handle.store, mixed.repo.handle.config, goal).costs
    attempt(costs, (o for id_ in costs.survey.first for o in costs.full_of(id_)))
    attempt(costs, (o for _, made in history(costs).values() for o in made))
    return ContentPlan(costs, history(costs), weight, proven).solver.problem


def parts(whole: Priced, size: int) -> Iterator[Priced]:
    """Consecutive versions that share no content with others, each a problem of its own."""
    for first in range(0, len(whole.holdings), size):
        mine = range(first, first + size)
        contents = sorted({c for v in mine for c in whole.holdings[v]})
        at = {c: n for n, c in enumerate(contents)}
        edges = [
            replace(edge, a=at[edge.a], b=at[edge.b])
            for edge in whole.contents.edges
            if edge.a in at and edge.b in at
        ]
        costs = whole.contents
        yield Priced(
            Nodes([costs.full_bytes[c] for c in contents],
                     [costs.full_ns[c] for c in contents], edges),
            [[at[c] for c in whole.holdings[v]] for v in mine],
            [whole.fixed_ns[v] for v in mine],
            whole.weight,
            whole.bound,
            {
                v - first: Training(t.base - first, t.ns, [at[c] for c in t.stored])
                for v, t in (whole.trainings or {}).items()
                if v in mine
            },
        )  # fmt: skip


class AnyLayout:
    """A problem under every choice there is: each content in full or not, each delta stored or not
    and decoded in both directions, all weights that have a recipe given up or not.
    """

    def __init__(self, problem: Priced) -> None:
        self.problem = problem
        self.trees = [(tree.nodes, *self.layouts(tree)) for tree in problem.contents.trees]

    def layouts(self, tree: Tree) -> tuple[np.ndarray, np.ndarray]:
        """Bytes by layout, and nanoseconds by layout and content; none is worse in all of them."""
        contents, nodes = self.problem.contents, tree.nodes
        edges = [up[1] for up in tree.up if up is not None]
        found = []
        for sources in subsets(nodes):
            for kept in subsets(edges):
                layout = Selected(sources, kept)
                times = contents.recovery(layout)
                ns = (times.get(node, NEVER) for node in nodes)
                found.append((contents.stored(layout), *ns))
        every = np.array(sorted(found), float)
        best = every[:1]
        for row in every[1:]:
            if not (best <= row).all(1).any():
                best = np.vstack([best, row])
        return best[:, 0], best[:, 1:]

    def needs(self, version: int, gone: Collection[int]) -> tuple[list[int], int]:
        contents, ns = list[int](), 0
        while version in gone:
            training = (self.problem.trainings or {})[version]
            contents += training.stored
            version, ns = training.base, ns + training.ns
        return [*contents, *self.problem.holdings[version]], ns + self.problem.fixed_ns[version]

    def best(self) -> float:
        return min(self.price(gone) for gone in subsets(self.problem.trainings or ()))

    def price(self, gone: Collection[int]) -> float:
        """The lowest price if these versions give up their weights."""
        needs = [self.needs(version, gone) for version in range(len(self.problem.holdings))]
        stored, ns = np.zeros(1), np.array([[fixed for _, fixed in needs]], float)
        for nodes, nbytes, times in self.trees:
            uses = [[contents.count(node) for contents, _ in needs] for node in nodes]
            stored = np.add.outer(stored, nbytes).ravel()
            ns = (ns[:, None] + (times @ np.array(uses, float))[None]).reshape(len(stored), -1)
        prices = self.problem.weight * stored + ns.sum(1)
        return float(prices[ns.max(1) <= self.problem.bound].min(initial=np.inf))


NEVER = 1e18


def subsets(items: Iterable[int]) -> list[frozenset[int]]:
    each = list(items)
    sizes = range(len(each) + 1)
    return [frozenset(some) for size in sizes for some in combinations(each, size)]


@pytest.mark.parametrize("weight", [3.0, 30.0, 3000.0])
@pytest.mark.parametrize("tight", [False, True])
def test_thirty_commits_cost_what_the_best_of_all_choices_costs(
    mixed: Mixed, weight: float, tight: bool
) -> None:
    problem = problems(mixed, weight)
    assert len(problem.holdings) == 30
    assert len(problem.trainings or {}) == len(mixed.proven)
    found = Solver(problem).cheapest()
    assert found is not None
    if tight:
        least = max(
            fixed + sum(problem.contents.full_ns[c] for c in held)
            for fixed, held in zip(problem.fixed_ns, problem.holdings, strict=True)
        )
        problem = replace(problem, bound=(least + max(found.ns)) // 2)
        found = Solver(problem).cheapest()
        assert found is not None
    check(problem, found)
    best = [Assigned(part).best() for part in parts(problem, 6)]
    assert None not in best
    assert found.price <= 1.05 * sum(b for b in best if b is not None)
    least = sum(AnyLayout(part).best() for part in parts(problem, 6))
    assert least * (1 - 1e-9) <= found.price <= 1.05 * least


def weighed(root: Path, weight: float) -> mvc.Repository:
    set_value(FileSystem(), root / ".mvc/config.yaml", "store.storage_weight", str(weight))
    return mvc.Repository.open(root)


@pytest.mark.parametrize("layout", ["chain", "skip:4"])
@pytest.mark.parametrize("weight", [3.0, 30.0, 3000.0])
def test_thirty_commits_and_their_repack_cost_what_the_best_of_all_layouts_costs(
    tmp_path: Path, layout: str, weight: float
) -> None:
    made = Mixed(tmp_path, layout, weight)
    made.proven.clear()
    best = sum(AnyLayout(part).best() for part in parts(problems(made, weight), 6)) / 1e9

    def price() -> float:
        """Without what no layout changes: manifests and headers."""
        stats = made.repo.storage.stats()
        assert stats.price is not None
        return stats.price - stats.bytes["metadata"] * weight / 1e9

    assert price() <= 1.05 * best
    made.repo.storage.repack()
    assert price() <= 1.05 * best
    assert made.are_right()
    made.repo.close()


def test_repack_lowers_the_price_and_keeps_every_version(tmp_path: Path) -> None:
    made = Mixed(tmp_path, "chain:1")
    made.repo.close()
    with weighed(tmp_path, 300.0) as made.repo:
        before, plan = made.repo.storage.stats().price, made.repo.storage.repack().plan
        assert plan.prices is not None
        assert plan.prices[1] < plan.prices[0]
        assert before == pytest.approx(plan.prices[0], rel=0.05)
        assert made.repo.storage.stats().price == pytest.approx(plan.prices[1], rel=0.05)
        assert not made.repo.storage.repack().plan
        assert made.are_right()


@pytest.mark.parametrize("layout", ["chain", "skip:4"])
def test_commits_alone_come_near_the_price_of_a_repack(tmp_path: Path, layout: str) -> None:
    mvc.Repository.init(tmp_path).close()
    set_value(FileSystem(), tmp_path / ".mvc/config.yaml", "store.layout", layout)
    draw = np.random.default_rng(1)
    state = draw.standard_normal((400, 400)).astype(np.float32)
    with weighed(tmp_path, 20.0) as repo:
        for _ in range(40):
            state = state * np.float32(1 + 1e-6)
            repo.commit({"w": state})
        stats = repo.storage.stats()
        assert 1 < stats.reset_points < 40
        repo.storage.repack()
        best = repo.storage.stats().price
        assert stats.price is not None
        assert best is not None
        assert stats.price <= 1.2 * best


def test_the_choice_and_its_price_are_told(tmp_path: Path) -> None:
    made = Mixed(tmp_path)
    assert all(entry.storage is None for entry in made.repo.log())
    kinds = [
        e.storage.kind
        for e in made.repo.log("HEAD", mvc.LogOptions(prices=True))
        if e.storage is not None
    ]
    assert kinds[::-1][:6] == ["full", "delta", "update", "full", "delta", "update"]
    stats = made.repo.storage.stats()
    assert stats.price is None
    assert stats.kinds == {kind: kinds.count(kind) for kind in stats.kinds}
    made.repo.close()
    with weighed(tmp_path, 100.0) as repo:
        stored = [entry.storage for entry in repo.log("HEAD", mvc.LogOptions(prices=True))]
        prices = [each.price for each in stored if each is not None]
        assert repo.storage.stats().price == pytest.approx(sum(p for p in prices if p is not None))
        for each in stored:
            assert each is not None
            assert each.price == pytest.approx(sum(each.bytes.values()) / 1e7 + each.seconds)
