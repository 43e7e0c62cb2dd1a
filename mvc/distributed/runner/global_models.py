"""The global models of a training as versions of a repository."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from msgspec import Struct

from mvc.distributed.runner.layout import Carried, ModelLayout, Vector
from mvc.errors import Busy, CannotDistribute, NoDeployment, UnknownRevision, UnknownTarget
from mvc.ids import CommitId
from mvc.names import DEFAULT_STATE, check_ref
from mvc.repo.commit.request import CommitOptions
from mvc.repo.lookup.refs import HEAD
from mvc.repo.recording import deploying_notice
from mvc.repo.statements.protection import DeployGuard
from mvc.training.pushing import Pusher

if TYPE_CHECKING:
    from mvc.api import Repository


_OWN = "model.coordinator.safetensors"
_MEMORY = "memory."
_SECONDS = 2.0  # longer than a coordinator that was told to end needs for it
_KNOWN = ("round", "change")  # of the memory, what follows from the versions


class Round(Struct, frozen=True):
    """A round that has ended: ``number`` rounds are done, and ``vector`` is the global model.

    ``steps``: how many steps each worker had trained. ``up`` and ``down`` are the bytes of all
    messages since the training began. ``memory``: what the coordinator needs to go on.
    """

    number: int
    vector: Vector
    carried: Carried
    steps: Sequence[int]
    subrounds: int = 0
    up: int = 0
    down: int = 0
    memory: Mapping[str, Any] = {}


@contextmanager
def alone(repo: Repository, target: str) -> Iterator[None]:
    """Keeps other trainings off a target. Raises CannotDistribute if one is there.

    The kernel drops the lock when the process ends, however it ends.
    """
    notice = deploying_notice(repo.context, check_ref("target", target))
    try:
        lock = repo.context.store.fs.lock(notice, timeout=_SECONDS)
    except Busy:
        raise CannotDistribute(
            f"another training deploys to {target} in this repository",
            hint="wait until it has ended, or name another --target",
        ) from None
    with lock:
        yield


class GlobalModels:
    """Commits rounds onto a branch and deploys them; reads the newest one back."""

    def __init__(
        self,
        repo: Repository,
        *,
        target: str,
        branch: str | None,
        params: Mapping[str, Any],
        pusher: Pusher | None = None,
    ) -> None:
        """``pusher`` pushes the branch, behind the commits."""
        self._repo, self.target, self._params = repo, target, params
        self._branch = branch
        self._pusher = pusher
        self._guards: dict[str, DeployGuard] = {}

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
            deploy=self.target,
            options=self._options(self._branch, self.target),
        )
        return result.id

    def push(self) -> None:
        """Has the pusher go on to what was committed; it waits for nothing."""
        if self._pusher is not None:
            self._pusher.committed()

    def resumed(self) -> None:
        """The training goes on from what is there: what the remote lacks of it is pushed."""
        if self._pusher is not None:
            self._pusher.resumed(self._repo)

    def commit_local(self, state: Mapping[str, torch.Tensor], *, worker: int, number: int) -> None:
        """Commits a worker's model at the end of a round, and deploys it to ``worker-I``."""
        name = f"worker-{worker}"
        self._repo.commit(
            state,
            message=f"round {number}, {name}",
            metrics={"round": number, "worker": worker},
            params=self._params,
            deploy=name,
            options=self._options(name, name),
        )

    def _guard(self, target: str) -> DeployGuard:
        if target not in self._guards:
            self._guards[target] = DeployGuard(self._repo.context, target)
        return self._guards[target]

    @property
    def not_deployed(self) -> int:
        """How many versions were not deployed, because somebody else had deployed meanwhile."""
        return sum(guard.left_out for guard in self._guards.values())

    def _options(self, branch: str | None, target: str) -> CommitOptions:
        new = branch is not None and branch not in {ref.name for ref in self._repo.refs()}
        return CommitOptions(branch=branch, new_branch=new, guard=self._guard(target))

    def live(self, layout: ModelLayout) -> Round | None:
        """The round that is live on the target; None if nothing is.

        Raises CannotDistribute if it does not fit the layout or is no round of a training.
        """
        try:
            commit = self._repo.live(self.target).commit
        except (NoDeployment, UnknownTarget):
            return None
        if _OWN not in self._repo.manifest(commit).by_path:
            raise CannotDistribute(
                f"what is live on {self.target}, {commit.short}, is no round of a training",
                hint="name another --target, or leave resume out",
            )
        return self._round(layout, commit)

    def newest_of(self, run: str, layout: ModelLayout) -> Round | None:
        """The newest round of this run on the branch, whatever is live; None without one.

        A round whose deployment was retracted is left out. Deployments go on only if the round is
        live: otherwise somebody else has deployed meanwhile.
        """
        try:
            versions = self._repo.log(self._branch or HEAD)
        except UnknownRevision:  # of a branch without versions
            return None
        for version in versions:
            if version.params.get("run") != run or self._is_retracted(version.id):
                continue
            if _OWN in self._repo.manifest(version.id).by_path:
                self._guard(self.target).go_on_after(version.id)
                return self._round(layout, version.id)
        return None

    def _is_retracted(self, commit: CommitId) -> bool:
        made = [d for d in self._repo.deployments(rev=commit) if d.target == self.target]
        return bool(made) and all(deployed.retracted for deployed in made)

    def _round(self, layout: ModelLayout, commit: CommitId) -> Round:
        version = self._repo.version(commit)
        vector, carried = layout.split(self._repo.checkout(commit, path=DEFAULT_STATE))
        own = self._repo.checkout(commit, path=_OWN)
        number, (up, down) = int(own["round"]), own["bytes"].tolist()
        before, earlier = vector, version
        while number > 0 and earlier.parents:  # others may have committed onto the branch, too
            (parent, *_), earlier = earlier.parents, self._repo.version(earlier.parents[0])
            if earlier.metrics.get("round") == number - 1:
                before, _ = layout.split(self._repo.checkout(parent, path=DEFAULT_STATE))
                break
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
        return Round(
            number=number,
            vector=vector,
            carried=carried,
            steps=own["steps"].tolist(),
            subrounds=int(version.metrics["subrounds"]),
            up=up,
            down=down,
            memory=memory,
        )
