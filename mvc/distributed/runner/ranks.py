"""Exchanges bytes between the processes of a distributed training.

Rank 0 is the coordinator. In an exchange, all processes wait for one another, send bytes to rank 0,
and receive bytes from rank 0, through a gloo group of torch.distributed. To call for the next
exchange, a process writes the number of this exchange into torch's key-value store. Each process
also counts in the store to how many exchanges it has come, so that errors can name missing
processes.
"""

from __future__ import annotations

import json
import math
import os
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FileStore, PrefixStore, TCPStore

from mvc.errors import BadMessage, CannotDistribute, WrongUsage
from mvc.system import host_name

TRAINING = "MVC_TRAINING"
"""Environment variable of ``mvc train-distributed`` with a folder and settings, as JSON."""

_INTERVAL = 10.0  # seconds after which an exchange begins even without messages
_MARGIN = 10.0  # seconds added to the timeout, in torch's time limit and in ``_guarded``
_ROLL_CALL = 5.0  # seconds in which a live process notices that another process has ended
_CHECK = 0.005  # minimum seconds between two checks for a call
_SHARE = 20  # minimum pause as a multiple of the duration of a check

_joined: Counter[str] = Counter()


class TrainingFailed(CannotDistribute):
    """The training has failed, and all processes have received the reason."""


class Ranks:
    """One process of a training.

    ``training``: number of the training among all trainings of the process group, from 1.
    ``number``: how many exchanges have begun.
    """

    def __init__(self, group: dist.ProcessGroup | None, device: str, timeout: float) -> None:
        """Waits for the other processes. Raises WrongUsage and CannotDistribute."""
        self._timeout, limit = timeout, timedelta(seconds=timeout + _MARGIN)
        self._interval = min(_INTERVAL, timeout / 2)
        if group is None and dist.is_initialized():
            group = dist.group.WORLD
        if group is None:
            store, self.rank, self.size = _store(limit)
        else:
            if dist.get_backend(group) == "nccl" and device != "cuda":
                raise WrongUsage(
                    f"the process group uses nccl, but the model is on the {device}",
                    hint="move the model to cuda, or use a gloo group",
                )
            store, self.rank, self.size = group.get_group_store(), group.rank(), group.size()
        name = group.group_name if group else ""
        _joined[name] += 1
        self.training = _joined[name]
        place = _place(self.size, self.training)
        self._store = PrefixStore(place, store)
        self._owns_group = group is None
        self.number, self._until = 0, math.inf
        self._started = self._checked = time.monotonic()
        self._pause = _CHECK
        threading.Thread(target=self._guard, name="mvc-guard", daemon=True).start()
        with self._guarded():
            self._store.set(f"name/{self.rank}", f"{os.getpid()} on {host_name()}")
            self._store.add("call", 0)
            self.meet()
            if group is None:
                dist.init_process_group(
                    "cpu:gloo,cuda:nccl" if device == "cuda" else "gloo",
                    store=PrefixStore(f"{place}/group", store),
                    rank=self.rank, world_size=self.size, timeout=limit,
                )  # fmt: skip
            ranks = dist.get_process_group_ranks(group)
            self._group = dist.new_group(
                ranks, timeout=limit, backend="gloo", use_local_synchronization=True
            )

    # -- the store -----------------------------------------------------------------------------

    def call(self) -> None:
        """Calls all processes, including this process, to the next exchange."""
        with self._guarded():
            self._store.set("call", str(self.number + 1))
        self._checked = -math.inf

    def count(self, name: str, amount: int) -> int:
        """Increases a counter shared by all processes; returns its new value."""
        with self._guarded():
            return int(self._store.add(name, amount))

    def called(self) -> bool:
        """Whether a process has called for the next exchange.

        To save time, asks the store only if the previous query was some time ago. Otherwise returns
        False.
        """
        now = time.monotonic()
        if now < self._checked + self._pause:
            return False
        with self._guarded():
            if now > self._started + self._interval:
                self.call()
            called = int(self._store.get("call")) > self.number
        self._checked = time.monotonic()
        self._pause = max(_CHECK, _SHARE * (self._checked - now))
        return called

    def meet(self) -> None:
        """Waits until all processes have come to the next exchange. Calls the missing processes
        after some seconds.

        Raises CannotDistribute, which names the processes that do not come in time.
        """
        store, wanted, pause = self._store, self.number + 1, 0.0
        began = time.monotonic()
        with self._guarded():
            store.add(f"came/{self.rank}", 1)
            store.add("came", 1)
            while int(store.get("came")) < self.size * wanted:
                if store.check(["failed"]):
                    raise TrainingFailed(store.get("failed").decode(errors="replace"))
                waited = time.monotonic() - began
                if waited > self._interval:
                    self.call()
                if waited > self._interval + self._timeout:
                    raise CannotDistribute(self._missing(wanted, "did not join the exchange"))
                pause = min(0.02, pause + 0.0003)
                time.sleep(pause)
        self.number, self._started = wanted, time.monotonic()

    def _missing(self, wanted: int, problem: str) -> str:
        """Names the missing processes. Sends SIGCONT to the missing processes on this host.

        A process that was stopped continues, then notices the failure, and ends.
        """
        store, late = self._store, []
        for rank in range(self.size):
            known = store.check([f"came/{rank}"])
            if not known or int(store.get(f"came/{rank}")) < wanted:
                name = store.get(f"name/{rank}").decode(errors="replace") if known else "unknown"
                late.append(f"rank {rank} (process {name})")
                process, _, host = name.partition(" on ")
                if host == host_name():
                    with suppress(OSError):
                        os.kill(int(process), signal.SIGCONT)
        return f"{', '.join(late[:5]) or 'a rank'} {problem} within {self._timeout:g} seconds"

    def fail(self, reason: str) -> None:
        """Ends the training of all processes. The first reason is reported."""
        with suppress(CannotDistribute), self._guarded():
            self._store.compare_set("failed", "", reason)
            self.call()
        self.close()

    def farewell(self) -> None:
        """Ends the exchanges. Rank 0 may run the store, so rank 0 waits for all other processes."""
        until, finished = time.monotonic() + self._timeout, self.count("gone", 1)
        while self.rank == 0 and finished < self.size and time.monotonic() < until:
            time.sleep(_CHECK)
            finished = self.count("gone", 0)

    def leave(self, report: str) -> None:
        """Stores a report for ``mvc train-distributed``."""
        with suppress(RuntimeError):  # the store may have been closed
            self._store.set("left", report)

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        """Raises CannotDistribute for errors of communication. Ends the process if the block
        hangs.
        """
        before = self._until
        self._until = min(before, time.monotonic() + self._timeout + _INTERVAL + _MARGIN)
        try:
            yield
        except RuntimeError as error:
            raise self._failure(error) from None
        finally:
            self._until = before

    def _failure(self, error: RuntimeError) -> CannotDistribute:
        """Finds out why a collective operation failed.

        The operation fails in all live processes, so all live processes call this method and count
        themselves in the store. A process that is not counted is missing.
        """
        self._hang_up()
        until, store = time.monotonic() + _ROLL_CALL, self._store
        with suppress(RuntimeError):
            wanted = store.add(f"came/{self.rank}", 1)
            total = store.add("came", 1)
            while total < self.size * wanted and time.monotonic() < until:
                if store.check(["failed"]):
                    return TrainingFailed(store.get("failed").decode(errors="replace"))
                time.sleep(_CHECK)
                total = int(store.get("came"))
            return CannotDistribute(self._missing(wanted, "has ended or did not answer"))
        reason = str(error).splitlines()[0]
        return CannotDistribute(f"rank {self.rank} cannot reach the store of rank 0: {reason}")

    def _guard(self) -> None:
        while self._until > 0:
            time.sleep(1.0)
            if time.monotonic() > self._until > 0:
                sys.stderr.write(f"mvc: rank {self.rank} cannot reach the other ranks\n")
                sys.stderr.flush()
                os._exit(3)

    # -- bytes ---------------------------------------------------------------------------------

    def collect(self, data: bytes, most: int, number: int) -> list[tuple[bytes, int]]:
        """Sends the bytes and the number of every process to rank 0.

        Rank 0 returns the pair (bytes, number) of each process. Other ranks return an empty list.
        """
        head = torch.tensor([len(data), number])
        heads = [torch.empty_like(head) for _ in range(self.size)] if self.rank == 0 else None
        with self._guarded():
            dist.gather(head, heads, group=self._group, group_dst=0)
            if heads is None:
                if data:
                    dist.send(_tensor(data), group=self._group, group_dst=0)
                return []
            pairs = [header.tolist() for header in heads[1:]]
            received = [self._receive(n + 1, length, most) for n, (length, _) in enumerate(pairs)]
            numbers = [other for _, other in pairs]
            return [(data, number), *zip(received, numbers, strict=True)]

    def spread(self, parts: Sequence[bytes], most: int) -> tuple[bytes, bool]:
        """Rank 0 sends one of ``parts`` to each process.

        Returns the part of this process, and whether any part is not empty.
        """
        sizes = torch.zeros(self.size, dtype=torch.int64)
        if self.rank == 0:
            sizes[:] = torch.tensor([len(part) for part in parts])
        with self._guarded():
            dist.broadcast(sizes, group=self._group, group_src=0)
            if self.rank != 0:
                return self._receive(0, int(sizes[self.rank]), most), bool(sizes.any())
            works = [
                dist.isend(_tensor(part), group=self._group, group_dst=rank)
                for rank, part in enumerate(parts)
                if rank and part
            ]
            for work in works:
                assert work is not None
                work.wait()
        return parts[0], bool(sizes.any())

    def _receive(self, rank: int, length: int, most: int) -> bytes:
        """Receives ``length`` bytes from rank ``rank``. If these are more than ``most``, raises
        BadMessage before allocating memory.
        """
        if not 0 <= length <= most:
            raise BadMessage(f"rank {rank} sends {length} bytes: at most {most} are allowed")
        data = torch.empty(length, dtype=torch.uint8)
        if length:
            dist.recv(data, group=self._group, group_src=rank)
        return data.numpy().tobytes()

    def close(self) -> None:
        """Leaves the training without waiting for other processes."""
        self._until = -math.inf
        self._hang_up()

    def _hang_up(self) -> None:
        with suppress(
            AttributeError, ValueError, AssertionError
        ):  # the group was closed, or never created
            dist.destroy_process_group(self._group)
            if self._owns_group:
                dist.destroy_process_group()


def store_of_command(folder: str, size: int) -> Any:
    """The store in which the processes of ``mvc train-distributed`` leave a failure or a report.

    The number of processes must not be passed to FileStore: a FileStore with this number removes
    its file when the last process ends.
    """
    return PrefixStore(_place(size, 1), FileStore(f"{folder}/store"))


def _place(size: int, number: int) -> str:
    """The prefix of a training's keys in the store.

    The store may outlive a restart of all processes. So the prefix contains the number of restarts.
    torch's agents do not count a restart that changes the number of processes. So the prefix
    contains the number of processes, too.
    """
    restarts = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    return f"mvc/{restarts}/{size}/{number}"


def _tensor(data: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)


def _store(limit: timedelta) -> tuple[Any, int, int]:
    """The store that the environment variables name, and the rank and size."""
    environment = os.environ
    try:
        rank, size = int(environment["RANK"]), int(environment["WORLD_SIZE"])
        if TRAINING in environment:
            return FileStore(f"{json.loads(environment[TRAINING])['folder']}/store"), rank, size
        host, port = environment["MASTER_ADDR"], int(environment["MASTER_PORT"])
        if not (host and 0 <= rank < size and 0 <= port < 1 << 16):
            raise ValueError
    except (KeyError, ValueError):
        raise WrongUsage(
            "there is neither a process group of torch.distributed nor a valid RANK, "
            "WORLD_SIZE, MASTER_ADDR and MASTER_PORT",
            hint="start the script with torchrun, or 'mvc train-distributed SCRIPT --workers 4'",
        ) from None
    serves = rank == 0 and environment.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
    try:
        store = TCPStore(
            host, port, is_master=serves, wait_for_workers=False, timeout=limit, multi_tenant=True
        )
    except RuntimeError as error:
        raise CannotDistribute(
            f"rank {rank} cannot reach {host}:{port}: {str(error).splitlines()[0]}"
        ) from None
    return store, rank, size
