"""The server of ``mvc serve``: listens on an address until the process is stopped."""

from __future__ import annotations

import asyncio
import logging
import re
import signal
import socket
import ssl
import stat
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path

import uvicorn
from msgspec import Struct
from starlette.applications import Starlette
from uvicorn.protocols.http.h11_impl import H11Protocol

from mvc.errors import IoFailed, WrongUsage
from mvc.names import printable
from mvc.server.app import LONGEST_HEAD, Application
from mvc.server.authority import Holders
from mvc.server.repositories import Repositories
from mvc.server.tokens import Tokens
from mvc.system import FileSystem
from mvc.text import listed
from mvc.transport import Remote, load_transfers

ADDRESS = "127.0.0.1:7433"
_UNIX = "unix:"
_CONNECTIONS = 5000
BEGINS = 30.0
"""Seconds within which the first request of a connection must arrive, with its headers."""
_KEEP_ALIVE = 120
_FILES = 2 * _CONNECTIONS
_MALLOC = {-8: 2, -3: 4 << 20}  # M_ARENA_MAX, M_MMAP_THRESHOLD
_GRACE = 30  # when the server stops, running requests are aborted after this number of seconds
_BACKLOG = 1024
_HOST = re.compile(r"(.*):([0-9]{1,5})")


class Listening(Struct, frozen=True):
    """Settings of the server. ``address``: HOST:PORT or ``unix:PATH``."""

    folder: Path
    address: str = ADDRESS
    certificate: Path | None = None
    key: Path | None = None
    quota: int | None = None


def serve(settings: Listening, *, ready: Callable[[str], None]) -> None:
    """Serves until SIGTERM or SIGINT arrives. Then completes the running requests.

    ``ready`` is called with the URL when the server listens. Raises WrongUsage, IoFailed,
    NotARepository.
    """
    fs = FileSystem()
    facts = fs.stat(settings.folder)
    if facts is None or not facts.is_dir:
        raise WrongUsage(
            f"{printable(str(settings.folder))} is not a folder", hint="mvc serve FOLDER"
        )
    _check_secure(settings)
    _prepare_process()
    load_transfers()
    tokens = Tokens(fs, settings.folder)
    tokens.all()
    application = Application(
        Repositories(fs, settings.folder, settings.quota),
        Holders(tokens),
        stopping=lambda: server.should_exit,
    )
    server = server_of(application.asgi, settings.certificate, settings.key)
    with closing(application):
        listening, place = _listen(settings.address)
        with listening:
            scheme = "https" if settings.certificate else "http"
            ready(place if place.startswith(_UNIX) else f"{scheme}://{place}")
            try:
                run(server, listening)
            finally:
                if place.startswith(_UNIX):
                    with suppress(OSError):
                        Path(place.removeprefix(_UNIX)).unlink()


class _Connection(H11Protocol):
    """A connection that is closed if no request arrives within ``BEGINS`` seconds."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.loop.call_later(BEGINS, self._end_if_silent)

    def _end_if_silent(self) -> None:
        if self.cycle is None:
            self.transport.close()


def server_of(
    asgi: Starlette,
    certificate: Path | None = None,
    key: Path | None = None,
    *,
    keep_alive: int = _KEEP_ALIVE,
) -> uvicorn.Server:
    """A uvicorn server that logs nothing. Raises WrongUsage for an unusable certificate.

    ``keep_alive``: seconds for which a connection may be idle between two requests.
    """
    for name in ("uvicorn", "uvicorn.error", "uvicorn.access", "uvicorn.asgi"):
        logging.getLogger(name).disabled = True
    config = uvicorn.Config(
        asgi,
        http=_Connection,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=keep_alive,
        timeout_graceful_shutdown=_GRACE,
        limit_concurrency=_CONNECTIONS,
        h11_max_incomplete_event_size=LONGEST_HEAD,
        ssl_certfile=certificate,
        ssl_keyfile=key,
    )
    try:
        config.load()
    except (OSError, ssl.SSLError) as error:
        files = [file for file in (certificate, key) if file is not None]
        unusable = [file for file in files if not file.exists()] or files
        raise WrongUsage(
            f"cannot use {listed([printable(str(file)) for file in unusable])} for TLS: "
            f"{_why(error)}",
            hint="--tls-cert needs a chain in PEM form, --tls-key its key without a password; "
            "without --tls-key, the file of --tls-cert must contain the key, too",
        ) from error
    return uvicorn.Server(config)


def run(server: uvicorn.Server, listening: socket.socket) -> None:
    """Answers on a listening socket until the server stops or a signal arrives.

    A signal that arrives before uvicorn handles signals itself stops the server, too. After a clean
    shutdown, uvicorn sends the signal to this process again, where it has no further effect.
    """
    signals = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, server.handle_exit) for number in signals]
    try:
        server.run(sockets=[listening])
    finally:
        for number, handler in zip(signals, before, strict=True):
            signal.signal(number, handler)


def _prepare_process() -> None:
    """Raises the limit of open files, and limits the free memory that glibc retains.

    The options ``_MALLOC`` limit the number of memory pools, and make glibc return every large
    block to the system when the block is freed.
    """
    import ctypes
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, _FILES)), hard))
    with suppress(AttributeError, OSError):
        for option, value in _MALLOC.items():
            ctypes.CDLL(None).mallopt(option, value)


def _check_secure(settings: Listening) -> None:
    if settings.key is not None and settings.certificate is None:
        raise WrongUsage("--tls-key needs --tls-cert")
    if settings.address.startswith(_UNIX) or settings.certificate is not None:
        return
    host, _ = _split(settings.address)
    if not Remote(f"http://{settings.address}").is_on_this_machine:
        raise WrongUsage(
            f"{host} is reachable from other machines, which requires TLS",
            hint="add --tls-cert FILE --tls-key FILE, or listen on unix:PATH behind a proxy",
        )


def _split(address: str) -> tuple[str, int]:
    match = _HOST.fullmatch(address)
    if match is None or int(match[2]) > 65_535:
        raise WrongUsage(
            f"{printable(address)!r} is not an address", hint=f"--listen {ADDRESS}, or unix:PATH"
        )
    return match[1].removeprefix("[").removesuffix("]"), int(match[2])


def _listen(address: str) -> tuple[socket.socket, str]:
    """A listening socket, and its address."""
    try:
        if address.startswith(_UNIX):
            path = Path(address.removeprefix(_UNIX)).absolute()
            _remove_stale(path)
            listening = socket.socket(socket.AF_UNIX)
            try:
                listening.bind(str(path))
                path.chmod(0o660)  # a proxy may run in the same group
                listening.listen(_BACKLOG)
            except BaseException:
                listening.close()
                raise
            return listening, f"{_UNIX}{path}"
        host, port = _split(address)
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listening = socket.create_server((host, port), family=family, backlog=_BACKLOG)
        shown = f"[{host}]" if ":" in host else host
        return listening, f"{shown}:{listening.getsockname()[1]}"
    except OSError as error:
        raise IoFailed(
            f"cannot listen on {printable(address)}: {_why(error)}",
            hint="another server may use this address: choose one with --listen",
        ) from error


def _remove_stale(path: Path) -> None:
    """Deletes a socket that a server left behind. A socket on which a server listens stays."""
    try:
        if not stat.S_ISSOCK(path.lstat().st_mode):
            return
    except FileNotFoundError:
        return
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink()


def _why(error: OSError) -> str:
    return printable((error.strerror or str(error)).lower())
