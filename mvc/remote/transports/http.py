"""Transfers versions to and from an mvc server, by HTTP/1.1.

The connection is https, http, a Unix socket, or ssh (module ``ssh``). If the connection breaks, the
client connects again. Then a download continues with the first byte that the client lacks, and an
upload with the first byte that the server lacks. Redirects are never followed.
"""

from __future__ import annotations

import os
import random
import re
import socket
import ssl
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from http.client import BadStatusLine, HTTPException, IncompleteRead, RemoteDisconnected
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit

import urllib3
from blake3 import blake3
from msgspec.structs import replace
from urllib3.connection import HTTPConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool
from urllib3.response import BaseHTTPResponse

from mvc.errors import Busy, MvcError, RemoteRefused, RemoteUnreachable, WrongUsage
from mvc.io.files import FileSystem
from mvc.names import printable
from mvc.remote import slices, wire
from mvc.remote.remotes import Remote
from mvc.remote.transport import Place, Received, RemoteHead, Slice, Wanted
from mvc.remote.transports import waiting
from mvc.remote.transports.credentials import read_token, variable_of
from mvc.types import Bytes

_CONNECT = 20.0
_SILENCE = 4 * wire.ALIVE
"""Seconds without a byte after which a connection counts as broken."""
PAUSES = (0.2, 1.0, 2.0, 4.0, 8.0)
"""Seconds before each new attempt after a broken connection.

If data arrive, counting starts again.
"""
_LONGEST_PAUSE = 60.0
_LEFT_OVER = 1 << 16
_CUT_STATUS = re.compile(r"H(T(T(P/?)?)?)?|HTTP/1(\.([01]( \d{0,2})?)?)?")
"""Matches a truncated status line."""

Explain = Callable[[BaseException], MvcError]
"""Turns an error of a connection into the error that the user sees."""


class Client:
    """Sends requests to one server, repeats them after temporary errors, and converts refusals of
    the server into errors of mvc.
    """

    def __init__(
        self, url: str, pool: HTTPConnectionPool, prefix: str = "", *,
        headers: Mapping[str, str] | None = None, explain: Explain | None = None,
        login: str | None = None,
    ) -> None:  # fmt: skip
        """``login``: a hint for the user, if the server refuses the client without a token."""
        self.url = url
        self._login = login
        bounded = type("_Bounded", (pool.ConnectionCls,), {"response_class": waiting.Response})
        pool.ConnectionCls = bounded
        self._pool, self._prefix = pool, prefix
        self._headers = {"Accept": wire.CONTENT, **(headers or {})}
        self._explain = explain or (lambda error: _unreachable(url, error))
        self._reached = False

    @contextmanager
    def ask(
        self, tries: Try, method: str, path: str, body: Bytes | None = None,
        *, silence: float = _SILENCE,
    ) -> Iterator[BaseHTTPResponse]:  # fmt: skip
        """Sends one request, and yields the answer.

        Raises Broken if the connection breaks, before or within the ``with`` block; _Later if the
        server is busy; and the errors that the server sends.
        """
        most = max(tries.left, 0.001)
        timeout = urllib3.Timeout(connect=min(_CONNECT, most), read=min(silence, most))
        headers, pieces = self._headers, None
        if body is not None:
            size = {"Content-Type": wire.CONTENT, "Content-Length": str(len(body))}
            headers, pieces = {**headers, **size}, tries.pieces(body)
        try:
            with tries.waiting():
                answer = self._pool.urlopen(
                    method,
                    f"{self._prefix}/v1/{path}",
                    pieces,  # type: ignore[arg-type]  # it takes any buffers
                    headers,
                    retries=False,
                    redirect=False,
                    preload_content=False,
                    timeout=timeout,
                )
            try:
                self._reached = True
                _refuse(self.url, answer, self._login)
                yield answer
            except (MvcError, _Later):
                _finish(answer)
                raise
            except BaseException:
                answer.close()
                raise
            _finish(answer)
        except (urllib3.exceptions.HTTPError, OSError) as error:
            if not self._reached or _certificate_error(error) is not None:
                raise self._explain(error) from error
            raise wire.Broken(str(error)) from error

    def read(self, path: str, most: int = wire.MAX_MESSAGE, seconds: float = 0) -> bytes | None:
        """The complete answer to a query. None for the status 304 (nothing has changed).

        ``seconds``: how long the server may wait before it answers.
        """
        for tries in self.tries():
            with tries, self.ask(tries, "GET", path, silence=seconds + _SILENCE) as answer:
                data = _bounded(answer, most)
                return None if answer.status == 304 else data
        raise AssertionError("the last attempt raises an error")

    def tries(self, *, works: bool = False) -> Iterator[Try]:
        """Yields attempts until the ``with`` block of an attempt ends without a temporary error.

        ``works``: whether the server must read or verify versions, which takes longer.
        """
        tries = Try(self._explain, waiting.WORK if works else waiting.PATIENCE)
        while not tries.done:
            yield tries

    def close(self) -> None:
        self._pool.close()


class Try(waiting.Allowance, AbstractContextManager["Try"]):
    """The attempts of one request. Each ``with`` block is one attempt.

    After a temporary error (Broken, _Later), the ``with`` block waits and ends without an error.
    Then the caller tries again.
    """

    def __init__(self, explain: Explain, seconds: float) -> None:
        super().__init__(seconds)
        self.done = False
        self._explain = explain
        self._failed = 0

    def progress(self, size: int) -> None:
        """Notes that ``size`` bytes arrived. Earlier broken connections no longer count."""
        self._failed = 0
        self.earn(size)

    def __exit__(self, _: object, error: BaseException | None, *__: object) -> bool:
        if isinstance(error, _Later):
            if self.spent + error.seconds >= waiting.PATIENCE:
                raise Busy(error.text, hint="try again later") from error
            self._pause(error.seconds)
            return True
        if isinstance(error, wire.Broken | urllib3.exceptions.HTTPError | OSError):
            if self.left <= 0 or self._failed >= len(PAUSES):
                raise self._explain(error) from error
            self._pause(PAUSES[self._failed])
            self._failed += 1
            return True
        self.done = True
        return False

    def _pause(self, seconds: float) -> None:
        with self.waiting():
            time.sleep(seconds * random.uniform(0.75, 1.25))  # noqa: S311 - spreads clients


class _Later(Exception):
    def __init__(self, text: str, seconds: float) -> None:
        super().__init__(text)
        self.text, self.seconds = text, seconds


def _finish(answer: BaseHTTPResponse) -> None:
    """Reads the rest of the answer, and returns the connection to the pool.

    If the rest is long, closes the connection instead.
    """
    for _ in range(8):
        if not answer.read1(_LEFT_OVER, decode_content=False):
            answer.release_conn()
            return
    answer.close()


def _bounded(answer: BaseHTTPResponse, limit: int) -> bytes:
    parts = list[bytes]()
    while part := answer.read1(1 << 16, decode_content=False):
        parts.append(part)
        limit -= len(part)
        if limit < 0:
            raise RemoteRefused("the server's answer exceeds the size limit")
    return b"".join(parts)


def _refuse(url: str, answer: BaseHTTPResponse, login: str | None = None) -> None:
    """Raises an error if the status of the answer is not success."""
    kind = (answer.headers.get("Content-Type") or "").partition(";")[0].strip().lower()
    if answer.status in (429, 503):
        raise _Later(f"{url} is busy", _retry_after(answer))
    if 300 <= answer.status < 400 and answer.status != 304:
        to = printable((answer.headers.get("Location") or "elsewhere")[:200])
        raise RemoteRefused(
            f"{url} redirects to {to}, and mvc does not follow redirects",
            hint="use that URL: mvc remote add NAME URL",
        )
    if kind == wire.CONTENT:
        if answer.status >= 400:
            error = wire.decode_error(_bounded(answer, wire.MAX_PROBLEM))
            # The client makes this hint, because the server does not know the name of the remote.
            if answer.status == 401 and login is not None:
                raise type(error)(error.message, hint=login)
            raise error
        return
    if answer.status == 304:
        return
    if wire.CONTENT.startswith(kind):
        raise wire.Broken("the headers of an answer are truncated")
    if answer.status in (502, 504):
        raise wire.Broken(f"the proxy before {url} does not reach the server")
    if answer.status == 413:
        raise RemoteRefused(
            f"a proxy before {url} refuses bodies of {wire.PART >> 20} MiB",
            hint="raise the proxy's limit (nginx: client_max_body_size 33m)",
        )
    raise RemoteRefused(
        f"{url} is not an mvc server (status {answer.status})",
        hint="correct the URL, or check that 'mvc serve' runs there",
    )


def _retry_after(answer: BaseHTTPResponse) -> float:
    text = answer.headers.get("Retry-After") or "1"
    return min(float(text), _LONGEST_PAUSE) if text.isascii() and text.isdecimal() else 1.0


class HttpTransport:
    """A transport to a repository on a server."""

    def __init__(self, client: Client) -> None:
        self.url = client.url
        self._client = client

    def head(self, after: Place | None = None) -> RemoteHead:
        query = "" if after is None else f"?after={after.sequence}&chain={after.chain.hex()}"
        return wire.decode_head(self._client.read(f"head{query}") or b"")

    def live(self, target: str, mark: str = "", seconds: float = 0) -> str | None:
        path = f"live?target={quote(target, safe='')}&mark={quote(mark)}&wait={seconds:g}"
        data = self._client.read(path, wire.MAX_MARK, seconds)
        return None if data is None else wire.decode_mark(data)

    def send(self, wanted: Wanted) -> Generator[Slice]:
        """Yields the slices (parts of the transfer) that the server sends.

        After a broken connection, requests the rest.
        """
        stream = _Incoming(self._client, wanted)
        try:
            while (received := slices.read(stream.read)) is not None:
                yield received
                for _ in received.records:  # read all records, because the next slice follows
                    pass
                stream.passed(received.place)
        finally:
            stream.close()

    def receive(self, incoming: Slice) -> Received:
        """Uploads the slice in parts, and returns the server's answer."""
        upload, at, received = os.urandom(16).hex(), 0, None
        for part, is_last in _parts(slices.write(incoming)):
            received = self._upload(upload, at, part, is_last=is_last)
            at += len(part)
        if received is None:
            raise RemoteRefused(f"{self.url} did not answer the upload")
        return received

    def _upload(self, upload: str, at: int, part: Bytes, *, is_last: bool) -> Received | None:
        """Sends the part at offset ``at`` of an upload.

        Returns the server's answer after the last part of the upload, and None after other parts.
        """
        sent = 0
        for tries in self._client.tries(works=is_last):
            with tries:
                if sent < 0:
                    sent = self._received_bytes(tries, upload) - at
                    if not 0 <= sent <= len(part):
                        raise RemoteUnreachable(
                            f"{self.url} discarded an interrupted upload",
                            hint="repeat the command: complete slices are not sent again",
                        )
                query = f"upload={upload}&at={at + sent}&last={int(is_last)}"
                # -1: if this attempt fails, ask the server how many bytes it has received
                body, sent = memoryview(part)[sent:], -1
                received = self._post(tries, query, body)
        return received

    def _received_bytes(self, tries: Try, upload: str) -> int:
        with self._client.ask(tries, "GET", f"receive?upload={upload}") as answer:
            text = _bounded(answer, 20)
        return int(text) if text.isdigit() else 0

    def _post(self, tries: Try, query: str, body: Bytes) -> Received | None:
        with self._client.ask(tries, "POST", f"receive?{query}", body) as answer:
            for kind, payload in wire.read_frames(partial(answer.read1, decode_content=False)):
                if kind == wire.ANSWER:
                    return wire.decode(Received, payload)
        return None

    def close(self) -> None:
        self._client.close()


class _Incoming:
    """The bytes of the slices (parts of a transfer) that a server sends.

    ``_consumed``: how many bytes of the current slice were read. ``_hasher``: hashes the first
    ``wire.CHECKED`` bytes of the slice.
    """

    def __init__(self, client: Client, wanted: Wanted) -> None:
        self._client, self._wanted = client, wanted
        self._consumed, self._hasher = 0, blake3()
        self._pieces = self._all()
        self._source = slices.PartReader(self._pieces)

    def read(self, size: int) -> Bytes:
        """At most ``size`` bytes. No bytes at the end."""
        part = self._source.read(size)
        if (beginning := wire.CHECKED - self._consumed) > 0:
            self._hasher.update(part[:beginning])
        self._consumed += len(part)
        return part

    def passed(self, place: Place | None) -> None:
        """Notes that a slice was read to its end.

        ``place``: the position in the remote's journal after this slice.
        """
        if place is not None:
            self._wanted = replace(self._wanted, after=place)
            self._consumed, self._hasher = 0, blake3()

    def close(self) -> None:
        self._pieces.close()

    def _all(self) -> Generator[bytes]:
        for tries in self._client.tries(works=True):
            # Bytes that were not consumed yet are discarded and requested again.
            path = f"send?skip={self._consumed}&check={self._hasher.hexdigest()}"
            body = wire.encode(self._wanted)
            with tries, self._client.ask(tries, "POST", path, body) as answer:
                for _, piece in wire.read_frames(partial(answer.read1, decode_content=False)):
                    tries.progress(len(piece))
                    yield piece


def _parts(pieces: Iterable[Bytes]) -> Iterator[tuple[bytearray, bool]]:
    """Joins pieces into parts of ``wire.PART`` bytes. Yields pairs (part, is_last)."""
    part = bytearray()
    for piece in pieces:
        view = memoryview(piece).cast("B")
        while len(view) > (room := wire.PART - len(part)):
            yield part + view[:room], False
            part, view = bytearray(), view[room:]
        part += view
    yield part, True


def open_transport(remote: Remote) -> HttpTransport:
    """The transport to a server with an ``https://``, ``http://`` or ``unix:`` URL."""
    fs, shown = FileSystem(), printable(remote.url)
    headers = {}
    if remote.url.startswith("unix:"):
        path, prefix = _socket(fs, remote.url.removeprefix("unix:"))
        pool: HTTPConnectionPool = LinePool(partial(_unix_line, path))
        secure = True
    else:
        parts = urlsplit(remote.url)
        host, port = parts.hostname or "", parts.port
        if not host:
            raise WrongUsage(f"{shown} has no host", hint="write https://HOST/NAME")
        prefix = quote(unquote(parts.path.rstrip("/")))
        secure = parts.scheme == "https" or remote.is_on_this_machine
        if parts.scheme == "https":
            pool = _tls_pool(host, port, _tls(remote))
        else:
            pool = HTTPConnectionPool(host, port, maxsize=2)
    token = read_token(fs, remote)
    if token is not None:
        if not secure:
            raise RemoteRefused(
                f"refused to send the token to {shown}: the connection is not encrypted",
                hint="use https:// or ssh://",
            )
        headers["Authorization"] = f"Bearer {token}"
    login = None if token is not None else _login(remote)
    return HttpTransport(Client(shown, pool, prefix, headers=headers, login=login))


def _login(remote: Remote) -> str:
    ask = "get a token from the server's administrator ('mvc serve token add')"
    if remote.is_on_this_machine and not remote.name:
        return f"{ask}; then 'mvc remote add NAME URL', and set MVC_TOKEN_NAME"
    return (
        f"{ask}; then set {variable_of(remote)}, or the remote's option token_file=FILE "
        "('mvc clone -o', 'mvc remote add -f NAME URL -o', or 'mvc follow -O')"
    )


def _tls_pool(host: str, port: int | None, tls: ssl.SSLContext) -> HTTPConnectionPool:
    """Connections to a server, through the proxy HTTPS_PROXY unless NO_PROXY excludes the host.

    The proxy sees the name of the host. All other bytes are encrypted.
    """
    proxy = os.environ.get("https_proxy") or os.environ.get("HTTPS_PROXY")
    from urllib.request import proxy_bypass  # a slow import, rarely needed

    if not proxy or proxy_bypass(host):
        return HTTPSConnectionPool(host, port, maxsize=2, ssl_context=tls)
    try:
        user = urllib3.util.parse_url(proxy).auth
        login = urllib3.make_headers(proxy_basic_auth=user) if user else None
        through = urllib3.ProxyManager(proxy, proxy_headers=login, maxsize=2, ssl_context=tls)
        return through.connection_from_host(host, port, "https")
    except (urllib3.exceptions.HTTPError, ValueError) as error:
        # The message does not show the variable, because it may contain a password.
        raise WrongUsage(
            "the variable HTTPS_PROXY is invalid", hint="set HTTPS_PROXY=http://HOST:PORT"
        ) from error


def _tls(remote: Remote) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=remote.ca_file or None)
    except (OSError, ssl.SSLError) as error:
        raise WrongUsage(
            f"{printable(remote.ca_file)} is not a valid certificate file: {_cause(error)}",
            hint="the remote's ca_file must contain CA certificates in PEM form",
        ) from error


def _socket(fs: FileSystem, text: str) -> tuple[str, str]:
    """Splits the path of a ``unix:`` URL into the path of the socket and the repository's name."""
    path = Path(text).absolute()
    for candidate in (path, *path.parents):
        facts = fs.stat(candidate)
        if facts is not None:
            rest = path.relative_to(candidate).as_posix()
            if facts.is_dir:
                break
            return str(candidate), "" if rest == "." else "/" + quote(rest)
    raise RemoteUnreachable(
        f"no socket exists at {printable(text)}",
        hint="use unix:PATH/NAME with the PATH of 'mvc serve FOLDER --listen unix:PATH'",
    )


class _LineConnection(HTTPConnection):
    dial: Callable[[], socket.socket]

    def _new_conn(self) -> socket.socket:
        try:
            return self.dial()
        except OSError as error:
            raise urllib3.exceptions.NewConnectionError(self, str(error)) from error


class LinePool(HTTPConnectionPool):
    """A pool of connections that are not TCP. ``closing`` is called when the pool is closed."""

    def __init__(
        self, dial: Callable[[], socket.socket], closing: Callable[[], None] = lambda: None
    ) -> None:
        self.ConnectionCls = type("_Dialled", (_LineConnection,), {"dial": staticmethod(dial)})
        self._closing = closing
        super().__init__("localhost", maxsize=2)

    def close(self) -> None:
        super().close()
        self._closing()


def _unix_line(path: str) -> socket.socket:
    line = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        line.settimeout(_CONNECT)
        line.connect(path)
    except OSError:
        line.close()
        raise
    return line


def _unreachable(url: str, error: BaseException) -> MvcError:
    if (untrusted := _certificate_error(error)) is not None:
        return _untrusted(url, untrusted)
    if isinstance(error, urllib3.exceptions.SSLError) and not _is_cut(error):
        return RemoteUnreachable(
            f"the TLS handshake with {url} failed",
            hint="check that 'mvc serve' runs there with --tls-cert, or behind a TLS proxy",
        )
    if is_no_http(error):
        return RemoteRefused(
            f"{url} is not an mvc server",
            hint="correct the URL, or check that 'mvc serve' runs there",
        )
    return RemoteUnreachable(
        f"{url} does not answer: {_cause(error)}",
        hint="check the URL and the network, and that 'mvc serve' runs there",
    )


def _causes(error: BaseException) -> Iterator[BaseException]:
    cause: BaseException | None = error
    while cause is not None:
        yield cause
        reason = cause.args[0] if cause.args else None  # urllib3 stores the cause as an argument
        cause = (
            cause.__cause__
            or cause.__context__
            or (reason if isinstance(reason, BaseException) else None)
        )


def _is_cut(error: BaseException) -> bool:
    """Whether the connection was cut within TLS, as when a proxy or the server stops."""
    return any(isinstance(cause, ssl.SSLEOFError) for cause in _causes(error))


def is_no_http(error: BaseException) -> bool:
    """Whether the answer was not HTTP."""
    return any(
        isinstance(cause, HTTPException)
        and not isinstance(cause, RemoteDisconnected | IncompleteRead)
        and not (isinstance(cause, BadStatusLine) and _CUT_STATUS.fullmatch(str(cause)))
        for cause in _causes(error)
    )


def _certificate_error(error: BaseException) -> ssl.SSLCertVerificationError | None:
    causes = (e for e in _causes(error) if isinstance(e, ssl.SSLCertVerificationError))
    return next(causes, None)


def _untrusted(url: str, error: ssl.SSLCertVerificationError) -> MvcError:
    why = error.verify_message or "it does not match"
    return RemoteUnreachable(
        f"the certificate of {url} is not trusted: {why}",
        hint="check the host name and this machine's clock; an expired certificate must be renewed "
        "there; for a private CA set ca_file=FILE ('mvc clone -o', 'mvc remote add -f NAME URL "
        "-o', or 'mvc follow -O')",
    )


def _cause(error: BaseException) -> str:
    causes = list(_causes(error))
    if any(isinstance(cause, socket.gaierror) for cause in causes):
        return "its host name is unknown"
    messages = [e.strerror for e in causes if isinstance(e, OSError) and e.strerror]
    if messages and not _is_cut(error):
        return printable(messages[0].lower())
    is_late = any(isinstance(e, TimeoutError | urllib3.exceptions.TimeoutError) for e in causes)
    return "no answer in time" if is_late else "the connection ended too early"
