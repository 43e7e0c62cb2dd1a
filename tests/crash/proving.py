"""A training that proves its versions and drops their weights, killed at points of its run.

``python -m tests.crash.proving FOLDER SEED KILLS`` prints counters as JSON. Processes are forks of
one that has imported torch; each forks the process of its replays, which so ends with it.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch

import mvc
from mvc.api import Dropped
from mvc.names import SCRATCH
from tests import prepared
from tests.crash.forks import Send, fork, run
from tests.crash.state import Lost
from tests.recipes.stepped import step
from tests.recipes.test_steps import root as root_of
from tests.recipes.test_steps import training, versions

VERSIONS, FULL_EVERY = 14, 4
_REPLAYED = 2  # dropped versions that are made again after each kill
_COLLECT_AT = (6, 11)  # versions after which another handle collects what nothing needs


class _Forking(prepared.Forking):
    """The process that forks is itself a fork of this one."""

    def _start(self, variables: Mapping[str, str]) -> None:
        self._variables = dict(variables)
        self._socket, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        pid = os.fork()
        self._process = cast(Any, pid)  # from now on it is there
        if pid == 0:
            self._socket.close()
            sys.argv[1:] = [str(its.fileno())]
            try:
                prepared.serve()
            finally:
                os._exit(0)
        its.close()


def prepare() -> None:
    """Replays of this process run in forks. Before that it must have started no threads."""
    forking = _Forking()
    assert forking.serves(prepared.COMMAND, os.environ)
    subprocess.Popen = prepared.popen(forking)  # type: ignore[misc]


def rows(number: int) -> list[int]:
    return [(number * 37 + at * 11) % 100 for at in range(8)]


def roots_of_a_training(folder: Path) -> list[bytes]:
    """What each version has to be."""
    model, optimizer, data = training(folder)
    roots = []
    for number in range(VERSIONS):
        batch = torch.utils.data.default_collate([data[row] for row in rows(number)])
        step(model, optimizer, batch)
        roots.append(root_of(dict(model.state_dict())))
    return roots


def record(repository: Path, send: Send) -> None:
    """Trains, and sends the number of each version once that is durable."""
    prepare()
    model, optimizer, data = training(repository.parent / "data")
    with (
        mvc.Repository.open(repository) as repo,
        mvc.Recorder(
            repo, model, optimizer, recipe=step, data=data, full_every=FULL_EVERY, prove=True
        ) as recorder,
    ):
        for number in range(VERSIONS):
            recorder.train(rows(number))
            recorder.flush()
            send(number)
            if number in _COLLECT_AT:
                with mvc.Repository.open(repository) as other:
                    other.storage.gc(grace="0")


def check(repository: Path, roots: list[bytes], durable: int, seed: int, send: Send) -> None:
    """Sends how many versions there are, and how many of them have dropped their weights."""
    prepare()
    rng = random.Random(seed)
    with mvc.Repository.open(repository) as repo:
        repo.storage.gc(grace="0")
        if left := [*(repository / ".mvc" / SCRATCH).glob("*")]:
            raise Lost(f"gc has left {left}")
        found = versions(repo) if repo.refs() else []
        made = found[: len(roots)]
        if len(made) < durable:
            raise Lost(f"{durable} versions were durable, found {made}")
        kinds = [repo.availability(version) for version in made]
        without = {at for at, kind in enumerate(kinds) if isinstance(kind, Dropped)}
        for at, version in enumerate(made):
            if at not in without and root_of(repo.checkout(version)) != roots[at]:
                raise Lost(f"version {at} has other weights")
        for at in rng.sample(sorted(without), min(_REPLAYED, len(without))):
            with mvc.retraining(repo, made[at], trust=True):
                if root_of(repo.checkout(made[at])) != roots[at]:
                    raise Lost(f"version {at} was made again with other weights")
        if problems := repo.storage.fsck(full=True).problems:
            raise Lost(f"fsck: {problems}")
        repo.commit({"after": torch.zeros(2)})
        send((len(made), len(without)))


def kill(folder: Path, seed: int, kills: int) -> Counter[str]:
    rng = random.Random(seed)
    (folder / "data").mkdir()
    ((roots, took),) = run(partial(_whole, folder))
    counted = Counter[str](lost=0)
    for number in range(kills):
        repository = folder / f"repository{number}"
        mvc.Repository.init(repository).close()
        child = fork(partial(record, repository))
        child.listen(took * (number + rng.random()) / kills)
        child.kill()
        told, status = child.end()
        counted["kills"] += status == -signal.SIGKILL
        assert status in (0, -signal.SIGKILL), f"a training ended by itself: {status}"
        seen = partial(check, repository, roots, len(told), rng.getrandbits(32))
        ((made, dropped),) = run(seen)
        counted.update(durable=len(told), found=made, dropped=dropped, in_proofs=dropped > 0)
        shutil.rmtree(repository)
    return counted


def _whole(folder: Path, send: Send) -> None:
    """A training to its end: what its versions are, and the seconds of the recording."""
    repository = folder / "whole"
    mvc.Repository.init(repository).close()
    began = time.monotonic()
    run(partial(record, repository))
    took = time.monotonic() - began
    roots = roots_of_a_training(folder / "data")
    ((made, dropped),) = run(partial(check, repository, roots, VERSIONS, 0))
    assert made == VERSIONS and dropped > VERSIONS // 2
    send((roots, took))


def main(folder: Path, seed: int, kills: int) -> None:
    torch.set_num_threads(1)
    for module in ("torch._dynamo", "mvc.recipes.worker", "mvc.recipes.stepwise.recorder"):
        importlib.import_module(module)
    gc.freeze()
    print(json.dumps(kill(folder, seed, kills)))


if __name__ == "__main__":
    arguments: Any = sys.argv[1:]
    main(Path(arguments[0]), int(arguments[1]), int(arguments[2]))
