"""A whole training in the threads of this process: real links, no time spent on imports."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mvc.api.repository import Repository
from mvc.distributed.protocols import base
from mvc.distributed.protocols.base import VectorLayout
from mvc.distributed.runner.coordinator import Service
from mvc.distributed.runner.layout import ModelLayout
from mvc.distributed.runner.participant import Participant
from mvc.distributed.runner.settings import protocol_of
from mvc.distributed.simulator import parse_event, replay
from tests.distributed.runner.small import Trainer

Loop = Callable[[Participant, Trainer], object]


def ordinary(worker: Participant, trainer: Trainer) -> None:
    for batch in worker.batches(trainer.stream):
        trainer.step(batch)


class Team:
    """``run`` returns what became of each worker: None, or the exception that ended it."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        if not (folder / ".mvc").exists():
            Repository.init(folder).close()
        self.folder = folder
        self.settings = {"repo": str(folder), **settings}
        self.events: list[dict[str, Any]] = []
        self.failure: Exception | None = None
        self._ports: queue.Queue[int | None] = queue.Queue()

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [event for event in self.events if event["event"] == kind]

    @property
    def finished(self) -> dict[str, Any]:
        return self.of("finished")[0]

    def run(
        self,
        trainers: Sequence[Trainer],
        loop: Loop = ordinary,
        ranks: Sequence[int] | None = None,
        **job: Any,
    ) -> list[BaseException | None]:
        outcomes: list[BaseException | None] = [None] * len(trainers)
        full = {"workers": len(trainers), "settings": self.settings, **job}
        service = threading.Thread(target=self._serve, args=(full,))
        service.start()
        port = self._ports.get()
        if port is not None:
            places = [(rank, full["workers"]) for rank in ranks or range(len(trainers))]

            def work(number: int) -> None:
                try:
                    model = trainers[number].model
                    where = (f"127.0.0.1:{port}", places[number])
                    with Participant(
                        model, ModelLayout.of(model), *where, settings={}, timeout=20.0
                    ) as worker:
                        loop(worker, trainers[number])
                except BaseException as error:
                    outcomes[number] = error

            threads = [threading.Thread(target=work, args=(n,)) for n in range(len(trainers))]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(60)
                assert not thread.is_alive()
        service.join(60)
        assert not service.is_alive()
        return outcomes

    def _serve(self, job: dict[str, Any]) -> None:
        try:
            Service(job, self.tell).run()
        except Exception as error:
            self.failure = error
            self._ports.put(None)

    def tell(self, event: str, **fields: Any) -> None:
        self.events.append({"event": event, **fields})
        if event == "listening":
            self._ports.put(fields["port"])


def global_models(folder: Path, target: str = "global") -> list[dict[str, torch.Tensor]]:
    """Every model that was deployed, in order."""
    with Repository.open(folder) as repo:
        commits = [deployed.commit for deployed in repo.deployments(target)]
        return [repo.checkout(commit, path="model.safetensors") for commit in commits]


def replayed(
    log: Sequence[Any], trainers: Sequence[Trainer], **settings: Any
) -> tuple[base.Coordinator, list[dict[str, torch.Tensor]]]:
    """The same training in the simulator: its coordinator, and the global models in order."""
    layout = ModelLayout.of(trainers[0].model)
    kind = VectorLayout(layout.length, layout.measured, np.dtype(np.float32), layout.digest)
    protocol = protocol_of(settings)
    first, carried = layout.read(trainers[0].model), layout.unpack(layout.pack(trainers[0].model))
    coordinator = protocol.coordinator(first, range(len(trainers)), kind)
    vectors = [layout.read(trainer.model) for trainer in trainers]
    workers = [protocol.worker(number, vector, kind) for number, vector in enumerate(vectors)]
    streams = [iter(trainer.stream) for trainer in trainers]
    models = [first]

    def train(number: int) -> None:
        trainer = trainers[number]
        layout.write(trainer.model, workers[number].model)
        trainer.step(next(streams[number]))
        workers[number].model[:] = layout.read(trainer.model)

    def keep(hub: base.Coordinator) -> None:
        models.append(hub.reference.copy())

    replay([parse_event(line) for line in log], coordinator, workers, train, keep)
    return coordinator, [layout.state(vector, carried) for vector in models]
