"""``mvc serve --stdio``: serves one repository over standard input and output.

A client starts this command by ssh, and sends HTTP requests to its standard input. Pushed versions
name the account that runs the command as their sender. The HTTP server listens on a private Unix
socket. Two threads copy bytes between this socket and standard input and output.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from mvc.server.app import Application
from mvc.server.authority import Account
from mvc.server.listening import run, server_of
from mvc.server.repositories import Repositories
from mvc.system import FileSystem
from mvc.transport import load_transfers, scopes

_PART = 1 << 18
_KEEP_ALIVE = 86_400  # long, because a new ssh connection could ask for a password


def serve_stdio(path: Path, allowed: Sequence[str] = (), quota: int | None = None) -> None:
    """Answers on standard input and output until the client closes them.

    ``allowed``: the scopes (rights) of the client, by default all. Raises WrongUsage,
    RemoteRefused. If the repository cannot be opened, each request is answered with the error, so
    that the client can show the error.
    """
    fs = FileSystem()
    gate = Account(scopes.parse_scopes(allowed) if allowed else ())
    repositories = Repositories(fs, path.expanduser(), quota, shown=f"in {path}")
    application = Application(repositories, gate, gather=0.0)
    server = server_of(application.asgi, keep_alive=_KEEP_ALIVE)
    with fs.temporary_folder() as private, socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(private / "socket"))
        listening.listen(1)
        ours = socket.socket(socket.AF_UNIX)
        ours.connect(str(private / "socket"))

        def upward() -> None:
            with suppress(OSError):  # the server has ended
                while data := os.read(0, _PART):
                    ours.sendall(data)
            with suppress(OSError):
                ours.shutdown(socket.SHUT_WR)

        def downward() -> None:
            with suppress(OSError):  # the client has closed
                while data := ours.recv(_PART):
                    _write(1, data)
                    if not preparing.ident:
                        preparing.start()
            server.should_exit = True

        preparing = threading.Thread(target=load_transfers, daemon=True)
        threads = [threading.Thread(target=copy, daemon=True) for copy in (upward, downward)]
        for thread in threads:
            thread.start()
        try:
            run(server, listening)
        finally:
            ours.close()
            application.close()


def _write(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]
