"""A training in processes that begin at once: they are forked where torch is imported already."""

from __future__ import annotations

import json
import multiprocessing
import os
import pickle
import socket
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import mvc.distributed
from mvc.api import Repository
from mvc.distributed.runner.participant import Participant
from mvc.distributed.runner.ranks import TRAINING
from tests.distributed.runner.small import Trainer

Loop = Callable[[Participant, Trainer], object]

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["tests.distributed.runner.preloaded"])


@dataclass(frozen=True)
class Outcome:
    """What a function returned, or the error that ended it: ``Name: message``."""

    value: Any = None
    error: str | None = None
    seconds: float = 0.0


def in_processes(
    count: int, work: Callable[..., Any], *arguments: Any, **settings: Any
) -> list[Outcome]:
    """``work(rank, *arguments)`` in so many processes, which meet in a file as with the command."""
    with tempfile.TemporaryDirectory() as folder:
        variables = settings.pop("variables", {}) | {"WORLD_SIZE": str(count)}
        variables[TRAINING] = json.dumps({"folder": folder, "settings": settings, "level": 20})
        ends = [_context.Pipe(duplex=False) for _ in range(count)]
        processes = [
            _context.Process(
                target=_run, args=(rank, variables, ends[rank][1], work, arguments), daemon=True
            )
            for rank in range(count)
        ]
        began = time.monotonic()
        for process in processes:
            process.start()
        outcomes = []
        for rank, (process, (end, other)) in enumerate(zip(processes, ends, strict=True)):
            other.close()
            try:
                assert end.poll(90), f"rank {rank} hangs"
                outcomes.append(pickle.loads(end.recv_bytes()))
            except EOFError:
                process.join(5)
                outcomes.append(
                    Outcome(error=f"exit {process.exitcode}", seconds=time.monotonic() - began)
                )
        for process in processes:
            process.kill()
            process.join()
        return outcomes


def _run(rank: int, variables: dict[str, str], end: Any, work: Any, arguments: Any) -> None:
    os.environ |= {"RANK": str(rank), "GLOO_SOCKET_IFNAME": socket.if_nameindex()[0][1]} | variables
    torch.set_num_threads(1)
    began = time.monotonic()
    try:
        outcome = Outcome(work(rank, *arguments))
    except BaseException as error:
        outcome = Outcome(
            error=f"{type(error).__name__}: {error}", seconds=time.monotonic() - began
        )
    end.send_bytes(pickle.dumps(outcome))  # not by shared memory, which ends with this process
    end.close()
    os._exit(0)


def ordinary(
    rank: int, count: int, width: int = 32, **settings: Any
) -> tuple[int, dict[str, torch.Tensor]]:
    """The loop of the documentation: the steps of this worker and its model at the end."""
    trainer = Trainer(rank, width, count=count)
    with mvc.distributed.join(trainer.model, trainer.optimizer, **settings) as worker:
        for batch in worker.batches(trainer.stream):
            trainer.step(batch)
    return worker.steps, trainer.model.state_dict()


def train(
    folder: Path, count: int, batches: int = 30, work: Any = ordinary, **settings: Any
) -> list[Outcome]:
    """A training whose repository is this folder."""
    if not (folder / ".mvc").exists():
        Repository.init(folder).close()
    return in_processes(count, work, batches, repo=str(folder), **settings)


def global_models(folder: Path, target: str = "global") -> list[dict[str, torch.Tensor]]:
    """Every model that was deployed, in order."""
    with Repository.open(folder) as repo:
        commits = [deployed.commit for deployed in repo.deployments(target)]
        return [repo.checkout(commit, path="model.safetensors") for commit in commits]
