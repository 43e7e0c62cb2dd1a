"""Distributed training in a script: ``with mvc.distributed.join(model) as worker:``.

Each worker is a process that trains a copy of the model on its own data. From time to time, the
workers exchange messages, and a new *global model* is computed from all copies. A *round* lasts
from one global model to the next.
"""

from __future__ import annotations

import atexit
import json
import math
import os
import re
import struct
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import zip_longest
from typing import Any, Self, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from safetensors.torch import load, save

from mvc.distributed import messages as m
from mvc.distributed.protocols.base import Worker
from mvc.distributed.runner.coordinator import Service
from mvc.distributed.runner.layout import ModelLayout
from mvc.distributed.runner.ranks import TRAINING, Ranks, TrainingFailed
from mvc.distributed.settings import TIMEOUT, checked, protocol_of
from mvc.errors import CannotDistribute, MvcError, WrongUsage

_Batch = TypeVar("_Batch")

_STEPS = struct.Struct("<Q")
_ABOUT = 1 << 26  # maximum bytes of the description in ``_agree``
_MESSAGES = 1 << 21  # maximum bytes of the messages in an exchange, not counting model vectors


def join(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer | None = None,
    *,
    group: dist.ProcessGroup | None = None,
    **settings: Any,
) -> Participant:
    """Joins a training of several processes. Use the result as a context manager.

    ``group``: the processes that train together; by default all processes. docs/distributed.md
    describes the ``settings`` (``protocol="fgm"``, ``rho=12``, ``repo="models"``,
    ``timeout=120.0``). Raises WrongUsage if this process has neither a process group nor the
    environment variables of a launcher, and CannotDistribute if the training cannot start.
    """
    if not isinstance(model, torch.nn.Module):
        raise WrongUsage(f"model is of type {type(model).__name__}: it must be a torch.nn.Module")
    layout, of_command = ModelLayout.of(model), json.loads(os.environ.get(TRAINING, "{}"))
    settings = checked({**settings, **of_command.get("settings", {})})
    if optimizer is not None and (rate := _rate_of(optimizer)) > 0:
        settings.setdefault("rate", rate)
    device = next(model.parameters()).device.type
    link = Ranks(group, device, settings.get("timeout", TIMEOUT))
    return Participant(link, model, layout, settings)


def _rate_of(optimizer: torch.optim.Optimizer) -> float:
    """The learning rate before schedulers changed it.

    If parameters have several rates, the result is the root mean square over all parameters.
    """
    squares, numbers = 0.0, 0
    for group in optimizer.param_groups:
        count = sum(parameter.numel() for parameter in group["params"])
        squares += count * float(group.get("initial_lr", group["lr"])) ** 2
        numbers += count
    return math.sqrt(squares / max(1, numbers))


class Participant:
    """One process of a training. ``rank``: the worker's number, from 0.

    ``rank`` is -1 in a coordinator that does not train. ``workers``: the number of workers.
    ``steps``: the number of batches that this worker has trained on, including the batches before a
    restart.
    """

    def __init__(
        self,
        link: Ranks,
        model: torch.nn.Module,
        layout: ModelLayout,
        settings: Mapping[str, Any],
    ) -> None:
        self._link, self._model, self._layout = link, model, layout
        first = int(settings.get("coordinator") == "own")
        self.rank, self.workers = link.rank - first, link.size - first
        self.steps = self._skip = self._warming = 0
        self._outbox: list[m.Message] = []
        self._closed = False
        self._machine: Worker | None = None
        self._service: Service | None = None
        atexit.register(self._fail, SystemExit())
        with self._ending_all():
            self._protocol = protocol_of(settings)
            begins = self._agree(settings)
            if not (begins and settings.get("warmup")):
                self._start()
            elif link.rank == 0:
                self._warming = settings["warmup"]
            else:
                while self._continue_warmup(0):
                    pass
                self._start()

    @property
    def round(self) -> int:
        """The number of the current round; 0 before the first round."""
        return 0 if self._machine is None else self._machine.round

    def batches(self, data: Iterable[_Batch]) -> Iterator[_Batch]:
        """Yields the batches of ``data``, and calls ``step`` after each batch.

        After a restart, skips the batches that the last global model was already trained on. So
        ``data`` must return the same batches in the same order.
        """
        for batch in data:
            if self.rank < 0 and not self._warming:
                break
            if self._skip:
                self._skip -= 1
                continue
            yield batch
            self.step()

    def step(self) -> None:
        """Call this method after each step of the optimizer.

        In some calls, all workers exchange messages. Such a call waits for the other workers, and
        may replace the parameters by a new global model. Raises CannotDistribute if the training
        has failed.
        """
        if self._closed:
            raise WrongUsage("this worker has left the training")
        with self._ending_all():
            self.steps += 1
            if self._warming:
                self._warm_up(self._warming - 1)
            elif (machine := self._machine) is not None:
                machine.model[:] = self._layout.read(self._model)
                if self._queue(machine.on_update()):
                    self._link.call()
                while self._link.called() or machine.waiting:
                    self._exchange()

    def close(self) -> None:
        """Waits until all workers are done, and loads the last global model into ``model``."""
        if self._closed:
            return
        link, service, report = self._link, self._service, {}
        with self._ending_all():
            if self._warming:
                self._warm_up(0)
            if self._machine is not None:
                self._queue(self._machine.end())
            while not self._finished:
                self._exchange()
            last = [] if service is None else [service.machine.reference.tobytes()] * link.size
            data, _ = link.spread(last, 4 * self._layout.flat.length)
            self._layout.write(self._model, np.frombuffer(data, np.float32), self._carried)
            if service is not None:
                report = service.report()
            link.farewell()
        self._leave()
        if service is not None:
            link.leave(json.dumps({**report, "push": service.close()}))
        link.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _: object, error: BaseException | None, *__: object) -> None:
        if error is None:
            self.close()
        elif not self._closed:
            self._fail(error)

    # -- start ------------------------------------------------------------------------------------

    def _agree(self, settings: Mapping[str, Any]) -> bool:
        """Returns whether the training is new (not resumed).

        Raises CannotDistribute if this process has other settings or another model than rank 0.
        """
        link = self._link
        choices = [
            # on one line, and without addresses of objects, which differ between processes
            re.sub(r" at 0x\w+|\s+", " ", f"{name}={value}")
            for name, value in sorted(settings.items())
        ]
        lines, parts = [*choices, *self._layout.describe()], list[bytes]()
        if link.rank == 0:
            self._service = Service(
                self._protocol, settings, self._layout, self.workers, number=link.training
            )
            state_text = "goes on" if self._service.resumes else "begins"
            parts = ["\n".join([state_text, *lines]).encode()] * link.size
        state_text, *first_lines = link.spread(parts, _ABOUT)[0].decode().split("\n")
        for own, first in zip_longest(lines, first_lines, fillvalue="nothing"):
            if own != first:
                raise CannotDistribute(
                    f"the trainings differ: this process has {own}, but rank 0 has {first}"
                )
        return state_text == "begins"

    def _continue_warmup(self, left: int) -> bool:
        """Waits for all processes. Returns whether the warm-up continues.

        During the warm-up, only rank 0 trains. ``left``: on rank 0, how many steps are left.
        """
        self._link.meet()
        return self._link.spread([b"w" * bool(left)] * self._link.size, 1)[1]

    def _warm_up(self, left: int) -> None:
        self._warming = left
        if left == 0:
            self._link.call()
        if left == 0 or self._link.called():
            self._continue_warmup(left)
        if left == 0:
            self._start()

    def _start(self) -> None:
        """Commits the first global model, and sends it to all workers."""
        link, layout, service = self._link, self._layout, self._service
        vector, carried = layout.read(self._model), layout.carried_of(self._model)
        steps = list[int]()
        if service is not None:
            trained = service.begin(vector, carried, self.steps if self.rank == 0 else 0)
            steps = [0] * (link.size - self.workers) + trained
            vector, carried = service.vector, service.carried
        # clone, because safetensors refuses tensors that share memory, such as tied weights
        state = save({k: value.clone() for k, value in layout.state(vector, carried).items()})
        parts = [_STEPS.pack(count) + state for count in steps]
        data, _ = link.spread(parts, _STEPS.size + len(state))
        vector, self._carried = layout.split(load(data[_STEPS.size :]))
        layout.write(self._model, vector, self._carried)
        (done,) = _STEPS.unpack_from(data)
        self._skip, self.steps = done - self.steps, done
        if self.rank >= 0:
            self._machine = self._protocol.worker(self.rank, vector, layout.flat)
            self._queue(self._machine.join())
        self._exchange()

    # -- exchanges --------------------------------------------------------------------------------

    @property
    def _finished(self) -> bool:
        if self._service is not None:
            return self._service.machine.finished
        return self._machine is not None and self._machine.finished

    def _queue(self, messages: Iterable[m.Message]) -> bool:
        """Queues messages for the next exchange. Returns whether the exchange must begin at
        once.
        """
        urgent = False
        for message in messages:
            self._outbox.append(message)
            if isinstance(message, m.Increment):
                name = f"risen/{message.round}/{message.subround}"
                urgent |= self._link.count(name, message.amount) > self.workers
            urgent |= isinstance(message, m.Drift) and self._protocol.alarms
        return urgent

    def _exchange(self) -> None:
        """Waits for all processes, then exchanges messages until none is left."""
        link, machine, more = self._link, self._machine, True
        most, idle = _MESSAGES + 16 * self._layout.flat.length, [b""] * (link.size - self.workers)
        link.meet()
        while more:
            batch = link.collect(m.pack(self._outbox), most, self.steps)
            self._outbox, parts = [], list[bytes]()
            if self._service is not None:
                parts = idle + self._service.answer(batch[len(idle) :])
            data, more = link.spread(parts, most)
            for message in m.unpack(data):
                assert machine is not None
                self._queue(machine.on_message(message))
        if machine is not None and machine.changed:
            machine.changed = False
            self._layout.write(self._model, machine.model)

    # -- end --------------------------------------------------------------------------------------

    @contextmanager
    def _ending_all(self) -> Iterator[None]:
        """Ends the training of all processes if the block fails."""
        try:
            yield
        except BaseException as error:
            self._fail(error)
            raise

    def _fail(self, error: BaseException) -> None:
        text = error.message if isinstance(error, MvcError) else f"{type(error).__name__}: {error}"
        if isinstance(error, SystemExit):
            text = "the script ended before its training did"
        if not isinstance(error, TrainingFailed):
            self._link.fail(" ".join(f"rank {self._link.rank}: {text}".split())[:500])
        self._leave()
        if self._service is not None:
            self._service.close()

    def _leave(self) -> None:
        self._closed = True
        atexit.unregister(self._fail)
