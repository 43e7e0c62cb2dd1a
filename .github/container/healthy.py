"""Ends with exit status 0 if the container does its work.

A server does it if it answers, on the socket or the port that the image names. Where neither is,
the container follows a target, and does its work once a file lies in /model.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import sys
from collections.abc import Iterator
from pathlib import Path

SOCKET, ADDRESS, FOLDER = Path("/run/mvc/mvc.sock"), ("127.0.0.1", 7433), Path("/model")
_SECONDS = 5.0


def connections() -> Iterator[socket.socket]:
    """To a server that listens: on the socket, or else on the port, with TLS and without."""
    if SOCKET.exists():
        plain = socket.socket(socket.AF_UNIX)
        plain.settimeout(_SECONDS)
        plain.connect(str(SOCKET))
        yield plain
        return
    trusting = ssl.create_default_context()  # of itself, whatever its certificate says
    trusting.check_hostname, trusting.verify_mode = False, ssl.CERT_NONE
    with contextlib.suppress(ssl.SSLError):
        yield trusting.wrap_socket(socket.create_connection(ADDRESS, _SECONDS))
    yield socket.create_connection(ADDRESS, _SECONDS)


def answers(connection: socket.socket) -> bool:
    """Whether a server says anything: nobody has a token here, so it will refuse."""
    with connection:
        connection.sendall(b"GET /v1/head HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        return connection.recv(64).startswith(b"HTTP/1.1 ")


def healthy() -> bool:
    """Of a server, else of a follower."""
    try:
        return any(map(answers, connections()))
    except ConnectionRefusedError:
        return any(not path.name.startswith(".") for path in FOLDER.iterdir())
    except OSError:  # it listens, and does not answer
        return False


if __name__ == "__main__":
    sys.exit(not healthy())
