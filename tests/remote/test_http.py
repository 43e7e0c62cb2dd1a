"""The client against servers that answer what a test says."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from mvc.errors import (
    MvcError,
    RefConflict,
    RemoteRefused,
    RemoteUnreachable,
    StorageFull,
    WrongUsage,
)
from mvc.remote import wire
from mvc.remote.remotes import Remote
from mvc.remote.transport import Place, RemoteHead
from mvc.remote.transports.credentials import variable_of
from mvc.remote.transports.opening import open_transport
from tests.remote.kit.serving import transport

TOKEN = "mvc_" + "k" * 43
HEAD = RemoteHead(b"i" * 16, Place(3, b"c" * 16), {"HEAD": "heads/main"}, 1)
Answer = Callable[[BaseHTTPRequestHandler, int], None]


def reply(request: BaseHTTPRequestHandler, status: int, body: bytes = b"", **headers: str) -> None:
    request.send_response(status)
    for name, value in {"Content-Type": wire.CONTENT, **headers}.items():
        request.send_header(name.replace("_", "-"), value)
    request.send_header("Content-Length", str(len(body)))
    request.end_headers()
    request.wfile.write(body)


@contextmanager
def answering(answer: Answer) -> Iterator[tuple[str, list[BaseHTTPRequestHandler]]]:
    """A server whose n-th request is answered by ``answer(request, n)``; its URL and requests."""
    requests: list[BaseHTTPRequestHandler] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            requests.append(self)
            answer(self, len(requests))

        do_POST = do_GET

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/models", requests
    finally:
        server.shutdown()
        server.server_close()


def refusal(answer: Answer, token: str | None = TOKEN) -> MvcError:
    with answering(answer) as (url, _), pytest.raises(MvcError) as caught:
        transport(url, token).head()
    assert TOKEN not in str(caught.value) and "\n" not in caught.value.message
    return caught.value


def test_the_token_goes_in_a_header_alone() -> None:
    with answering(lambda r, _: reply(r, 200, wire.encode(HEAD))) as (url, requests):
        assert transport(url, TOKEN).head() == HEAD
    assert requests[0].headers["Authorization"] == f"Bearer {TOKEN}"
    assert requests[0].path == "/models/v1/head"


def test_no_redirect_is_followed() -> None:
    with answering(lambda r, _: reply(r, 200)) as (other, others):
        error = refusal(lambda r, _: reply(r, 307, Location=other))
        assert isinstance(error, RemoteRefused) and "does not follow redirects" in error.message
        assert others == []


def test_what_is_no_mvc_is_said_to_be_none() -> None:
    error = refusal(lambda r, _: reply(r, 200, b"<html>", Content_Type="text/html"))
    assert isinstance(error, RemoteRefused) and "not an mvc server" in error.message
    error = refusal(lambda r, _: reply(r, 200, b"no message"))
    assert isinstance(error, RemoteRefused) and "cannot decode" in error.message
    error = refusal(lambda r, _: r.wfile.write(b"SSH-2.0-OpenSSH\r\n\r\n") and None)
    assert isinstance(error, RemoteRefused) and "not an mvc server" in error.message


@pytest.mark.parametrize("size", [1, 7, 9, 11])
def test_an_answer_that_is_cut_in_its_first_line_is_none(size: int) -> None:
    def cut(request: BaseHTTPRequestHandler, _: int) -> None:
        request.wfile.write(b"HTTP/1.1 200 OK"[:size])
        request.close_connection = True

    assert isinstance(refusal(cut), RemoteUnreachable)


def test_an_error_of_the_server_is_the_same_error_here() -> None:
    body = wire.encode_error(StorageFull("the quota is used up", hint="mvc gc"))
    error = refusal(lambda r, _: reply(r, 507, body))
    assert isinstance(error, StorageFull)
    assert (error.message, error.hint) == ("remote: the quota is used up", "mvc gc")
    body = wire.encode_error(RefConflict("heads/main: non-fast-forward"))
    assert isinstance(refusal(lambda r, _: reply(r, 409, body)), RefConflict)


def test_what_an_error_says_is_escaped_and_of_a_known_kind() -> None:
    hostile = RemoteRefused("\x1b[2Jno\nyes" + "x" * 100_000)
    error = refusal(lambda r, _: reply(r, 403, wire.encode_error(hostile)))
    assert "\x1b" not in error.message and len(error.message) < 9000


def test_an_endless_answer_is_not_read() -> None:
    def endless(request: BaseHTTPRequestHandler, _: int) -> None:
        request.send_response(200)
        request.send_header("Content-Type", wire.CONTENT)
        request.end_headers()
        request.close_connection = True
        try:
            while True:
                request.wfile.write(bytes(1 << 20))
        except OSError:
            pass

    assert "exceeds the size limit" in refusal(endless).message


def test_a_busy_server_is_asked_again_when_it_says() -> None:
    def answer(request: BaseHTTPRequestHandler, number: int) -> None:
        if number < 3:
            reply(request, 503 if number == 1 else 429, Retry_After="0")
        else:
            reply(request, 200, wire.encode(HEAD))

    with answering(answer) as (url, requests):
        assert transport(url).head() == HEAD
    assert len(requests) == 3


def test_a_connection_that_breaks_is_made_again() -> None:
    def answer(request: BaseHTTPRequestHandler, number: int) -> None:
        if number == 2:
            request.close_connection = True
        else:
            reply(request, 200, wire.encode(HEAD))

    with answering(answer) as (url, requests):
        opened = transport(url)
        assert opened.head() == opened.head() == HEAD
    assert len(requests) == 3


def test_nobody_there() -> None:
    with pytest.raises(RemoteUnreachable, match="connection refused") as caught:
        transport("http://127.0.0.1:1/models").head()
    assert caught.value.hint
    with pytest.raises(RemoteUnreachable, match="its host name is unknown"):
        transport("http://nowhere.invalid/models").head()
    with pytest.raises(RemoteUnreachable, match="no socket"):
        open_transport("unix:/nowhere/mvc.sock/models").head()


def test_no_token_goes_unprotected_beyond_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    remote = Remote("http://lab.example/models", "origin")
    monkeypatch.setenv(variable_of(remote), TOKEN)
    with pytest.raises(RemoteRefused, match="refused to send the token"):
        open_transport(remote)


def test_a_file_that_holds_no_authority_is_named(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("nothing")
    for name in ("ca.pem", "none.pem"):
        with pytest.raises(WrongUsage, match=name):
            open_transport(Remote("https://127.0.0.1/x", ca_file=str(tmp_path / name)))
