"""``mvc serve``: an address, TLS, and the process that answers there until it is ended."""

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
from mvc.transport import Remote, load_transfers

ADDRESS = "127.0.0.1:7433"
_UNIX = "unix:"
_CONNECTIONS = 5000
BEGINS = 30.0
"""Seconds after which the first request of a connection has begun, head and all."""
_KEEP_ALIVE = 120
_FILES = 2 * _CONNECTIONS
_MALLOC = {-8: 2, -3: 4 << 20}  # M_ARENA_MAX, M_MMAP_THRESHOLD
_GRACE = 30  # seconds for requests that run when the server is ended
_BACKLOG = 1024
_HOST = re.compile(r"(.*):([0-9]{1,5})")


class Listening(Struct, frozen=True):
    """How a folder is served; ``address`` is HOST:PORT or ``unix:PATH``."""

    folder: Path
    address: str = ADDRESS
    certificate: Path | None = None
    key: Path | None = None
    quota: int | None = None


def serve(how: Listening, *, ready: Callable[[str], None]) -> None:
    """Serves until SIGTERM or SIGINT; ``ready`` is told the URL. Requests that run are ended well.

    Raises WrongUsage, IoFailed, NotARepository.
    """
    fs = FileSystem()
    found = fs.stat(how.folder)
    if found is None or not found.is_dir:
        raise WrongUsage(f"{printable(str(how.folder))} is no folder", hint="mvc serve FOLDER")
    _check_secure(how)
    _prepare_process()
    load_transfers()
    tokens = Tokens(fs, how.folder)
    tokens.all()
    application = Application(
        Repositories(fs, how.folder, how.quota),
        Holders(tokens),
        stopping=lambda: server.should_exit,
    )
    server = server_of(application.asgi, how.certificate, how.key)
    with closing(application):
        listening, place = _listen(how.address)
        with listening:
            scheme = "https" if how.certificate else "http"
            ready(place if place.startswith(_UNIX) else f"{scheme}://{place}")
            try:
                run(server, listening)
            finally:
                if place.startswith(_UNIX):
                    with suppress(OSError):
                        Path(place.removeprefix(_UNIX)).unlink()


class _Connection(H11Protocol):
    """A connection that is ended where no request begins on it."""

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
    """A server that logs nothing by itself. Raises WrongUsage for a certificate it cannot use.

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
        raise WrongUsage(
            f"the certificate and its key cannot be used: {_why(error)}",
            hint="--tls-cert is a chain in PEM form, --tls-key its key without a password",
        ) from error
    return uvicorn.Server(config)


def run(server: uvicorn.Server, listening: socket.socket) -> None:
    """Answers on a socket that listens, until the server is ended or a signal comes.

    uvicorn raises a signal again once it has ended well: nobody is to die of it.
    """
    signals = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(each, lambda *_: None) for each in signals]
    try:
        server.run(sockets=[listening])
    finally:
        for each, handler in zip(signals, before, strict=True):
            signal.signal(each, handler)


def _prepare_process() -> None:
    """As many connections as the system allows; and threads share what memory was freed.

    glibc gives threads arenas of their own, which keep what large slices had needed. Without a
    fixed threshold it also keeps a large block that was freed once.
    """
    import ctypes
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, _FILES)), hard))
    with suppress(AttributeError, OSError):
        for option, value in _MALLOC.items():
            ctypes.CDLL(None).mallopt(option, value)


def _check_secure(how: Listening) -> None:
    if how.key is not None and how.certificate is None:
        raise WrongUsage("--tls-key goes with --tls-cert")
    if how.address.startswith(_UNIX) or how.certificate is not None:
        return
    host, _ = _split(how.address)
    if not Remote(f"http://{how.address}").is_on_this_machine:
        raise WrongUsage(
            f"without TLS nobody but this machine is served, and {host} is open to others",
            hint="add --tls-cert FILE --tls-key FILE, or listen on unix:PATH behind a proxy",
        )


def _split(address: str) -> tuple[str, int]:
    found = _HOST.fullmatch(address)
    if found is None or int(found[2]) > 65_535:
        raise WrongUsage(
            f"{printable(address)!r} is no address", hint=f"--listen {ADDRESS}, or unix:PATH"
        )
    return found[1].removeprefix("[").removesuffix("]"), int(found[2])


def _listen(address: str) -> tuple[socket.socket, str]:
    """A socket that listens, and how it is reached."""
    try:
        if address.startswith(_UNIX):
            path = Path(address.removeprefix(_UNIX)).absolute()
            _remove_stale(path)
            made = socket.socket(socket.AF_UNIX)
            try:
                made.bind(str(path))
                path.chmod(0o660)  # a proxy is of the group
                made.listen(_BACKLOG)
            except BaseException:
                made.close()
                raise
            return made, f"{_UNIX}{path}"
        host, port = _split(address)
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        made = socket.create_server((host, port), family=family, backlog=_BACKLOG)
        shown = f"[{host}]" if ":" in host else host
        return made, f"{shown}:{made.getsockname()[1]}"
    except OSError as error:
        raise IoFailed(
            f"cannot listen on {printable(address)}: {_why(error)}",
            hint="is another server there? --listen names another address",
        ) from error


def _remove_stale(path: Path) -> None:
    """Deletes a socket that a server left behind which is gone."""
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
