"""Guards of the stories about the index, each at the level at which it matters."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from mvc.api.repository import Repository
from mvc.io.files import FileSystem
from mvc.store.index.index import Index
from mvc.store.journal.frames import Position
from tests import children
from tests.counters import count
from tests.crash.forks import run
from tests.crash.images import folder_in_memory
from tests.crash.workers import Worker, warm_up_all
from tests.seeds import draw

TRUSTING = "tests.crash.mutations.truncation_trusts_the_index"


# -- nothing that destroys trusts the index --------------------------------------------------


def _lies(otherwise: Path, number: int, *mutation: str) -> Counter[str]:
    seed = draw("lies").getrandbits(32)
    with folder_in_memory(otherwise) as folder:
        return children.run("crash.lies", folder, seed, 0, number, *mutation)


@pytest.mark.parametrize("number", [12, pytest.param(500, marks=pytest.mark.long)])
def test_an_index_that_lies_takes_nothing_away(tmp_path: Path, number: int) -> None:
    counted = _lies(tmp_path, number)
    count("stories with an index that lies", **counted)
    assert [counted[what] for what in ("lost", "wrong", "foreign")] == [0, 0, 0]


def test_the_lies_see_a_truncation_that_trusts_the_index(tmp_path: Path) -> None:
    assert _lies(tmp_path, 200, TRUSTING)["lost"] == 1


# -- what one process writes to a replaced index never shows in the new one --------------------


def test_a_write_to_a_replaced_index_does_not_show_in_the_new_one(tmp_path: Path) -> None:
    """A rebuilt index stays as it is when somebody goes on from the one before."""
    warm_up_all(tmp_path)
    root = tmp_path / "stays" / "repo"
    run(lambda send: Repository.init(root).close())
    late, other = (Worker(root, batch=4) for _ in range(2))
    try:
        made, _ = late.call("commit", "model.safetensors", 1, None)
        late.call("deploy", made, "prod", 20, None)
        other.call("rebuild")
        other.call("deploy", made, "prod", 20, None)
        known = other.call("indexed")
        for count in range(1, 4):
            late.call("deploy", made, "edge", 5, None)
            assert other.call("indexed") == known
            assert len(other.call("deployed")) == 40 + 5 * count
    finally:
        late.end()
        other.end()


# -- a run is never taken for another ----------------------------------------------------------


def test_runs_are_told_apart_after_a_fall_back(tmp_path: Path) -> None:
    """An index that fell back to an older state and went another way answers by it."""
    (tmp_path / "index").mkdir()
    index = Index(FileSystem(), tmp_path / "index")
    empty = index.meta(b"i" * 16)
    for number in (1, 2):
        keys = [b"k" + bytes([number, i]) for i in range(50)]
        made = index.extend(empty, keys, Position(100, 1, b"c" * 16))
        index.switch(made)
        assert [k for run in index.readers(made) for k in run.scan(b"", b"\xff" * 8)] == keys
