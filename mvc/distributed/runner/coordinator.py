"""The coordinator of a distributed training, a part of the process with rank 0.

Workers train copies of a model. The coordinator averages the copies when the protocol requires it.
The average is called the *global model*. The coordinator commits and deploys each global model
before any worker receives it. So a restarted training resumes from the newest global model.
"""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from typing import Any
from uuid import uuid4

import numpy as np
import torch
from msgspec.structs import asdict

from mvc.api import CommitOptions, RecordingNotice, Repository
from mvc.distributed import messages as m
from mvc.distributed.codecs import VectorLayout
from mvc.distributed.protocols.base import Counts
from mvc.distributed.protocols.named import NamedProtocol
from mvc.distributed.runner.layout import Carried, ModelLayout, Vector
from mvc.errors import (
    BadMessage,
    CannotDistribute,
    MvcWarning,
    NoDeployment,
    UnknownRevision,
    UnknownTarget,
    WrongUsage,
)
from mvc.ids import CommitId
from mvc.names import DEFAULT_STATE
from mvc.text import count
from mvc.training.pushing import Pusher

_LOG = logging.getLogger("mvc.distributed")
_OWN = "model.coordinator.safetensors"
_MEMORY = "memory."


class OddTraining(MvcWarning):
    """A training that works, but is probably not intended."""


class Service:
    """Runs the coordinator of the protocol, and commits and deploys the global models.

    ``resumes``: whether the training continues from a version in the repository. ``vector``: the
    tensors of the global model that are averaged. ``carried``: its other tensors.
    """

    vector: Vector
    carried: Carried

    def __init__(
        self,
        protocol: NamedProtocol,
        settings: Mapping[str, Any],
        layout: ModelLayout,
        workers: int,
        *,
        number: int,
    ) -> None:
        """Opens the repository, and raises the errors of ``Repository.open``.

        ``number``: 1 for the first training of the process group, 2 for the second, and so on.
        """
        if settings.get("worker_models") and protocol.rebalance is not None:
            raise WrongUsage(
                f"with {protocol.name} the coordinator does not know the workers' models",
                hint="remove worker_models, or choose another protocol",
            )
        self._protocol, self._layout, self._workers = protocol, layout, workers
        self._worker_models = settings.get("worker_models", False)
        self._target, self._branch = settings.get("target", "global"), settings.get("branch")
        self._counts, self._memory = Counts(), dict[str, Any]()
        self._steps = [0] * workers
        self._pusher: Pusher | None = None
        with ExitStack() as stack:
            repo = self._repo = stack.enter_context(Repository.open(settings.get("repo", ".")))
            recording = stack.enter_context(
                repo.recording(self._branch, target=self._target, alone=True, new_branch=True)
            )
            self._recordings = {self._target: recording}
            job = os.environ.get("TORCHELASTIC_RUN_ID", "none")
            restarted = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") != "0"
            run = uuid4().hex[:12] if job == "none" else job
            self._run = f"{run}/{self._target}/{number}"
            commit = self._last(
                any_run=settings.get("resume", False) or (restarted and job == "none")
            )
            self.resumes = commit is not None
            if (remote := settings.get("push")) is not None:
                self._pusher = Pusher(repo, remote, self._branch or repo.head().branch)
            if commit is not None:
                self._read(commit)
            self._stack = stack.pop_all()

    def _last(self, any_run: bool) -> CommitId | None:
        """The version to resume from, or None to start a new training.

        If the live version of the target belongs to this run, or ``any_run`` is true, it is the
        live version. Otherwise it is the newest version of this run on the branch.
        """
        with suppress(NoDeployment, UnknownTarget):
            live: CommitId = self._repo.live(self._target).commit
            if any_run or self._repo.version(live).params.get("run") == self._run:
                return live
        with suppress(UnknownRevision):  # a branch without versions
            for version in self._repo.log(f"heads/{self._branch}" if self._branch else "HEAD"):
                if version.params.get("run") == self._run and "subrounds" in version.metrics:
                    self._recordings[self._target].go_on_after(version.id)
                    return version.id
        return None

    def _read(self, commit: CommitId) -> None:
        """Reads the global model and the counts of a version, to resume from this version.

        Raises CannotDistribute if no distributed training made the version, or if the version has
        another model.
        """
        if _OWN not in self._repo.manifest(commit).by_path:
            raise CannotDistribute(
                f"{commit.short}, live on {self._target}, is not a round of a training",
                hint="choose another --target, or remove resume",
            )
        state = self._repo.checkout(commit, path=DEFAULT_STATE)
        self.vector, self.carried = self._layout.split(state)
        own = self._repo.checkout(commit, path=_OWN)
        metrics = self._repo.version(commit).metrics
        number, (up, down) = int(own["round"]), own["bytes"].tolist()
        self._counts = Counts(number, int(metrics["subrounds"]), up=up, down=down)
        self._steps = [*own["steps"].tolist(), *self._steps][: self._workers]
        self._memory = {"round": number} | {
            name.removeprefix(_MEMORY): value.numpy()
            for name, value in own.items()
            if name.startswith(_MEMORY)
        }
        _LOG.info("resumes from round %d", number)
        if self._pusher is not None:
            self._pusher.resumed(self._repo)

    def begin(self, vector: Vector, carried: Carried, steps: int) -> list[int]:
        """Starts the training with the model of rank 0, unless the training resumes.

        ``steps``: for how many steps worker 0 has trained this model. Returns the number of steps
        of each worker.
        """
        VectorLayout.of(vector)  # raises WrongUsage for numbers that are not finite
        if not self.resumes:
            self.vector, self.carried, self._steps[:1] = vector, carried, [steps]
        self.machine = self._protocol.coordinator(
            self.vector, range(self._workers), self._layout.flat, self._memory
        )
        self.machine.counts, self._radius = self._counts, self.machine.radius
        if not self.resumes:
            self._commit()
        _LOG.info(
            "%s, %s, %s", count(self._workers, "worker"), self._protocol.name, self._described()
        )
        if self._workers == 1:
            _warn("there is only one worker, so nothing is averaged")
        return self._steps

    def answer(self, batch: Sequence[tuple[bytes, int]]) -> list[bytes]:
        """Processes the messages of the workers. Returns the answers for each worker.

        ``batch``: for each worker, its messages and the number of steps that it has trained.
        """
        messages: list[m.Message] = []
        for worker, (data, steps) in enumerate(batch):
            self._steps[worker] = steps
            unpacked = m.unpack(data)
            if any(message.worker != worker for message in unpacked):
                raise BadMessage(f"worker {worker} sent a message of another worker")
            messages += unpacked
        machine = self.machine
        before, rounds = machine.reference, machine.counts.rounds
        answers = machine.on_messages(messages) if messages else []
        if machine.counts.rounds > rounds:
            if self._worker_models:
                self._commit_workers(before)
            self._commit()
        if machine.radius != self._radius:
            self._radius = machine.radius
            _LOG.info("measured %s", self._described())
        return [
            m.pack(answer for answer in answers if answer.worker == worker)
            for worker in range(self._workers)
        ]

    def _described(self) -> str:
        parameters = self.machine.reference[: self._layout.flat.measured]
        return self._protocol.describe(parameters, self._radius)

    def _commit(self) -> None:
        """Commits and deploys the global model. The commit is durable when the call returns."""
        counts, memory = self.machine.counts, self.machine.memory()
        number = counts.rounds
        own = {
            "round": torch.tensor(number),
            "steps": torch.tensor(self._steps),
            "bytes": torch.tensor([counts.up, counts.down]),
            **{
                _MEMORY + name: torch.from_numpy(np.array(value))
                for name, value in memory.items()
                if name != "round" and np.any(value)
            },
        }
        commit = self._repo.commit(
            self._layout.state(self.machine.reference, self.carried),
            states={_OWN: own},
            message=f"round {number}",
            metrics={
                "round": number,
                "subrounds": counts.subrounds,
                "bytes_up": counts.up,
                "bytes_down": counts.down,
            },
            params={"run": self._run, "protocol": self._protocol.name},
            deploy=self._target,
            options=self._options(self._branch, self._target),
        ).id
        if self._pusher is not None:
            self._pusher.committed()
        level = logging.DEBUG if number else logging.INFO
        _LOG.log(level, f"round {number}: {commit.short}, {counts.bytes:,} bytes so far")

    def _commit_workers(self, before: Vector) -> None:
        """Commits the workers' models at the end of a round.

        The model of worker I is deployed to the target ``worker-I``.
        """
        machine, number = self.machine, self.machine.counts.rounds
        for worker, drift in sorted(machine.averaged.items()):
            local, name = (before + drift).astype(np.float32), f"worker-{worker}"
            self._repo.commit(
                self._layout.state(local, self.carried),
                message=f"round {number}, {name}",
                metrics={"round": number, "worker": worker},
                params={"run": self._run, "protocol": self._protocol.name},
                deploy=name,
                options=self._options(name, name),
            )

    def _options(self, branch: str | None, target: str) -> CommitOptions:
        return CommitOptions(
            branch=branch,
            new_branch=branch is not None,
            recording=self._recording(branch, target),
        )

    def _recording(self, branch: str | None, target: str) -> RecordingNotice:
        if target not in self._recordings:
            notice = self._repo.recording(branch, target=target, new_branch=True)
            self._recordings[target] = self._stack.enter_context(notice)
        return self._recordings[target]

    def report(self) -> dict[str, Any]:
        """The counts of the training.

        Messages and balances are counted since the process started, all other values since the
        training began.
        """
        if len(set(self._steps)) > 1:
            _warn(f"the workers trained on different numbers of batches: {self._steps}")
        left_out = sum(notice.left_out for notice in self._recordings.values())
        counts = self.machine.counts
        return {
            "resumed": self.resumes, "rounds": counts.rounds, "subrounds": counts.subrounds,
            "balances": counts.balances, "bytes_up": counts.up, "bytes_down": counts.down,
            "messages_up": counts.messages_up, "messages_down": counts.messages_down,
            "steps": self._steps, "not_deployed": left_out,
        }  # fmt: skip

    def close(self) -> dict[str, Any] | None:
        """Pushes the remaining versions. Returns the report of the pushes, or None without a
        remote.
        """
        with self._stack:
            if self._pusher is None:
                return None
            self._pusher.finish()
            return asdict(self._pusher.report)


def _warn(text: str) -> None:
    warnings.warn_explicit(text, OddTraining, "mvc distributed", 0)
