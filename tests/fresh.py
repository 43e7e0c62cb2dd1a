"""Opening a repository as a new process would, with other thresholds or without threads."""

from __future__ import annotations

from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any

from mvc.io.clock import Clock
from mvc.io.files import FileSystem
from mvc.repo.config import load_config
from mvc.repo.context import Context
from mvc.repo.lookup import manifests
from mvc.repo.repository import Repository
from mvc.store.snapshot import IndexThresholds
from mvc.store.store import Store

__all__ = ["InThisThread", "fresh_process", "open_repository"]


class InThisThread(Executor):
    """Runs what it is given at once: handing small tensors to threads costs more than work."""

    def submit(self, call: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(call(*args, **kwargs))
        except BaseException as error:
            future.set_exception(error)
        return future


def fresh_process() -> None:
    """Forgets what the process has cached, as if it had just been started."""
    manifests._kept.clear()


def open_repository(
    root: Path,
    *,
    fs: FileSystem | None = None,
    clock: Clock | None = None,
    thresholds: IndexThresholds | None = None,
    pool: Executor | None = None,
) -> Repository:
    """The repository of exactly this folder, in a process that has cached nothing."""
    fresh_process()
    files = fs or FileSystem()
    store = Store(files, clock or Clock(), root / ".mvc", thresholds=thresholds, pool=pool)
    config = load_config(files, root / ".mvc" / "config.yaml", None, {}, {})
    return Repository(Context(store, root, config))
