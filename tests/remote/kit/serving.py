"""``mvc serve`` as a process of its own, and transports to it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from mvc.io.files import FileSystem
from mvc.remote.remotes import Remote
from mvc.remote.transports.http import HttpTransport
from mvc.remote.transports.opening import open_transport
from mvc.server.tokens import Tokens

__all__ = ["Serving", "serving", "token", "transport"]

_ENVIRONMENT = threading.Lock()


class Serving:
    """A running server; ``log`` is what it says on stderr."""

    def __init__(self, process: subprocess.Popen[bytes], url: str, log: Path) -> None:
        self.process, self.url, self._log = process, url, log

    @property
    def log(self) -> str:
        return self._log.read_text()

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    @property
    def memory(self) -> int:
        """The most bytes of memory that it had so far."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        found = re.search(r"VmHWM:\s+(\d+) kB", status)
        assert found is not None
        return int(found[1]) << 10

    def end(self) -> int:
        """Ends it as systemd does; its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)


@contextmanager
def serving(
    folder: Path,
    *arguments: object,
    address: str = "127.0.0.1:0",
    variables: Mapping[str, str] | None = None,
    patience: float = 30,
    told: Callable[[str], str | None] | None = None,
) -> Iterator[Serving]:
    """Serves ``folder`` while the block runs. ``patience``: seconds until it must answer.

    ``told``: finds the URL in what it says on stderr.
    """
    log = folder.with_name(f"{folder.name}.log")
    command = [sys.executable, "-P", "-m", "mvc", "serve", folder, "--listen", address, *arguments]
    with log.open("wb") as stderr:
        process = subprocess.Popen(
            [str(word) for word in command],
            stderr=stderr,
            env={**os.environ, "PYTHONUNBUFFERED": "1", **(variables or {})},
            cwd=folder,
        )
    try:
        yield Serving(process, _url(process, log, patience, told or _named), log)
    finally:
        process.kill()
        process.wait()


def _named(log: str) -> str | None:
    found = re.search(r"^serving .* at (\S+)$", log, re.MULTILINE)
    return None if found is None else found[1]


def _url(
    process: subprocess.Popen[bytes],
    log: Path,
    patience: float,
    told: Callable[[str], str | None],
) -> str:
    from tests.waiting import until

    def said() -> str | None:
        assert process.poll() is None, log.read_text()
        return told(log.read_text())

    until(lambda: said() is not None, patience)
    found = said()
    assert found is not None
    return found


def token(folder: Path, *scopes: str, name: str = "anna", days: int = 1) -> str:
    """A new token for a served folder."""
    return Tokens(FileSystem(), folder).add(name, scopes, days)


def transport(url: str, text: str | None = None, **options: str) -> HttpTransport:
    """A transport to a server, with a token from a file beside none."""
    remote = Remote(url, "origin", **options)
    with _ENVIRONMENT:  # threads open transports at once
        if text is not None:
            os.environ["MVC_TOKEN_ORIGIN"] = text
        try:
            opened = open_transport(remote)
        finally:
            os.environ.pop("MVC_TOKEN_ORIGIN", None)
    assert isinstance(opened, HttpTransport)
    return opened
