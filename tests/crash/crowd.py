"""Many processes at once: some commit, some read and verify, some maintain.

``python -m tests.crash.crowd ROOT COMMITTERS COMMITS READERS SECONDS``: maintenance runs
gc and repack in turn, every so many seconds, until all have committed, and rebuilds, deletes
or exchanges the index each time. Prints counters as JSON; what was acknowledged stands in
files beside the repository, a line a commit.
"""

from __future__ import annotations

import json
import random
import sys
import time
from pathlib import Path

import numpy as np

from mvc.errors import Busy
from mvc.ids import CommitId
from mvc.repo.fsck.fsck import rebuild_index
from mvc.repo.repository import Repository
from tests.crash import maintenance, treatments
from tests.crash.forks import Send, fork, run, warm_up
from tests.crash.state import check_arrays
from tests.crash.story import foreign_index
from tests.fresh import fresh_process

_REOPEN = 50  # reads with one opening


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
                found = repo.checkout(id_, path=f"{name}.safetensors")
                check_arrays(found, state_for(name, step))
                done += 1
                time.sleep(pause)
    send(done)


def maintain(root: Path, seconds: float, send: Send) -> None:
    """gc and repack in turn, and something with the index after each; says how often each ran,
    and how often it was too busy.
    """
    counted = {"collected": 0, "repacked": 0, "busy": 0, "index_treated": 0}
    rng = random.Random(0)
    while not (root.parent / "stop").exists():
        for what in ("collected", "repacked"):
            with Repository.open(root) as repo:
                try:
                    if what == "collected":
                        maintenance.collect(repo.context)
                    else:
                        maintenance.repack(repo.context, 10)
                    counted[what] += 1
                except Busy:
                    counted["busy"] += 1
                treat_index(repo, rng)
                counted["index_treated"] += 1
            time.sleep(seconds)
    send(counted)


def treat_index(repo: Repository, rng: random.Random) -> None:
    """It is rebuilt, deleted, or an older copy or another repository's takes its place."""
    if rng.random() < 0.3:
        rebuild_index(repo.context)
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
    maintaining = fork(lambda send: maintain(root, seconds, send))
    failed = sum(child.end()[1] != 0 for child in committing)
    (root.parent / "stop").touch()
    counted = {"failed_committers": failed, "failed_readers": 0, "reads": 0}
    for child in reading:
        values, status = child.end()
        counted["failed_readers"] += status != 0
        counted["reads"] += sum(values)
    values, status = maintaining.end()
    counted["failed_maintenance"] = int(status != 0)
    print(json.dumps(counted | (values[0] if values else {})))


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(int, sys.argv[2:5]), float(sys.argv[5]))
