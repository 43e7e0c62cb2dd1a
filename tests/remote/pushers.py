"""Processes that push at once, each from a clone of its own, while the remote is collected.

``python -m tests.remote.pushers FOLDER KIND PUSHERS ROUNDS`` prints counters as JSON. Each pusher
commits to a branch of its own and to ``main``, deploys to a target of its own, and pushes both: its
own branch is taken, ``main`` is taken or refused by name. In the end what was acknowledged is at
the remote, and all readers list the deployments in one order.
"""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from pathlib import Path

import numpy as np

import mvc
from mvc.api.repository import Repository
from mvc.errors import Busy, MvcError, RefConflict, RemoteUnreachable
from mvc.testing import open_quietly
from tests.crash.forks import Send, fork, run, warm_up
from tests.remote.kit.places import Place, place
from tests.remote.kit.same import answers, assert_clean, assert_same

_LONGEST = 300.0
"""Seconds after which a process counts as hanging."""
_TRIES = 20


def state(pusher: int, number: int) -> dict[str, np.ndarray]:
    base = np.random.default_rng(pusher).standard_normal((40, 30)).astype(np.float32)
    base[number % 40] += np.float32(number)
    return {"w": base}


def push(root: Path, pusher: int, rounds: int, send: Send) -> None:
    """Sends what was acknowledged: the newest commit of its branch."""
    counted = Counter(pushes=0, refused=0, tried_again=0)
    with open_quietly(root) as repo:
        repo.switch(f"p{pusher}", create=True, force=True)
        for number in range(rounds):
            made = repo.commit(state(pusher, number), deploy=f"prod{pusher}")
            counted["tried_again"] += _until_taken(repo, f"p{pusher}")
            send(("acknowledged", pusher, made.id.hex()))
            counted["pushes"] += 1
            try:
                repo.branch("main", made.id, force=True)
                repo.push("origin", ["main"])
            except RefConflict:
                counted["refused"] += 1
                repo.fetch("origin")
            except (Busy, RemoteUnreachable):
                counted["tried_again"] += 1
    send(dict(counted))


def _until_taken(repo: Repository, branch: str) -> int:
    """How often it was told to come again."""
    for tries in range(_TRIES):
        try:
            repo.push("origin", [branch])
        except (Busy, RemoteUnreachable) as error:  # by name, and the same command works later
            assert error.hint
            time.sleep(0.05 * tries)
        else:
            return tries
    raise AssertionError(f"{branch} was not taken")


def collect(remote: Place, stop: Path, send: Send) -> None:
    """gc of the remote, again and again, without a grace."""
    counted = Counter(collections=0, busy=0)
    while not stop.exists():
        try:
            remote.own(lambda repo: repo.storage.gc(grace="0"))
            counted["collections"] += 1
        except (Busy, RefConflict, RemoteUnreachable):
            counted["busy"] += 1
        time.sleep(0.05)
    send(dict(counted))


def check(remote: Place, folder: Path, acknowledged: dict[int, str], send: Send) -> None:
    """Nothing that was acknowledged is lost; two readers and the remote agree."""
    with mvc.clone(remote.url, folder / "r1") as one, mvc.clone(remote.url, folder / "r2") as two:
        for pusher, id_ in acknowledged.items():
            assert one.find(f"origin/p{pusher}").hex() == id_, pusher
        assert_clean(one)
        assert_same(one, two)
        expected = answers(one)

    def look(owned: Repository) -> None:
        assert_clean(owned)
        assert answers(owned) == expected

    remote.own(look, reads=True)
    send(len(expected["deployments"]))


def main(folder: Path, kind: str, pushers: int, rounds: int) -> None:
    run(lambda send: warm_up(folder / "warm"))
    warm_up(folder / "warm-parent")
    counted: Counter[str] = Counter()
    with place(kind, folder) as remote:
        run(lambda send: _begin(remote, folder, pushers))
        stop = folder / "stop"
        collecting = fork(lambda send: collect(remote, stop, send))
        children = [
            fork(lambda send, i=i: push(folder / f"c{i}", i, rounds, send))  # type: ignore[misc]
            for i in range(1, pushers + 1)
        ]
        acknowledged: dict[int, str] = {}
        end = time.monotonic() + _LONGEST
        for child in children:
            assert child.ended(max(0.0, end - time.monotonic())), "a pusher hangs"
            values, status = child.end()
            assert status == 0, f"a pusher ended with {status}"
            for value in values:
                if isinstance(value, dict):
                    counted += Counter(value)
                else:
                    acknowledged[value[1]] = value[2]
        stop.touch()
        values, status = collecting.end()
        assert status == 0, f"the collection ended with {status}"
        counted.update(values[0])
        (deployments,) = run(lambda send: check(remote, folder, acknowledged, send))
        assert deployments == pushers * rounds + 1
    print(json.dumps(counted))


def _begin(remote: Place, folder: Path, pushers: int) -> None:
    with Repository.init(folder / "c0") as repo:
        repo.commit(state(0, 0), deploy="prod")
        repo.remotes.add("origin", remote.url)
        repo.push("origin", ["main"])
    for i in range(1, pushers + 1):
        mvc.clone(remote.url, folder / f"c{i}").close()


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
    except MvcError as error:
        sys.exit(f"{error.kind}: {error.message}")
