"""Storms of checkouts: killed at any moment, disturbed by commits, maintenance and each other.

After each of them, and one further command, the folder holds one version whole or the other.
"""

from __future__ import annotations

import random
import shutil
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from mvc.api.repository import Repository
from mvc.errors import Busy, MvcError
from mvc.testing import fresh_process
from tests.counters import count
from tests.crash import maintenance
from tests.crash.forks import Child, Send, fork, warm_up
from tests.crash.images import folder_in_memory
from tests.repo.checkout.test_together import World, held
from tests.seeds import draw

CHECKOUTS = 1_246
_LONGEST = 60.0  # seconds until a checkout counts as one that hangs


def _in_place(repo: Repository, rev: str, _: Path) -> None:
    repo.checkout(rev, force=True, to=repo.root)


def _elsewhere(repo: Repository, rev: str, live: Path) -> None:
    repo.checkout(rev, to=live / "plain", force=True, delete=True)


def _swapped(repo: Repository, rev: str, live: Path) -> None:
    repo.checkout(rev, to=live / "swapped", atomic_dir=True)


def _repack(repo: Repository, _: int) -> None:
    with suppress(Busy):
        maintenance.repack(repo.handle, 1)


def _collect(repo: Repository, _: int) -> None:
    with suppress(Busy):
        maintenance.collect(repo.handle)


def _commit(repo: Repository, number: int) -> None:
    """What it adds is undone, so that HEAD is one of the two versions again."""
    state = {"w": np.full(2000, number, np.float32)}
    repo.commit(state, path="side.safetensors")
    repo.undo()


CHECKOUT = {"in place": _in_place, "elsewhere": _elsewhere, "swapped": _swapped}
BESIDE: dict[str, Callable[[Repository, int], None]] = {
    "commit": _commit,
    "repack": _repack,
    "gc": _collect,
}


class Storm:
    """A repository with two versions, and three folders that hold one of them."""

    def __init__(self, folder: Path, rng: random.Random) -> None:
        self.rng = rng
        self.world = World(folder / "models")
        self.root, self.live = folder / "models", folder / "live"
        self.counted: Counter[str] = Counter()
        began = time.monotonic()
        with Repository.open(self.root) as repo:
            for at, rev in enumerate(self.world.ids):
                repo.tag(f"v{at}", rev)  # nothing that gc may take
            for act in CHECKOUT.values():
                act(repo, self.world.ids[1], self.live)
        self.seconds = (time.monotonic() - began) / len(CHECKOUT)

    def place(self, how: str) -> Path:
        return self.root if how == "in place" else self.live / how.replace("elsewhere", "plain")

    def start(self, how: str, version: int) -> Child:
        rev = self.world.ids[version]

        def act(send: Send) -> None:
            fresh_process()
            with Repository.open(self.root) as repo:
                send("begun")
                with suppress(MvcError):  # the other one has the place
                    CHECKOUT[how](repo, rev, self.live)
                    send("done")

        child = fork(act)
        child.hear()
        return child

    def one(self) -> int:
        """Runs a round and checks it; how many checkouts it had."""
        how = self.rng.choice([*CHECKOUT])
        kind = self.rng.choice(("killed", "killed", "killed", "disturbed", "two at once"))
        if kind == "disturbed" and how == "in place":
            kind = "killed"  # a commit in the folder itself would be of its mixture
        version = self.rng.randrange(2)
        children = [self.start(how, version)]
        if kind == "two at once":
            children.append(self.start(how, 1 - version))
            if self.rng.random() < 0.5:
                self.kill(children[self.rng.randrange(2)])
        elif kind == "killed":
            self.kill(children[0])
        else:
            self.beside()
        ended = [self.end(child) for child in children]
        self.counted[kind] += len(children)
        self.counted["went on to their end"] += sum(ended)
        self.check(how, ended, version if kind != "two at once" else None)
        return len(children)

    def kill(self, child: Child) -> None:
        child.listen(self.rng.random() * 1.2 * self.seconds)
        child.kill()

    def end(self, child: Child) -> bool:
        assert child.ended(_LONGEST), "a checkout hangs"
        values, status = child.end()
        assert status in (0, -9)
        return "done" in values

    def beside(self) -> None:
        fresh_process()
        with Repository.open(self.root) as repo:
            BESIDE[self.rng.choice([*BESIDE])](repo, self.rng.randrange(1000))

    def check(self, how: str, ended: list[bool], version: int | None) -> None:
        place = self.place(how)
        if how == "swapped":  # whole at every moment
            assert self.world.version(place) >= 0, f"a mixture: {sorted(held(place))}"
        fresh_process()
        with Repository.open(self.root) as repo:  # any command
            assert repo.find() is not None
        now = self.world.version(place)
        assert now >= 0, f"a mixture {how}: {sorted(held(place))}"
        if version is not None and all(ended):
            assert now == version, f"{how}: acknowledged {version}, but {now} is there"
        if self.rng.random() < 0.05:
            self.nothing_is_lost()

    def nothing_is_lost(self) -> None:
        fresh_process()
        out = self.live / "whole"
        with Repository.open(self.root) as repo:
            for at, rev in enumerate(self.world.ids):
                repo.checkout(rev, to=out)
                assert self.world.version(out) == at
                shutil.rmtree(out)
            assert repo.storage.fsck().problems == ()


def storm(otherwise: Path, checkouts: int) -> None:
    with folder_in_memory(otherwise) as folder:
        warm_up(folder / "warm")
        weather, done = Storm(folder, draw("storm of checkouts")), 0
        while done < checkouts:
            done += weather.one()
        weather.nothing_is_lost()
    count("storms of checkouts", checkouts=done, **weather.counted, mixtures=0)


def test_a_storm_leaves_one_version_or_the_other(tmp_path: Path) -> None:
    storm(tmp_path, 30)


@pytest.mark.long
@pytest.mark.parametrize("round_", range(4))
def test_1246_checkouts_leave_one_version_or_the_other(round_: int, tmp_path: Path) -> None:
    storm(tmp_path, -(-CHECKOUTS // 4))
