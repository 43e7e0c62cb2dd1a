"""Repositories to serve, and transfers between them slice by slice."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from mvc.api.repository import Repository
from mvc.io.files import FileSystem
from mvc.remote.receiving.receiver import receive
from mvc.remote.slices import encode_entries
from mvc.remote.transport import Move, Received, Slice, Transport, Wanted
from mvc.remote.transports.folder import FolderTransport
from mvc.server.app import Application
from mvc.server.authority import Holders
from mvc.server.listening import server_of
from mvc.server.repositories import Repositories
from mvc.server.tokens import Tokens

__all__ = ["answering", "content", "move", "record", "served_folder"]


def served_folder(folder: Path) -> Path:
    """A folder with an empty bare repository ``models``."""
    folder.mkdir(parents=True)
    Repository.init(folder / "models", bare=True).close()
    return folder


@contextmanager
def answering(folder: Path, fs: FileSystem | None = None, **options: Any) -> Iterator[str]:
    """The URL at which a thread of this process serves a folder; ``options`` of ``Application``."""
    tokens = Holders(Tokens(FileSystem(), folder))
    application = Application(Repositories(fs or FileSystem(), folder), tokens, **options)
    server = server_of(application.asgi)
    with socket.create_server(("127.0.0.1", 0)) as listens:
        thread = threading.Thread(target=server.run, args=([listens],))
        thread.start()
        try:
            yield f"http://127.0.0.1:{listens.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()
            application.close()


def record(repo: Repository, value: int, size: int = 1000) -> None:
    """Commits a version whose tensors nothing else has."""
    random = np.random.default_rng(value)
    repo.commit({"w": random.random(size, np.float32), "b": np.full(3, value)}, message=f"v{value}")


def content(given: Repository | Path) -> dict[str, list[bytes]]:
    """Every state on the branch ``main``, by version."""
    if isinstance(given, Path):
        with Repository.open(given) as repo:
            return content(repo)
    return {
        str(version.id): [array.tobytes() for array in given.checkout(version.id).values()]
        for version in given.log("main")
    }


class _Local:
    """The transport of a repository that fetches for itself."""

    def __init__(self, repo: Repository) -> None:
        self._repo, self._transport = (
            repo,
            FolderTransport("here", repo.handle.store, repo.handle.config),
        )
        self.head, self.send = self._transport.head, self._transport.send

    def receive(self, given: Slice) -> Received:
        return receive(self._repo.handle.store, self._repo.handle.config, given, local=True)


def move(
    source: Repository | Transport, target: Repository | Transport, ref: str | Move
) -> tuple[str, ...]:
    """Takes what ``source`` has to ``target``, and moves ``ref`` there to where ``main`` is.

    Returns the refs that are elsewhere then.
    """
    from_, to = (_Local(e) if isinstance(e, Repository) else e for e in (source, target))
    refs, there = from_.head().refs, to.head().refs
    wanted = Wanted(have=frozenset(v for v in there.values() if isinstance(v, bytes)))
    for given in from_.send(wanted):
        given.moves = ()  # of the sender's own
        received = to.receive(given)
        assert not received.missing
    if isinstance(ref, str):
        old = there.get(ref)
        tip = refs["heads/main"]
        ref = Move(ref, old, tip)
    last = Slice(encode_entries(()), 0, (), (ref,))
    to.receive(last)
    now = to.head().refs
    return tuple(name for name in sorted({*there, *now}) if there.get(name) != now.get(name))
