"""The flow with a server: nodes save what they derive there, and it gives all ten models back.

The server's machine trains U1 and U2 into the repository that ``mvc serve`` serves. Each node is
a process with a repository of its own: it clones the model that it begins with, saves four of
its own on a branch ``nodes/N/models`` and pushes each. In the end a process with nothing but the
server's address recovers every model. Of a model: ``stored`` is by how many bytes the server's
repository has grown, ``wire`` are the bytes that its push took, ``fetched`` those of recovering
it, ``deployed`` those of bringing it to the node that begins with it; each in both directions, TLS
included. ``save`` ends when the server has the model durably, ``recover`` begins with a clone.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypedDict

import mvc
from mvc import Repository
from mvc.errors import DamagedData
from mvc.ids import CommitId

from ..workspace import Progress, bytes_in, empty_folder
from .approaches import Approach, Model, Steps, changed_tensors
from .flow import BASES, Experiment, Models
from .measure import Run, warm_up
from .serving import Server, serving
from .sites import Site

__all__ = ["FIGURES", "measure_served"]

FIGURES = (
    *("stored", "wire", "changed", "tensors", "save"),
    *("fetched", "recover", "deployed", "deploy"),
)

Seconds = Mapping[str, float]


class Access(TypedDict):
    """Options of a remote behind https."""

    token_file: str
    ca_file: str


@dataclass(frozen=True)
class Post:
    """What a site works with: its own ``folder``, and how it reaches the server, if it does not
    write into the server's own folder. ``models`` has the ten models that were trained.
    """

    experiment: Experiment
    models: Path
    approach: Approach
    folder: Path
    branch: str | None = None
    url: str = ""
    token_file: str = ""
    ca_file: str = ""

    def reached(self, server: Server, name: str, *scopes: str) -> Post:
        """The same, with a token for the server."""
        return replace(
            self, url=server.url, ca_file=str(server.ca_file),
            token_file=str(server.token(name, *scopes)),
        )  # fmt: skip

    def repository(self, use_case: str) -> str:
        """The name of the repository that has a model."""
        return use_case if self.approach.apart else "all"

    @property
    def access(self) -> Access:
        """Options of the remote."""
        return Access(token_file=self.token_file, ca_file=self.ca_file)


def deploy(post: Post, use_case: str, commit: CommitId) -> Seconds:
    """Clones what the server has, with the newest models, and recovers one."""
    steps = Steps()
    name = post.repository(use_case)
    with steps.step("clone"):
        repo = mvc.clone(f"{post.url}/{name}", post.folder / name, states="last:1", **post.access)
    with repo:
        seconds = _recover(post, repo, use_case, commit, before=steps.seconds)
        if post.branch and not post.approach.apart:
            repo.branch(post.branch, str(commit))
    return seconds


def save(post: Post, use_case: str, base: CommitId | None) -> tuple[CommitId, Seconds]:
    """Saves a model; with a URL, until the server has it."""
    name, apart = post.repository(use_case), post.approach.apart
    with Models(post.experiment, post.models) as models:
        state, before = models.state(use_case), BASES[use_case]
        base_state = {} if before is None else models.state(before)
    branch = None if apart else post.branch
    model = Model(use_case, state, None if apart else base, base_state, branch, post.experiment)
    with Repository.open_or_init(post.folder / name) as repo:
        if post.url and not repo.remotes.list():
            repo.remotes.add("origin", f"{post.url}/{name}", **post.access)
        saved = post.approach.save(repo, model)
        begun = time.perf_counter()
        if not post.url:
            return saved.commit, saved.seconds
        repo.push("origin", [branch or "main"])
    return saved.commit, {**saved.seconds, "push": time.perf_counter() - begun}


def recover(post: Post, use_case: str, commit: CommitId) -> Seconds:
    """Recovers a model from the server alone: its history is cloned, states come as needed."""
    steps = Steps()
    name = post.repository(use_case)
    with empty_folder(post.folder / "recovering") as folder:
        with steps.step("clone"):
            repo = mvc.clone(
                f"{post.url}/{name}", folder / name, states="none", lazy=True, **post.access
            )
        with repo:
            return _recover(post, repo, use_case, commit, before=steps.seconds)


def _recover(
    post: Post, repo: Repository, use_case: str, commit: CommitId, *, before: Seconds
) -> Seconds:
    """Recovers a model, and compares every bit; gives the seconds of all steps."""
    recovered = post.approach.recover(repo, commit, post.experiment.architecture)
    with Models(post.experiment, post.models) as models:
        saved = models.state(use_case)
    restored = recovered.network.state_dict()
    if list(restored) != list(saved) or changed_tensors(saved, restored):
        raise DamagedData(f"{use_case} is not what was saved")
    return {**before, **recovered.seconds}


def measure_served(
    models: Models, approach: Approach, folder: Path, progress: Progress = lambda *_: None
) -> Run:
    """Saves the ten models, each where it belongs, and recovers them all from the server.

    Raises DamagedData if a single bit of a recovered network differs.
    """
    served = folder / "served"
    own = Post(models.experiment, models.folder, approach, served)
    for use_case in BASES:
        bare = approach.apart and use_case.startswith("U3")
        if not (served / own.repository(use_case)).exists():
            Repository.init(served / own.repository(use_case), bare=bare).close()
    with ExitStack() as stack:
        server = stack.enter_context(serving(served))
        posts = {"server": own}
        for number in (1, 2):
            name, branch = f"node-{number}", f"nodes/{number}/models"
            node = replace(own, folder=folder / name, branch=branch)
            posts[name] = node.reached(server, name, *_scopes(number, approach))
        reader = replace(own, folder=folder / _READER)
        posts[_READER] = reader.reached(server, _READER, "read")
        flow = _Flow(models, server, posts, stack)
        flow.start(folder / "warm-up")
        for number, use_case in enumerate(BASES, start=1):
            flow.save(use_case)
            progress("saving", number, len(BASES))
        for number, use_case in enumerate(BASES, start=1):
            flow.recover(use_case)
            progress("recovering", number, len(BASES))
    return flow.run


_READER = "reader"


def _scopes(node: int, approach: Approach) -> tuple[str, ...]:
    """What a node may do: read, and push its own models."""
    if approach.apart:
        return "read", f"U3.{node}.*:push:heads/main"
    branches = ("read", f"push:heads/nodes/{node}/*")
    return (*branches, "push:tags/data/*") if approach.retrains else branches


class _Flow:
    """One run: the sites by name with their posts, the versions, and the figures so far."""

    def __init__(
        self, models: Models, server: Server, posts: dict[str, Post], stack: ExitStack
    ) -> None:
        self.posts, self.run = posts, dict[str, dict[str, Any]]()
        self._models, self._server, self._stack = models, server, stack
        self._sites: dict[str, Site] = {}
        self._commits: dict[str, CommitId] = {}

    def start(self, folder: Path) -> None:
        """Starts every site; what a process does once belongs to no model."""
        for name, post in self.posts.items():
            self._sites[name] = self._stack.enter_context(Site(name))
            self._sites[name](warm_up, post.experiment, folder / name)

    def save(self, use_case: str) -> None:
        """Has the site of a model save it. A node first gets the model that it begins with."""
        where = f"node-{use_case[3]}" if use_case.startswith("U3") else "server"
        base = BASES[use_case]
        old = {} if base is None else self._models.state(base)
        state = self._models.state(use_case)
        changed = changed_tensors(old, state)
        if use_case.endswith(".1") and base is not None:
            begun = self._server.counter.bytes
            seconds = self._sites[where](deploy, self.posts[where], base, self._commits[base])
            self.run[base]["deployed"] = self._server.counter.bytes - begun
            self.run[base]["deploy"] = seconds
        before, begun = self._stored(use_case), self._server.counter.bytes
        on = None if base is None else self._commits[base]
        commit, seconds = self._sites[where](save, self.posts[where], use_case, on)
        self._commits[use_case] = commit
        self.run[use_case] = {
            "stored": self._stored(use_case) - before,
            "wire": self._server.counter.bytes - begun,
            "changed": sum(state[key].nbytes for key in changed),
            "tensors": len(changed),
            "save": seconds,
            "deployed": 0,
            "deploy": {},
        }

    def recover(self, use_case: str) -> None:
        """Has the site that has only the server's address recover a model."""
        begun = self._server.counter.bytes
        seconds = self._sites[_READER](
            recover, self.posts[_READER], use_case, self._commits[use_case]
        )
        cell = self.run[use_case]
        cell |= {"fetched": self._server.counter.bytes - begun, "recover": seconds}
        self.run[use_case] = {name: cell[name] for name in FIGURES}

    def _stored(self, use_case: str) -> int:
        name = self.posts["server"].repository(use_case)
        return bytes_in(self._server.folder / name / ".mvc")
