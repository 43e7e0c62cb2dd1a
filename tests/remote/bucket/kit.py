"""Repositories that share a bucket, and a small history."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TypeVar

import numpy as np
import pytest

from mvc.api.repository import Repository
from mvc.ids import CommitId
from mvc.maintenance.fsck.fsck import fsck
from mvc.remote.fetch import fetch
from mvc.remote.push import Pushed, push
from mvc.remote.refs import PushOptions
from mvc.remote.remotes import Remote, add_remote, remotes
from mvc.remote.transfer import Transferred
from mvc.remote.transports.bucket import transport as transports
from mvc.remote.transports.bucket.objects import Objects
from mvc.repo.config import Config
from mvc.repo.handle import Handle
from mvc.store.store import Store

T = TypeVar("T")
Wrap = Callable[[Objects], Objects]


class Team:
    """Repositories by name, all with the remote ``origin``; ``wrap`` goes around each store."""

    def __init__(self, folder: Path, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.url = folder, url
        self.wrap: Wrap = lambda objects: objects
        self._repos: dict[str, Repository] = {}
        real = transports.objects_of
        monkeypatch.setattr(transports, "objects_of", lambda remote: self.wrap(real(remote)))

    @property
    def remote(self) -> Remote:
        return Remote(self.url, name="origin")

    def __getitem__(self, name: str) -> Repository:
        if name not in self._repos:
            root = self.folder / name
            self.add(name, Repository.open(root) if root.exists() else Repository.init(root))
        return self._repos[name]

    def add(self, name: str, repo: Repository) -> None:
        """Takes a repository in."""
        if not remotes(repo.handle.store):
            add_remote(repo.handle.store, self.remote)
        self._repos[name] = repo

    def commit(self, name: str, step: int, text: str = "") -> CommitId:
        """A version whose weights are those of the step, a little moved."""
        return self[name].commit(state(step), message=text or f"{name} {step}")

    def push(self, name: str, *refs: str, force: bool = False) -> Pushed:
        return push(
            self[name].handle.store,
            self[name].handle.config,
            self.remote,
            refs,
            PushOptions(force=force),
        )

    def fetch(self, name: str) -> Transferred:
        return fetch(self[name].handle.store, self[name].handle.config, self.remote)

    def mirror(self, name: str) -> Path:
        return self.folder / name / ".mvc/remotes/origin/mirror"

    def opened(self, name: str) -> tuple[Store, Config]:
        """The store and the settings of a repository, for a transport."""
        handle = self[name].handle
        return handle.store, handle.config

    def maintain(self, name: str, act: Callable[[Repository], T]) -> T:
        """Runs a verb on the bucket's repository."""
        with closing(transports.open_bucket(self.remote, *self.opened(name))) as transport:
            return transport.maintain(lambda store, config: act(Repository(Handle(store, config))))

    def problems(self, name: str) -> tuple[object, ...]:
        """What fsck finds in the bucket."""
        with closing(transports.open_bucket(self.remote, *self.opened(name))) as transport:
            return transport.inspect(lambda store, _: fsck(store, full=True).problems)

    def close(self) -> None:
        for repo in self._repos.values():
            repo.close()
        self._repos.clear()

    @contextmanager
    def wrapped(self, wrap: Wrap) -> Iterator[None]:
        """Puts a store around those that are opened meanwhile."""
        before, self.wrap = self.wrap, wrap
        try:
            yield
        finally:
            self.wrap = before


def state(step: int, size: int = 3000) -> dict[str, np.ndarray]:
    start = np.random.default_rng(0).standard_normal(size).astype(np.float32)
    return {"w": start + np.float32(step) * np.float32(1e-4), "frozen": start[: size // 2]}


def messages(repo: Repository, rev: str = "HEAD") -> list[str]:
    return [entry.commit.message for entry in repo.log(rev)]
