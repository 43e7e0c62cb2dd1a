"""Processes beside a Follower: ``publish`` and ``keep`` a repository, ``follow`` it to a file.

    python -m tests.serving.following publish|keep ROOT SEED
    python -m tests.serving.following follow ROOT FILE

Each goes on until it is killed, and prints a line for each thing that it has done. ``publish``
commits, deploys, rolls back and retracts, with dated deployments, late ones and ones that become
due. ``keep`` collects and forgets. A line of ``follow`` is a swap: the number in the file, and when
it was served (ns since 1970).

A version is tensors that all hold one number, so parts of two are seen.
"""

from __future__ import annotations

import os
import random
import sys
import time
from contextlib import suppress
from pathlib import Path

import numpy as np

import mvc
from mvc.errors import Busy, NoDeployment, NothingToCommit, StateForgotten, UnknownRevision
from mvc.serving.sources import Followed

TARGET = "prod"
_SHAPES = {"a": (40, 300), "b": (9000,), "c": (3,)}
_MS = 1_000_000


def state(number: int) -> dict[str, np.ndarray]:
    return {name: np.full(shape, number, np.int64) for name, shape in _SHAPES.items()}


def number_in(data: bytes) -> int:
    """The number that a file's tensors hold; AssertionError if it is not one version, whole."""
    size = 8 * sum(int(np.prod(shape)) for shape in _SHAPES.values())
    header = int.from_bytes(data[:8], "little")
    assert len(data) == 8 + header + size, f"{len(data)} bytes"
    numbers = np.frombuffer(data, np.int64, offset=8 + header)
    assert (numbers == numbers[0]).all(), "parts of several versions"
    return int(numbers[0])


def publish(root: str, seed: str) -> None:
    rng = random.Random(seed)
    with mvc.Repository.open(root) as repo:
        while True:
            with suppress(NoDeployment, NothingToCommit, StateForgotten, UnknownRevision, Busy):
                _operation(repo, rng)
            os.write(1, b"done\n")
            time.sleep(rng.choice((0, 0, 0.01, 0.05)))


def _operation(repo: mvc.Repository, rng: random.Random) -> None:
    what = rng.choices(
        ("commit", "older", "rollback", "retract", "late", "due", "elsewhere"),
        (8, 3, 5, 2, 1, 3, 1),
    )[0]
    now = time.time_ns()
    if what == "rollback":
        repo.rollback(TARGET)
    elif what == "retract":
        repo.retract(None, TARGET)
    elif what == "older":
        repo.deploy(rng.choice(repo.deployments(TARGET)[-8:]).commit, TARGET)
    else:
        number = rng.getrandbits(62)
        target = TARGET if what == "commit" else None
        made = repo.commit(state(number), message=str(number), deploy=target)
        if what == "late":
            repo.deploy(made.id, TARGET, at=now - rng.randrange(1, 10**12))
        elif what == "due":
            repo.deploy(made.id, TARGET, at=now + rng.randrange(30 * _MS, 300 * _MS))
        elif what == "elsewhere":
            repo.deploy(made.id, "edge")


def keep(root: str, seed: str) -> None:
    rng = random.Random(seed)
    with mvc.Repository.open(root) as repo:
        while True:
            with suppress(Busy):
                if rng.random() < 0.3:
                    repo.storage.forget(unused=TARGET, keep_last=20)
                repo.storage.gc(grace="0")
            os.write(1, b"done\n")
            time.sleep(rng.uniform(0.1, 0.5))


def follow(root: str, file: str) -> None:
    def served(_: Followed) -> None:
        os.write(1, f"{number_in(Path(file).read_bytes())} {time.time_ns()}\n".encode())

    with mvc.Follower(root, TARGET, mvc.ReplicaSink(file), on_change=served) as follower:
        follower.run(0.002)


if __name__ == "__main__":
    {"publish": publish, "keep": keep, "follow": follow}[sys.argv[1]](*sys.argv[2:])
