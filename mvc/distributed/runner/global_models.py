"""The global models of a training as versions of a repository."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from mvc.dataclasses import dataclass
from mvc.distributed.runner.layout import Carried, ModelLayout, Vector
from mvc.errors import CannotDistribute, NoDeployment, UnknownTarget
from mvc.ids import CommitId
from mvc.model.names import DEFAULT_STATE
from mvc.repo.commit.request import CommitOptions
from mvc.repo.repository import Repository

__all__ = ["GlobalModels", "Round"]

_OWN = "model.coordinator.safetensors"
_MEMORY = "memory."
_KNOWN = ("round", "change")  # of the memory, what follows from the versions


@dataclass(frozen=True)
class Round:
    """A round that has ended: ``number`` rounds are done, and ``vector`` is the global model.

    ``steps``: how many steps each worker had trained. ``up`` and ``down`` are the bytes of all
    messages since the training began. ``memory``: what the coordinator needs to go on.
    """

    number: int
    vector: Vector
    carried: Carried
    steps: Sequence[int]
    subrounds: int
    up: int
    down: int
    memory: Mapping[str, Any]


class GlobalModels:
    """Commits rounds onto a branch and deploys them; reads the newest one back."""

    def __init__(
        self,
        repo: Repository,
        *,
        target: str,
        branch: str | None,
        params: Mapping[str, Any],
    ) -> None:
        self._repo, self._target, self._params = repo, target, params
        self._branch = branch

    def commit(self, layout: ModelLayout, done: Round) -> CommitId:
        """Commits and deploys a round; durable on return."""
        own = {
            "round": torch.tensor(done.number),
            "steps": torch.tensor(list(done.steps)),
            "bytes": torch.tensor([done.up, done.down]),
        }
        for name, value in done.memory.items():
            if name not in _KNOWN and np.any(value):
                own[_MEMORY + name] = torch.from_numpy(np.array(value))
        result = self._repo.commit(
            layout.state(done.vector, done.carried),
            states={_OWN: own},
            message=f"round {done.number}",
            metrics={
                "round": done.number,
                "subrounds": done.subrounds,
                "bytes_up": done.up,
                "bytes_down": done.down,
            },
            params=self._params,
            deploy=self._target,
            options=self._options(self._branch),
        )
        return result.id

    def commit_local(
        self, layout: ModelLayout, worker: int, number: int, vector: Vector, carried: Carried
    ) -> None:
        """Commits a worker's model at the end of a round, and deploys it to ``worker-I``."""
        name = f"worker-{worker}"
        self._repo.commit(
            layout.state(vector, carried),
            message=f"round {number}, {name}",
            metrics={"round": number, "worker": worker},
            params=self._params,
            deploy=name,
            options=self._options(name),
        )

    def _options(self, branch: str | None) -> CommitOptions:
        new = branch is not None and branch not in {ref.name for ref in self._repo.branches()}
        return CommitOptions(branch=branch, new_branch=new)

    def newest(self, layout: ModelLayout, run: str | None) -> Round | None:
        """The round that is live on the target; None if nothing was ever deployed there.

        With ``run`` the newest round of this run, whatever else is live. Raises
        CannotDistribute if there is none, it does not fit the layout or is no round of a training.
        """
        try:
            commit = self._repo.live(target=self._target).commit
        except (NoDeployment, UnknownTarget):
            return None
        if run is not None:
            commit = self._newest_of(run)
        version = self._repo.version(commit)
        if _OWN not in self._repo.manifest(commit).by_path:
            raise CannotDistribute(
                f"what is live on {self._target}, {commit.short}, is no round of a training",
                hint="name another --target, or leave --resume out",
            )
        vector, carried = layout.split(self._repo.checkout(commit, path=DEFAULT_STATE))
        own = self._repo.checkout(commit, path=_OWN)
        number, (up, down) = int(own["round"]), own["bytes"].tolist()
        before = vector
        if number > 0:
            before, _ = layout.split(self._repo.checkout(version.parents[0], path=DEFAULT_STATE))
        memory: dict[str, Any] = {
            "round": number,
            "residual": 0.0,
            "change": vector.astype(np.float64) - before.astype(np.float64),
            "velocity": 0.0,
        }
        memory |= {
            name.removeprefix(_MEMORY): value.numpy()
            for name, value in own.items()
            if name.startswith(_MEMORY)
        }
        subrounds = int(version.metrics["subrounds"])
        steps = own["steps"].tolist()
        return Round(number, vector, carried, steps, subrounds, up, down, memory)

    def _newest_of(self, run: str) -> CommitId:
        """The last deployment of a run's round; others may have deployed here since."""
        for deployed in reversed(list(self._repo.deployments(self._target))):
            if self._repo.version(deployed.commit).params.get("run") == run:
                return deployed.commit
        raise CannotDistribute(
            f"no round of this training is left on {self._target}",
            hint="name another --target, or leave --resume out",
        )
