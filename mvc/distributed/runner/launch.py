"""Runs a distributed training on this machine: starts its processes with torch's launcher.

The processes communicate through a file in a private folder and the loopback interface. No process
listens where other machines or users could connect.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from uuid import uuid4

from torch._C._distributed_c10d import FileStore
from torch.distributed.elastic.agent.server.api import WorkerSpec
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException
from torch.distributed.elastic.rendezvous import RendezvousInfo, RendezvousStoreInfo
from torch.distributed.elastic.rendezvous.static_tcp_rendezvous import StaticTCPRendezvous

from mvc.distributed.runner.ranks import TRAINING, store_of_command
from mvc.errors import CannotDistribute, UnknownPath
from mvc.system import cpu_count, import_path

_SHUTDOWN = 5  # seconds between SIGTERM and SIGKILL
_SECONDS = 60  # seconds that torch's agent waits for its store


class FileRendezvous(StaticTCPRendezvous):
    """The rendezvous of a single torch agent. Uses a file as store, so that no port is opened."""

    def __init__(self, folder: str) -> None:
        super().__init__("localhost", 0, 0, 1, run_id=uuid4().hex[:12], timeout=_SECONDS)
        self._folder = folder

    def next_rendezvous(self) -> RendezvousInfo:
        store = FileStore(f"{self._folder}/agent", 1)
        return RendezvousInfo(store, 0, 1, RendezvousStoreInfo("localhost", 0))


def launch(
    script: str,
    arguments: Sequence[str],
    workers: int,
    settings: Mapping[str, Any],
    *,
    level: int = logging.INFO,
) -> dict[str, Any]:
    """Runs ``script`` in ``workers`` processes until all end. Returns the report of rank 0.

    ``level``: the lowest level of log messages that the processes write to stderr. Raises
    UnknownPath if there is no script, and CannotDistribute if the training failed.
    """
    if not Path(script).is_file():
        raise UnknownPath(f"there is no file {script}")
    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)
    try:
        with TemporaryDirectory(prefix="mvc-training-") as folder:
            variables = {
                TRAINING: json.dumps({"folder": folder, "settings": settings, "level": level}),
                "PYTHONPATH": import_path(),
                "GLOO_SOCKET_IFNAME": next(
                    name for _, name in socket.if_nameindex() if name.startswith("lo")
                ),
                "OMP_NUM_THREADS": os.environ.get(
                    "OMP_NUM_THREADS", str(max(1, cpu_count() // workers))
                ),
            }
            # -P: a file of the working folder must not hide a package of the same name.
            command = [
                sys.executable,
                "-P",
                "-m",
                "mvc.distributed.runner.script",
                script,
                *arguments,
            ]
            spec = WorkerSpec(
                role="worker",
                local_world_size=workers,
                entrypoint="/usr/bin/env",
                args=(
                    "-uMASTER_ADDR",
                    "-uMASTER_PORT",
                    *(f"{name}={value}" for name, value in variables.items()),
                    *command,
                ),
                rdzv_handler=FileRendezvous(folder),
                max_restarts=0,
            )
            agent = LocalElasticAgent(
                spec, DefaultLogsSpecs(log_dir=folder), shutdown_timeout=_SHUTDOWN
            )
            result = agent.run()
            store = store_of_command(folder, workers)
            if store.check(["failed"]):
                reason = store.get("failed").decode(errors="replace")
                raise CannotDistribute(
                    reason,
                    hint="-O resume=true resumes from the last global model, if one exists",
                )
            if result.is_failed():
                rank, failure = min(result.failures.items(), key=lambda item: item[1].timestamp)
                code = failure.exitcode
                cause = f"failed with exit code {code}: see its output above"
                if code < 0:
                    cause = f"was killed by {signal.Signals(-code).name}"
                raise CannotDistribute(f"rank {rank} {cause}")
            if not store.check(["left"]):
                raise CannotDistribute(
                    f"{script} has not trained",
                    hint="train in 'with mvc.distributed.join(model) as worker:'",
                )
            return dict(json.loads(store.get("left")))
    # The folder is already removed. End as this signal ends a program without a handler.
    except SignalException as error:
        if error.sigval == signal.SIGINT:
            raise KeyboardInterrupt from None
        signal.signal(error.sigval, signal.SIG_DFL)
        os.kill(os.getpid(), error.sigval)
        raise
