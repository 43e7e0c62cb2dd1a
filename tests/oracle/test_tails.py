"""Who, why, runs and annotations, as the reader of the document sees them."""

from __future__ import annotations

import random
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest

from mvc.api.repository import Repository
from mvc.maintenance import gc
from mvc.repo.commit.request import CommitOptions
from tests.oracle import reader
from tests.oracle.holding import held_against, series


def test_who_and_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MVC_AUTHOR", "gräce")
    with Repository.init(tmp_path) as repo:
        for i in range(3):
            repo.commit({"w": np.full(3, i)}, deploy="prod", options=CommitOptions(run="a b"))
        repo.rollback("prod", reason="error\nrate")
        done = repo.live("prod").deployment
        oracle = held_against(tmp_path)
        last = oracle.entries[-1]
        assert (last.author, last.reason) == ("gräce", "error\nrate")
        assert last.returns == [1 + (done.returns_to or 0)] and done.returns_to == 2
        assert oracle.live("prod", None, 1 << 62) == repo.find("HEAD~1")
        assert {(m.run, m.dirty) for m in oracle.commits.values()} == {("a b", 0)}


def test_the_receipt_of_what_was_forgotten(tmp_path: Path) -> None:
    with Repository.init(tmp_path) as repo:
        ids = [repo.commit(state).id for state in series(4)]
        root = repo.version(ids[1]).root
        repo.storage.forget(ids[1], reason="asked for")
        entry = held_against(tmp_path).entries[-1]
        assert (entry.forgotten, entry.roots) == ([(ids[1], 1)], [root])
        repo.storage.gc(grace="0")
        assert reader.Repository(tmp_path / ".mvc").entries[-1].gone == [ids[1]]


@pytest.mark.parametrize("seed", range(3))
def test_annotations_that_are_undone_and_collected(tmp_path: Path, seed: int) -> None:
    draw = random.Random(seed)
    with Repository.init(tmp_path) as repo:
        ids = [repo.commit(state).id for state in series(4)]
        numbers = []
        for step in range(30):
            kind = draw.choice(["annotate", "annotate", "undo", "gc", "commit"])
            if kind == "annotate":
                values = {"auc": step / 7, "nan": float("nan")}
                made = repo.annotate(
                    draw.choice(ids), metrics=values, params={"é": step}, note=f"n{step}"
                )
                numbers.append(made.number)
            elif kind == "undo" and numbers:
                known = {o.number: o for o in repo.oplog()}
                number = draw.choice(numbers)
                if number in known and known[number].undone_by is None:
                    done = repo.undo(number).number
                    assert done is not None
                    numbers.append(done)
            elif kind == "gc":
                repo.commit({"w": np.zeros(step)}, options=CommitOptions(branch="main"))
                gc.collect(repo.context, grace=draw.choice([timedelta(0), timedelta(1)]))
        oracle = held_against(tmp_path)
        for id_ in ids:
            ours = repo.annotations(id_)
            read = oracle.annotations(id_)
            assert [r.note for r in read] == [a.note for a in ours]
            assert [dict(r.metrics)["auc"] for r in read] == [a.metrics["auc"] for a in ours]
            assert [dict(r.params) for r in read] == [a.params for a in ours]
        assert repo.storage.fsck(full=True).sound
