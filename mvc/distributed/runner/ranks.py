"""The processes of one training: where they meet, and the bytes that they exchange.

Rank 0 is the coordinator's. Bytes go through a gloo group. The store holds counters: how often each
process has come to an exchange, and which exchange has been called. So whoever is missing is known.
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
"""The variable by which the command hands on a folder and settings, as JSON."""

_INTERVAL = 10.0  # seconds after which all processes meet, though nobody has anything to say
_MARGIN = 10.0  # seconds for the start of a process, and beyond the time limit of torch
_ROLL_CALL = 5.0  # seconds in which a process that lives notices that another one has gone
_CHECK = 0.005  # seconds between two looks for a call, at least
_SHARE = 20  # so many times longer than such a look takes, at least

_joined: Counter[str] = Counter()


class TrainingFailed(CannotDistribute):
    """The training has failed, and all processes know why."""


class Ranks:
    """One process's part. ``training``: its number in the group, from 1; ``number``: of the next
    exchange.
    """

    def __init__(self, group: dist.ProcessGroup | None, device: str, timeout: float) -> None:
        """Meets the other processes. Raises WrongUsage and CannotDistribute."""
        self._timeout, limit = timeout, timedelta(seconds=timeout + _MARGIN)
        self._interval = min(_INTERVAL, timeout / 2)
        if group is None and dist.is_initialized():
            group = dist.group.WORLD
        if group is None:
            store, self.rank, self.size = _store(limit)
        else:
            if dist.get_backend(group) == "nccl" and device != "cuda":
                raise WrongUsage(f"the process group is of nccl, and the model is on the {device}")
            store, self.rank, self.size = group.get_group_store(), group.rank(), group.size()
        name = group.group_name if group else ""
        _joined[name] += 1
        self.training = _joined[name]
        place = _place(self.size, self.training)
        self._store = PrefixStore(place, store)
        self._made = group is None
        self.number, self._until = 0, math.inf
        self._begun = self._looked = time.monotonic()
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
        """Calls all processes to the next exchange; this one comes at once."""
        with self._guarded():
            self._store.set("call", str(self.number + 1))
        self._looked = -math.inf

    def count(self, name: str, amount: int) -> int:
        """A counter that all processes raise, after this."""
        with self._guarded():
            return int(self._store.add(name, amount))

    def called(self) -> bool:
        """Whether the next exchange is called. It asks the store seldom."""
        now = time.monotonic()
        if now < self._looked + self._pause:
            return False
        with self._guarded():
            if now > self._begun + self._interval:
                self.call()
            called = int(self._store.get("call")) > self.number
        self._looked = time.monotonic()
        self._pause = max(_CHECK, _SHARE * (self._looked - now))
        return called

    def meet(self) -> None:
        """Waits until all processes have come to the next exchange, and calls them after a while.

        Raises CannotDistribute, which names those that do not come in time.
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
                    raise CannotDistribute(self._missing(wanted, "did not come"))
                pause = min(0.02, pause + 0.0003)
                time.sleep(pause)
        self.number, self._begun = wanted, time.monotonic()

    def _missing(self, wanted: int, how: str) -> str:
        """Names those that have not come. Those that are stopped on this host are woken up, and
        end as the others do.
        """
        store, late = self._store, []
        for rank in range(self.size):
            known = store.check([f"came/{rank}"])
            if not known or int(store.get(f"came/{rank}")) < wanted:
                name = store.get(f"name/{rank}").decode(errors="replace") if known else "not there"
                late.append(f"rank {rank} (process {name})")
                process, _, host = name.partition(" on ")
                if host == host_name():
                    with suppress(OSError):
                        os.kill(int(process), signal.SIGCONT)
        return f"{', '.join(late[:5]) or 'a rank'} {how} within {self._timeout:g} seconds"

    def fail(self, reason: str) -> None:
        """Ends the training of all processes. The first reason counts."""
        with suppress(CannotDistribute), self._guarded():
            self._store.compare_set("failed", "", reason)
            self.call()
        self.close()

    def part(self) -> None:
        """The last word; rank 0, whose store it may be, ends after the others."""
        until, gone = time.monotonic() + self._timeout, self.count("gone", 1)
        while self.rank == 0 and gone < self.size and time.monotonic() < until:
            time.sleep(_CHECK)
            gone = self.count("gone", 0)

    def leave(self, report: str) -> None:
        """Leaves a report for the command."""
        with suppress(RuntimeError):  # only its store is sure to be there
            self._store.set("left", report)

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        """Raises what keeps this process from the others; ends it if it waits for ever."""
        before = self._until
        self._until = min(before, time.monotonic() + self._timeout + _INTERVAL + _MARGIN)
        try:
            yield
        except RuntimeError as error:
            raise self._lost(error) from None
        finally:
            self._until = before

    def _lost(self, error: RuntimeError) -> CannotDistribute:
        """Why a collective failed: those that live come here too, and say so."""
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
            return CannotDistribute(self._missing(wanted, "has gone or did not answer"))
        reason = str(error).splitlines()[0]
        return CannotDistribute(f"rank {self.rank} does not reach the store of rank 0: {reason}")

    def _guard(self) -> None:
        while self._until > 0:
            time.sleep(1.0)
            if time.monotonic() > self._until > 0:
                sys.stderr.write(f"mvc: rank {self.rank} does not reach the others\n")
                sys.stderr.flush()
                os._exit(3)

    # -- bytes ---------------------------------------------------------------------------------

    def collect(self, data: bytes, most: int, number: int) -> list[tuple[bytes, int]]:
        """Rank 0 gets the bytes and the number of every process; others get nothing."""
        head = torch.tensor([len(data), number])
        heads = [torch.empty_like(head) for _ in range(self.size)] if self.rank == 0 else None
        with self._guarded():
            dist.gather(head, heads, group=self._group, group_dst=0)
            if heads is None:
                if data:
                    dist.send(_tensor(data), group=self._group, group_dst=0)
                return []
            pairs = [each.tolist() for each in heads[1:]]
            received = [self._receive(n + 1, length, most) for n, (length, _) in enumerate(pairs)]
            numbers = [given for _, given in pairs]
            return [(data, number), *zip(received, numbers, strict=True)]

    def spread(self, parts: Sequence[bytes], most: int) -> tuple[bytes, bool]:
        """Every process gets its part of what rank 0 has; and whether any part is not empty."""
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
        """So many bytes of another process. Raises BadMessage before memory is taken for more."""
        if not 0 <= length <= most:
            raise BadMessage(f"rank {rank} sends {length} bytes: at most {most} can be meant")
        data = torch.empty(length, dtype=torch.uint8)
        if length:
            dist.recv(data, group=self._group, group_src=rank)
        return data.numpy().tobytes()

    def close(self) -> None:
        """Leaves the others; no other process waits for this one."""
        self._until = -math.inf
        self._hang_up()

    def _hang_up(self) -> None:
        with suppress(AttributeError, ValueError, AssertionError):  # it was closed, or never there
            dist.destroy_process_group(self._group)
            if self._made:
                dist.destroy_process_group()


def store_of_command(folder: str, size: int) -> Any:
    """What the processes that the command started have left: why they failed, or a report.

    A FileStore that knows the number of processes would remove its file after the last one.
    """
    return PrefixStore(_place(size, 1), FileStore(f"{folder}/store"))


def _place(size: int, number: int) -> str:
    """Where a training's keys are. The store may outlive a start of all processes; torch's agents
    do not count those for which only the number of processes has changed.
    """
    restarts = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    return f"mvc/{restarts}/{size}/{number}"


def _tensor(data: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)


def _store(limit: timedelta) -> tuple[Any, int, int]:
    """The store that the variables of the environment name, with rank and size."""
    given = os.environ
    try:
        rank, size = int(given["RANK"]), int(given["WORLD_SIZE"])
        if TRAINING in given:
            return FileStore(f"{json.loads(given[TRAINING])['folder']}/store"), rank, size
        host, port = given["MASTER_ADDR"], int(given["MASTER_PORT"])
        if not (host and 0 <= rank < size and 0 <= port < 1 << 16):
            raise ValueError
    except (KeyError, ValueError):
        raise WrongUsage(
            "there is neither a process group of torch.distributed nor a valid RANK, "
            "WORLD_SIZE, MASTER_ADDR and MASTER_PORT",
            hint="start it by torchrun, or by 'mvc train-distributed SCRIPT --workers 4'",
        ) from None
    serves = rank == 0 and given.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
    try:
        store = TCPStore(
            host, port, is_master=serves, wait_for_workers=False, timeout=limit, multi_tenant=True
        )
    except RuntimeError as error:
        raise CannotDistribute(
            f"rank {rank} does not reach {host}:{port}: {str(error).splitlines()[0]}"
        ) from None
    return store, rank, size
