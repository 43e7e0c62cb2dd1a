"""Connects to a remote over ssh. Runs ``ssh HOST mvc serve --stdio PATH``, and sends HTTP requests
to this process.

The program ssh handles keys, known hosts and jump hosts. The environment variable ``MVC_SSH`` sets
another command than ``ssh``, as GIT_SSH_COMMAND does for git. No shell on this machine interprets
this command or the URL.
"""

from __future__ import annotations

import os
import re
import shlex
import socket
import subprocess
import threading
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from msgspec import Struct

from mvc.errors import MvcError, RemoteRefused, RemoteUnreachable, WrongUsage
from mvc.names import printable
from mvc.remote.remotes import Remote
from mvc.repo.config import SSH

if TYPE_CHECKING:
    from mvc.remote.transports.http import HttpTransport

_KEEP_ALIVE = ("-o", "ServerAliveInterval=15", "-o", "ServerAliveCountMax=4")
_PLAIN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]*", re.ASCII)
_ADDRESS = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*|[0-9A-Fa-f:.]+", re.ASCII)
_SSH_FAILED, _NOT_FOUND = 255, 127
_LINES = 20  # limit of lines of ssh's stderr
_LONGEST = 500


class Address(Struct, frozen=True):
    """The parts of an ``ssh://`` URL, and the program to run on the host."""

    host: str
    path: str
    user: str = ""
    port: int | None = None
    program: str = "mvc"

    @classmethod
    def of(cls, remote: Remote) -> Address:
        """The address of a remote.

        Raises WrongUsage if the host or the path is missing, or if ssh could read the host or the
        user as an option.
        """
        parts = urlsplit(remote.url)
        host, user, path = parts.hostname or "", parts.username or "", unquote(parts.path)
        if not _ADDRESS.fullmatch(host) or (user and not _PLAIN.fullmatch(user)):
            raise WrongUsage(
                f"{printable(remote.url)} has no valid host",
                hint="write ssh://[USER@]HOST[:PORT]/PATH",
            )
        if path in ("", "/"):
            raise WrongUsage(
                f"{printable(remote.url)} has no path", hint="write ssh://HOST/PATH, or /~/PATH"
            )
        path = path[1:] if path.startswith("/~") else path
        return cls(host, path, user, parts.port, program=remote.program or "mvc")

    def command(self, arguments: Sequence[str]) -> list[str]:
        """The command that runs mvc on the host with these arguments."""
        program = shlex.split(os.environ.get(SSH) or "ssh")
        if not program:
            raise WrongUsage(f"the variable {SSH} is empty")
        port = [] if self.port is None else ["-p", str(self.port)]
        words = " ".join(shlex.quote(word) for word in (self.program, *arguments))
        return [*program, *_KEEP_ALIVE, *port, self._account, words]

    @property
    def _account(self) -> str:
        return f"{self.user}@{self.host}" if self.user else self.host

    @property
    def by_hand(self) -> str:
        """A command with which the user can test the connection to the host."""
        port = "" if self.port is None else f"-p {self.port} "
        return f"ssh {port}{self._account}"


class _Call:
    """A running ssh process. ``socket`` is connected to the program on the host."""

    def __init__(self, command: Sequence[str]) -> None:
        self.socket, theirs = socket.socketpair()
        with theirs:
            try:
                self.process = subprocess.Popen(  # noqa: S603 - a list of words, and no shell
                    command,
                    stdin=theirs.fileno(),
                    stdout=theirs.fileno(),
                    stderr=subprocess.PIPE,
                )
            except BaseException:
                self.socket.close()
                raise
        self._stderr = deque[str](maxlen=_LINES)
        # If several ssh processes share a connection, stderr may stay open after this process ends.
        # So this thread is a daemon, and ``ended`` waits for this thread for at most a second.
        self._reader = threading.Thread(target=self._listen, daemon=True)
        self._reader.start()

    def _listen(self) -> None:
        assert self.process.stderr is not None
        with self.process.stderr as stream, suppress(OSError, ValueError):
            while line := stream.readline(_LONGEST):
                if text := printable(line.decode("utf-8", "replace").strip()):
                    self._stderr.append(text)

    def ended(self) -> tuple[int | None, list[str]]:
        """Waits for the end of ssh, for at most five seconds.

        Returns the exit code (None if ssh still runs) and the last lines of stderr.
        """
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(5)
        self._reader.join(1)
        return self.process.returncode, list(self._stderr)

    def end(self) -> None:
        """Closes the input of ssh. If ssh runs for three more seconds, terminates ssh."""
        self.socket.close()
        for stop in (self.process.terminate, self.process.kill):
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(3)
                return
            stop()
        self.process.wait()


class _Calls:
    """The running ssh processes, one for each connection.

    The constructor starts the first process. While the host starts mvc, the caller can do other
    work.
    """

    def __init__(self, command: Sequence[str]) -> None:
        self._command = command
        self.running = list[_Call]()
        self._is_ahead = False
        with suppress(OSError):  # the first call of ``dial`` raises this error again
            self.dial()
            self._is_ahead = True

    def dial(self) -> socket.socket:
        if not self._is_ahead:
            self.running = [
                *(call for call in self.running if call.process.poll() is None),
                _Call(self._command),
            ]
        self._is_ahead = False
        return self.running[-1].socket

    def close(self) -> None:
        for call in self.running:
            call.end()


def open_transport(remote: Remote) -> HttpTransport:
    """The transport to a repository over ssh."""
    address = Address.of(remote)
    calls = _Calls(address.command(["serve", "--stdio", "--", address.path]))
    from mvc.remote.transports.http import (  # a slow import, while ssh starts
        Client,
        HttpTransport,
        LinePool,
        is_no_http,
    )

    shown = printable(remote.url)

    def explain(error: BaseException) -> MvcError:
        if not calls.running:
            return _no_ssh(address.command(())[0], error)
        if is_no_http(error):
            return RemoteRefused(
                f"{shown}: the answer does not come from mvc",
                hint=f"check that its shell prints nothing at login: {address.by_hand} true",
            )
        return _explained(shown, address, *calls.running[-1].ended())

    return HttpTransport(Client(shown, LinePool(calls.dial, calls.close), explain=explain))


def run(remote: Remote, arguments: Sequence[str]) -> int:
    """Runs ``mvc -C PATH ARGUMENTS`` on the host, with the stdin and stdout of this process.

    Returns the exit code of mvc on the host.
    """
    address = Address.of(remote)
    command = address.command(["-C", address.path, *arguments])
    try:
        code = subprocess.run(command, check=False).returncode  # noqa: S603 - no shell
    except OSError as error:
        raise _no_ssh(command[0], error) from error
    if code in (_SSH_FAILED, _NOT_FOUND):
        raise _explained(printable(remote.url), address, code, [])
    return code


def _no_ssh(program: str, error: BaseException) -> MvcError:
    cause = error.__cause__ if isinstance(error.__cause__, OSError) else error
    why = cause.strerror if isinstance(cause, OSError) and cause.strerror else str(cause)
    return RemoteUnreachable(
        f"cannot run {printable(program)}: {printable(why).lower()}",
        hint=f"install the OpenSSH client, or name another program in {SSH}",
    )


def _explained(url: str, address: Address, code: int | None, stderr: Sequence[str]) -> MvcError:
    output = "\n".join(stderr).lower()
    last = stderr[-1] if stderr else "the connection ended too early"
    program = printable(address.program)
    if "host key verification failed" in output or "host identification has changed" in output:
        return RemoteUnreachable(
            f"{url}: the host key is unknown or has changed",
            hint=f"connect once and compare the key: {address.by_hand}",
        )
    if code == _NOT_FOUND or "command not found" in output:
        return RemoteRefused(
            f"{url}: the host has no command {program}",
            hint="install mvc there, or set its path: mvc remote add -f NAME URL -o program=PATH",
        )
    if "permission denied" in output:
        return RemoteRefused(
            f"{url}: ssh authentication failed ({last})",
            hint=f"check your key: {address.by_hand}",
        )
    if code is None or code < 0:
        return RemoteUnreachable(f"{url}: the connection ended too early", hint="try again")
    return RemoteUnreachable(f"{url}: {last}", hint=f"test the connection: {address.by_hand}")
