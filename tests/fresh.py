"""Opening a repository as a new process would, with other thresholds or without threads."""

from __future__ import annotations

from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any

from mvc.api.repository import Repository
from mvc.repo.lookup import manifests
from mvc.repo.opening import open_context

__all__ = ["InThisThread", "fresh_process", "open_quietly", "open_repository"]


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


def open_repository(root: Path, **options: Any) -> Repository:
    """The repository of exactly this folder; ``options`` as of ``open_context``."""
    return Repository(open_context(root, discover=False, **options))


def open_quietly(root: Path, **options: Any) -> Repository:
    """The repository of exactly this folder, without threads."""
    return open_repository(root, pool=InThisThread(), **options)
