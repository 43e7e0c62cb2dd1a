from __future__ import annotations

import random
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

from mvc.cli.commands.every_day.log import graph_lines


def draw(*versions: tuple[str, str], **runs: str) -> str:
    """Each version is a name and the names of its parents, newest first; ``runs`` by name."""
    entries: Any = [
        SimpleNamespace(
            id=name, commit=SimpleNamespace(parents=tuple(parents), run=runs.get(name, ""))
        )
        for name, parents in versions
    ]
    lines = []
    for row in graph_lines(entries):
        lines += [row.first + row.entry.id, *row.links]
    return "\n".join(lines)


def test_a_line() -> None:
    assert draw(("c", "b"), ("b", "a"), ("a", "")) == "* c\n* b\n* a"


def test_two_branches_of_one_version() -> None:
    assert draw(("c", "a"), ("b", "a"), ("a", "")) == "* c\n| * b\n|/\n* a"


def test_a_merge() -> None:
    expected = ["* d", "|\\", "* | c", "| * b", "|/", "* a"]
    assert draw(("d", "cb"), ("c", "a"), ("b", "a"), ("a", "")) == "\n".join(expected)


def test_a_far_column_joins_by_a_bar() -> None:
    drawing = draw(("e", "a"), ("d", "b"), ("c", "x"), ("f", "a"), ("a", ""))
    expected = ["* e", "| * d", "| | * c", "| | | * f", "|_|_|/", "* | | a", " / /"]
    assert drawing == "\n".join(expected)


def test_histories_without_a_common_beginning() -> None:
    assert draw(("d", "b"), ("c", ""), ("b", "")) == "* d\n| * c\n* b"
    assert draw(("d", ""), ("c", "b"), ("b", "")) == "* d\n* c\n* b"


def test_columns_to_the_right_move_up() -> None:
    # b and c are open when a, left of them, ends.
    drawing = draw(("x", "a"), ("y", "b"), ("z", "c"), ("a", ""), ("b", ""), ("c", ""))
    expected = ["* x", "| * y", "| | * z", "* | | a", " / /", "* | b", " /", "* c"]
    assert drawing == "\n".join(expected)


def test_further_lines_keep_the_bars() -> None:
    entries: Any = [
        SimpleNamespace(id=name, commit=SimpleNamespace(parents=tuple(parents), run=""))
        for name, parents in (("c", "a"), ("b", "a"), ("a", ""))
    ]
    assert [row.rest for row in graph_lines(entries)] == ["| ", "| | ", "  "]


def test_random_graphs_keep_one_star_a_version_and_close_every_column() -> None:
    rng = random.Random(3)
    for _ in range(100):
        count = rng.randrange(1, 20)
        entries: Any = []
        for i in range(count):
            older = range(i + 1, count)
            parents = tuple(rng.sample(older, min(len(older), rng.choice([0, 1, 1, 2, 3]))))
            entries.append(SimpleNamespace(id=i, commit=SimpleNamespace(parents=parents, run="")))
        rows = list(graph_lines(entries))
        assert [row.entry.id for row in rows] == list(range(count))
        for row in rows:
            assert row.first.count("*") == 1 and len(row.first) == len(row.rest)
            assert all(set(link) <= set("|/\\_ ") and link.strip() for link in row.links)
        # Everything was expected and came: the last version stands alone.
        assert rows[-1].first == "* " and not rows[-1].links


def chain(names: str) -> list[tuple[str, str]]:
    """Each version after the one that follows it here."""
    return [*pairwise(names), (names[-1], "")]


def test_runs_on_one_branch_are_lines() -> None:
    runs = {"g": "x", "f": "y", "e": "x", "d": "y", "c": "y"}
    assert draw(*chain("gfedcba"), **runs).splitlines() == [
        "* g", "| * f", "* | e", "| * d", "| * c", "|/", "* b", "* a",
    ]  # fmt: skip
    # One after the other, without a version before them: each line ends with its run.
    assert draw(*chain("dcba"), d="y", c="y", b="x", a="x").splitlines() == [
        "* d", "* c", "* b", "* a",
    ]  # fmt: skip


def test_a_run_on_a_branch_of_its_own_goes_on_with_its_parent() -> None:
    drawn = draw(("d", "b"), ("c", "b"), ("b", "a"), ("a", ""), d="y", c="x", b="x")
    assert drawn.splitlines() == ["* d", "| * c", "|/", "* b", "* a"]


def test_what_the_list_leaves_out_stays_open() -> None:
    assert draw(("c", "b"), ("b", "a"), c="x", b="y").splitlines() == ["* c", "* b"]


def test_random_histories_draw_every_version_once() -> None:
    draws = random.Random(3)
    for _ in range(300):
        names = [chr(97 + n) for n in range(draws.randrange(1, 20))]
        parents = {n: draws.choice(names[i + 1 :]) for i, n in enumerate(names[:-1])}
        runs = {n: draws.choice(["", "x", "y"]) for n in names}
        lines = draw(*((n, parents.get(n, "")) for n in names), **runs).splitlines()
        assert [line[-1] for line in lines if "*" in line] == names
