"""A server of its own for a run: ``mvc serve`` over TLS on loopback, tokens, and counted bytes."""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from mvc.errors import NotInstalled, RemoteUnreachable

__all__ = ["Counter", "Server", "serving"]

_MVC = (sys.executable, "-P", "-m", "mvc")
_PATIENCE = 120.0  # seconds until the server says where it listens
_CHUNK = 1 << 16


class Counter:
    """A port of loopback in front of another one; ``bytes`` went through it, both ways together.

    What is counted is what the sockets carry: handshakes, headers and bodies, all in TLS.
    """

    def __init__(self, port: int) -> None:
        self.bytes = 0
        self._target = port
        self._lock = threading.Lock()
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listening.getsockname()[1])
        threading.Thread(target=self._listen, daemon=True).start()

    def close(self) -> None:
        """Takes no more connections."""
        with suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()

    def _listen(self) -> None:
        while True:
            try:
                client, _ = self._listening.accept()
                server = socket.create_connection(("127.0.0.1", self._target))
            except OSError:
                return
            for pair in ((client, server), (server, client)):
                threading.Thread(target=self._copy, args=pair, daemon=True).start()

    def _copy(self, source: socket.socket, drain: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(_CHUNK):
                with self._lock:
                    self.bytes += len(data)
                drain.sendall(data)
        for each in (source, drain):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)


@dataclass(frozen=True)
class Server:
    """Repositories below ``folder`` are served at ``url``/NAME; ``ca_file`` proves the server."""

    folder: Path
    url: str
    ca_file: Path
    counter: Counter

    def token(self, name: str, *scopes: str) -> Path:
        """A file with a new token."""
        command = (*_MVC, "-C", self.folder, "serve", "token", "add", name, "--json")
        made = subprocess.run(
            (*command, "--scope", ",".join(scopes)), stdout=subprocess.PIPE, check=True
        )
        file = self.folder.with_name(f"{name}.token")
        file.touch(0o600)
        file.write_text(json.loads(made.stdout)["token"])
        return file


@contextmanager
def serving(folder: Path) -> Iterator[Server]:
    """Serves the repositories that are in ``folder``, or come, while the block runs.

    Raises NotInstalled without openssl, RemoteUnreachable if the server does not start.
    """
    certificate, key = _certificate(folder.parent)
    log = folder.with_name("server.log")
    command = (*_MVC, "serve", folder, "--listen", "127.0.0.1:0")
    with log.open("wb") as stderr:
        process = subprocess.Popen(
            (*command, "--tls-cert", certificate, "--tls-key", key), stderr=stderr, cwd=folder
        )
    try:
        counter = Counter(_port(process, log))
        try:
            yield Server(folder, f"https://127.0.0.1:{counter.port}", certificate, counter)
        finally:
            counter.close()
    finally:
        process.terminate()
        process.wait()


def _certificate(folder: Path) -> tuple[Path, Path]:
    """A certificate for 127.0.0.1 that proves itself, and its key."""
    program = shutil.which("openssl")
    if program is None:
        raise NotInstalled(
            "the server's certificate is made by the program openssl, which is not installed",
            hint="install the package openssl of your system",
        )
    certificate, key = folder / "certificate.pem", folder / "key.pem"
    curve = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    who = ("-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1", "-days", "30")
    command = (program, "req", "-x509", *curve, *who, "-keyout", key, "-out", certificate)
    made = subprocess.run(command, stderr=subprocess.PIPE, check=False)
    if made.returncode:
        said = made.stderr.decode(errors="replace").split("\n")
        raise NotInstalled(f"openssl cannot make a certificate: {said[0]}")
    return certificate, key


def _port(process: subprocess.Popen[bytes], log: Path) -> int:
    until = time.monotonic() + _PATIENCE
    while time.monotonic() < until and process.poll() is None:
        if found := re.search(r"^serving .*:(\d+)$", log.read_text(), re.MULTILINE):
            return int(found[1])
        time.sleep(0.05)
    said = log.read_text().splitlines() or ["it says nothing"]
    raise RemoteUnreachable(f"the server did not start: {said[-1]}")
