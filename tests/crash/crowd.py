"""Many processes at once: some commit, some read and verify, some maintain.

``python -m tests.crash.crowd ROOT COMMITTERS COMMITS READERS SECONDS``: three processes maintain
until all have committed. Each runs gc, repack and forget in turn, every so many seconds, and
rebuilds the index each time; the first one may delete or exchange it instead. Prints counters as
JSON; what was acknowledged, and what may be forgotten, stands in files beside the repository, a
line a commit.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np

from mvc.api.repository import Repository
from mvc.errors import Busy, RefConflict, StateForgotten
from mvc.ids import CommitId
from mvc.testing import fresh_process
from tests.crash import maintenance, treatments
from tests.crash.forks import Send, fork, run, warm_up
from tests.crash.state import check_arrays
from tests.crash.story import foreign_index

_REOPEN = 50  # reads with one opening
_MAINTAINERS = 3


def state_for(name: str, step: int) -> dict[str, np.ndarray]:
    """What ``name`` commits at ``step``: the same wherever it is computed."""
    base = np.random.default_rng(sum(name.encode())).standard_normal(5000).astype(np.float32)
    return {"w": base + np.float32(step) * np.float32(1e-3), "step": np.array(step)}


def acknowledged(folder: Path) -> dict[CommitId, tuple[str, int]]:
    """Of every commit that was acknowledged, who made it and at which step."""
    told = {}
    for path in sorted(folder.glob("acks-*")):
        for line in path.read_text().split("\n")[:-1]:
            id_, name, step = line.split()
            told[CommitId.parse(id_)] = (name, int(step))
    return told


def given_up(folder: Path) -> set[CommitId]:
    """The versions that were forgotten, or are about to be."""
    lines = [line for path in folder.glob("forgets-*") for line in path.read_text().split()]
    return {CommitId.parse(line) for line in lines if len(line) == 64}


def commit(root: Path, name: str, count: int) -> None:
    with Repository.open(root) as repo, (root.parent / f"acks-{name}").open("a") as acks:
        for step in range(count):
            made = repo.commit(state_for(name, step), path=f"{name}.safetensors", deploy=name)
            acks.write(f"{made.id} {name} {step}\n")
            acks.flush()


def read(root: Path, seed: int, pause: float, send: Send) -> None:
    """Random acknowledged versions, until nobody commits any more; says how many.

    ``pause``: seconds between two of them, so that many readers leave time to the others.
    """
    rng, done = random.Random(seed), 0
    while not (root.parent / "stop").exists():
        told = list(acknowledged(root.parent).items())
        if not told:
            time.sleep(0.01)
            continue
        with Repository.open(root) as repo:
            for _ in range(_REOPEN):
                id_, (name, step) = rng.choice(told)
                fresh_process()
                try:
                    found = repo.checkout(id_, path=f"{name}.safetensors")
                except StateForgotten:
                    if id_ not in given_up(root.parent):
                        raise
                    continue
                check_arrays(found, state_for(name, step))
                done += 1
                time.sleep(pause)
    send(done)


def forget(repo: Repository, rng: random.Random) -> None:
    """One version by name; its id is on disk before."""
    folder = repo.root.parent
    told = sorted(acknowledged(folder))
    if told:
        id_ = rng.choice(told)
        with (folder / f"forgets-{os.getpid()}").open("a") as forgets:
            forgets.write(f"{id_.hex()}\n")
        with suppress(RefConflict):  # HEAD's
            maintenance.forget_named(repo.handle, id_)


_MAINTENANCE: dict[str, Callable[[Repository, random.Random], object]] = {
    "collected": lambda repo, rng: maintenance.collect(repo.handle),
    "repacked": lambda repo, rng: maintenance.repack(repo.handle, rng.choice((5, 10))),
    "forgotten": forget,
}


def maintain(root: Path, number: int, seconds: float, send: Send) -> None:
    """Maintenance in turn, and something with the index after each; says how often each ran,
    and how often it was too busy.
    """
    counted = {**dict.fromkeys(_MAINTENANCE, 0), "busy": 0, "index_treated": 0}
    rng = random.Random(number)
    while not (root.parent / "stop").exists():
        for what in rng.sample([*_MAINTENANCE], len(_MAINTENANCE)):
            with Repository.open(root) as repo:
                try:
                    _MAINTENANCE[what](repo, rng)
                    counted[what] += 1
                except Busy:
                    counted["busy"] += 1
                if number:
                    repo.storage.rebuild_index()
                else:
                    treat_index(repo, rng)
                counted["index_treated"] += 1
            time.sleep(seconds)
    send(counted)


def treat_index(repo: Repository, rng: random.Random) -> None:
    """It is rebuilt, deleted, or an older copy or another repository's takes its place."""
    if rng.random() < 0.3:
        repo.storage.rebuild_index()
        return
    foreign = repo.root.parent / "foreign"
    if not foreign.exists():
        treatments.write(foreign, foreign_index())
    treatments.drawn(repo.root, foreign, rng)


def main(root: Path, committers: int, commits: int, readers: int, seconds: float) -> None:
    warm_up(root.parent / "warm")
    run(lambda send: Repository.init(root).close())
    committing = [
        fork(lambda send, n=f"p{i}": commit(root, n, commits))  # type: ignore[misc]
        for i in range(committers)
    ]
    reading = [
        fork(lambda send, s=i: read(root, s, seconds / 20, send))  # type: ignore[misc]
        for i in range(readers)
    ]
    maintaining = [
        fork(lambda send, n=i: maintain(root, n, seconds, send))  # type: ignore[misc]
        for i in range(_MAINTAINERS)
    ]
    failed = sum(child.end()[1] != 0 for child in committing)
    (root.parent / "stop").touch()
    counted = Counter(failed_committers=failed, failed_readers=0, failed_maintenance=0, reads=0)
    for child in reading:
        values, status = child.end()
        counted["failed_readers"] += status != 0
        counted["reads"] += sum(values)
    for child in maintaining:
        values, status = child.end()
        counted["failed_maintenance"] += status != 0
        counted.update(*values)
    print(json.dumps(counted))


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(int, sys.argv[2:5]), float(sys.argv[5]))
