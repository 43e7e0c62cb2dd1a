"""Transfers from a repository that is committed to, undone, forgotten, repacked and collected."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from mvc.api.repository import Repository
from mvc.errors import HistoryMissing, MvcError
from mvc.io.files import FileSystem
from mvc.remote.transport import States, Wanted
from mvc.repo.commit.request import CommitOptions
from mvc.repo.config import set_value
from mvc.testing import open_quietly
from tests.remote.kit.carrying import carry
from tests.remote.kit.mixed import model, moved
from tests.remote.kit.same import assert_clean, known, states

LAYOUTS = ("skip:2", "skip:4", "chain:5")
PIPELINES = ("none", "vsol", "lossless", "sub | zigzag | zstd:1")


class Wanderer:
    """Random operations at the source, and now and then a transfer of what is new."""

    def __init__(self, seed: int, source: Repository, target: Repository) -> None:
        self._random = random.Random(seed)
        self._source, self._target = source, target
        self._state: Mapping[str, np.ndarray] = model(seed)
        self._wanted = Wanted()
        many = [*(self.commit,) * 8, *(self.transfer,) * 4]
        storage = source.storage
        self._operations: list[Callable[[], object]] = [
            *many,
            lambda: source.undo(),
            self.halved,
            lambda: source.deploy(self.one(), "prod"),
            lambda: source.branch(f"b{self.number()}", self.one()),
            lambda: source.tag(f"t{self.number()}", self.one()),
            lambda: storage.forget([self.one()]),
            lambda: storage.forget(keep_last=1 + self.number() % 5),
            lambda: storage.repack(interval=1 + self.number() % 4),
            lambda: storage.gc(grace="0"),
            lambda: target.storage.gc(grace="0"),
            lambda: target.storage.forget([self.one()]),
        ]

    def step(self) -> None:
        operation = self._random.choice(self._operations)
        if operation == self.transfer:
            operation()
        else:
            with suppress(MvcError):  # nothing to undo, no version yet, HEAD's own state
                operation()

    def number(self) -> int:
        return self._random.randrange(1000)

    def one(self) -> str:
        """Any version of the source."""
        return str(self._random.choice(sorted(known(self._source)) or ["HEAD"]))

    def commit(self) -> None:
        self._state = moved(self._state, self.number())
        pipeline = self._random.choice([None, None, None, *PIPELINES])
        reset = self._random.random() < 0.1
        self._source.commit(
            self._state, pipeline=pipeline, options=CommitOptions(reset_point=reset)
        )

    def halved(self) -> None:
        half = {name: array.astype(np.float16) for name, array in self._state.items()}
        paths = {"model.safetensors": self._state, "half.safetensors": half}
        self._source.commit(states=paths)

    def transfer(self) -> None:
        """Whatever has its state there has the same one here, and all is sound."""
        kinds: list[States] = ["all", "all", "all", 1, 2, "none"]
        wanted = Wanted(
            self._wanted.after, have=self._wanted.have, states=self._random.choice(kinds)
        )
        most = self._random.choice([1, 5000, 64 << 20])
        try:
            took = carry(self._source, self._target, wanted, most=most)
        except HistoryMissing:  # the target collected what no ref led to
            took = carry(self._source, self._target, Wanted(states=wanted.states), most=most)
        refs = [*self._source.refs(), *self._source.refs("tag")]
        self._wanted = Wanted(took.place, have=frozenset(ref.commit for ref in refs))
        assert took.tries <= 3
        ids = known(self._source)
        there, here = states(self._source, ids), states(self._target, ids)
        gone = "state-forgotten"
        wrong = [i.short for i in ids if gone not in (there[i], here[i]) and there[i] != here[i]]
        assert not wrong
        assert_clean(self._target)


@pytest.mark.parametrize(
    "seed", [37, 38, 73, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(100, 150))]
)
def test_what_arrives_is_what_was_sent(seed: int, tmp_path: Path) -> None:
    for name in ("source", "target"):
        Repository.init(tmp_path / name).close()
    layout = LAYOUTS[seed % len(LAYOUTS)]
    set_value(FileSystem(), tmp_path / "source/.mvc/config.yaml", "store.layout", layout)
    with open_quietly(tmp_path / "source") as source, open_quietly(tmp_path / "target") as target:
        wanderer = Wanderer(seed, source, target)
        for _ in range(30):
            wanderer.step()
        wanderer.transfer()
