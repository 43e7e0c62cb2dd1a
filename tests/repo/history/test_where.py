"""Conditions of ``log --where``, and what versions are found by them."""

from __future__ import annotations

import math
import random
from pathlib import Path

import numpy as np
import pytest

from mvc.api.repository import Repository
from mvc.errors import UnknownMetric, WrongUsage
from mvc.repo.history.log import LogOptions
from mvc.repo.history.where import Condition

ROW: dict[str, float | str] = {
    "auc": 0.93, "loss": 2.0, "lr": "1e-3", "data": "cars", "half": "true", "val/acc": 0.5,
    "nan": math.nan, "batch": "16", "a b": 1.0,
}  # fmt: skip


@pytest.mark.parametrize(
    ("text", "matches"),
    [
        ("auc > 0.9 and lr < 1e-2", True),
        ("auc > 0.9 and lr < 1e-3", False),
        ("lr = 0.001", True),
        ("batch == 16 and batch != 17", True),
        ("batch > 9", True),  # not as text
        ('data = "cars"', True),
        ("data != 'cars'", False),
        ("data > 'a'", False),  # texts have no order
        ("data = 3", False),
        ("half = true", True),
        ("data = cars and data != vans", True),
        ("data = vans or not data = cars", False),
        ("cars = data", False),
        ("lr = batch", False),
        ("missing > 1", False),
        ("not missing > 1", False),
        ("missing != 1", False),
        ("missing > 1 or auc > 0", True),
        ("not (missing > 1 and auc < 0)", True),
        ("not (auc < 0 or loss < 1)", True),
        ("not not auc > 0.9", True),
        ("auc", True),
        ("missing", False),
        ("not missing", False),
        ("val/acc=.5", True),
        ("`a b` = 1", True),
        ("0.9 < auc", True),
        ("loss > -1e3 and loss >= +2 and loss <= 2.", True),
        ("nan = nan", False),
        ("auc > 1 or auc < 0 and lr < 1 or loss = 2", True),
        ("auc<inf", True),
    ],
)
def test_what_matches(text: str, matches: bool) -> None:
    assert Condition(text)(ROW) is matches


@pytest.mark.parametrize(
    ("text", "mark"),
    [
        ("auc > ", "auc > ^"),
        ("auc > and lr < 1", "auc > ^and lr"),
        ("auc >> 3", "auc >^> 3"),
        ("(auc > 1", "(auc > 1^"),
        ("auc > 1)", "auc > 1^)"),
        ("auc > 1 lr < 2", "auc > 1 ^lr < 2"),
        ("3", "3^"),
        ("", "^"),
        ("auc > 1.2.3", "auc > ^1.2.3"),
        ("auc > 'x", "auc > ^'x"),
        ("auc $ 3", "auc ^$ 3"),
        ("a < b < c", "a < b ^< c"),
        ("__import__('os')", "__import__^('os')"),
        ("(" * 60 + "a" + ")" * 60, "^"),
        ("not " * 5000 + "a", "^"),
        ("a\x1b[31m > ?", "^"),
    ],
)
def test_the_place_is_marked(text: str, mark: str) -> None:
    with pytest.raises(WrongUsage) as caught:
        Condition(text)
    message = str(caught.value)
    assert mark in message or "longer than" in message
    assert "\n" not in caught.value.message and "\x1b" not in message


def test_as_python_reads_it() -> None:
    """Random conditions without missing names, against Python's own reading of them."""
    draw = random.Random(5)
    names = {"a": 1.0, "b": -2.5, "c": 0.0}

    def made(depth: int) -> str:
        kind = draw.randrange(4 if depth else 1)
        if kind == 0:
            sign = draw.choice(["<", "<=", ">", ">=", "==", "!="])
            return f"{draw.choice('abc')} {sign} {draw.choice(['-2.5', '0', '1e0', 'b'])}"
        if kind == 1:
            return f"not ({made(depth - 1)})"
        joint = draw.choice([" and ", " or "])
        parts = [made(depth - 1) for _ in range(draw.randrange(2, 4))]
        return f"({joint.join(parts)})" if kind == 2 else joint.join(parts)

    for _ in range(2000):
        text = made(4)
        assert Condition(text)(names) is eval(text, {}, dict(names)), text


def test_a_name_that_no_version_has_is_named(tmp_path: Path) -> None:
    with Repository.init(tmp_path) as repo:
        repo.commit({"w": np.zeros(1, np.float32)}, metrics={"auc": 0.5})
        with pytest.raises(UnknownMetric, match="no version has acc") as caught:
            list(repo.log("HEAD", LogOptions(where="acc > 0.1")))
        assert "auc" in str(caught.value.hint)
        assert not list(repo.log("HEAD", LogOptions(where="auc > 0.9")))
        assert len(list(repo.log("HEAD", LogOptions(where="acc > 0.1 or auc > 0.1")))) == 1
