"""Servers that answer without end, or hardly: no operation waits longer than its allowance."""

from __future__ import annotations

import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import count, islice
from pathlib import Path

import pytest

from mvc.api.repository import Repository
from mvc.errors import Busy, MvcError, RemoteRefused, RemoteUnreachable
from mvc.model.statement import AnnotationStatement
from mvc.remote import slices, wire
from mvc.remote.transport import Place, Received, RemoteHead, Slice, Transport, Wanted
from tests.remote.kit.serving import transport

Lie = Callable[[socket.socket, bytes, int], None]
"""Answers a request, of which it gets the head, and whose number counts from 0."""

ALLOWED = 0.5
"""Seconds that an operation may wait here."""
HEAD = wire.encode(RemoteHead(b"i" * 32, Place(3, b"c" * 32), {}, 1))
OK = b"HTTP/1.1 200 OK\r\nContent-Type: application/x-mvc\r\n"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"
TO_THE_END = OK + b"Connection: close\r\n\r\n"
BUSY = b"HTTP/1.1 503 Busy\r\nRetry-After: 0\r\nContent-Length: 0\r\n\r\n"
BEGIN = b"".join(map(bytes, islice(slices.write(Slice(b"\x90", 1 << 40, ())), 3)))
"""Of a slice with a terabyte of records."""


@pytest.fixture(autouse=True)
def _hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mvc.remote.transports.waiting.PATIENCE", ALLOWED)
    monkeypatch.setattr("mvc.remote.transports.waiting.WORK", ALLOWED)
    monkeypatch.setattr("mvc.remote.transports.http.PAUSES", (0.01,) * 5)


@contextmanager
def lying(lie: Lie, received: int | None = None) -> Iterator[str]:
    """A server that lies; its URL. ``received``: bytes that its system keeps for it."""
    numbers = count()

    def serve(line: socket.socket) -> None:
        with line, suppress(OSError):
            while head := request(line):
                lie(line, head, next(numbers))

    def listen() -> None:
        with suppress(OSError):
            while True:
                threading.Thread(target=serve, args=(listening.accept()[0],), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listening:
        if received is not None:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, received)
        threading.Thread(target=listen, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}/models"
        finally:
            listening.shutdown(socket.SHUT_RDWR)


def request(line: socket.socket) -> bytes:
    """The head of a request; what is short behind it is read, too."""
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        byte = line.recv(1)
        if not byte:
            return b""
        head += byte
    size = re.search(rb"content-length: (\d+)", head.lower())
    left = int(size[1]) if size and int(size[1]) < 10_000 else 0
    while left:
        left -= len(line.recv(left))
    return head


def drip(line: socket.socket, data: bytes, pause: float = 0.02) -> None:
    for at in range(len(data)):
        line.sendall(data[at : at + 1])
        time.sleep(pause)


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def saying(*parts: bytes, again: bytes = b"", pause: float = 0.0, dripped: bool = False) -> Lie:
    """Says the parts, then ``again`` without end; ``dripped``: what comes last, byte by byte."""

    def lie(line: socket.socket, _: bytes, __: int) -> None:
        *first, last = parts
        line.sendall(b"".join(first))
        (drip if dripped and not again else socket.socket.sendall)(line, last)
        while again:
            (drip if dripped else socket.socket.sendall)(line, again)
            time.sleep(pause)
        time.sleep(60)

    return lie


def ask(opened: Transport) -> None:
    opened.head()


def take(opened: Transport) -> None:
    for given in opened.send(Wanted()):
        for _ in given.records:
            pass


def give(opened: Transport, size: int = 32 << 20) -> Received:
    return opened.receive(Slice(b"\x90", size, [bytes(1 << 20)] * (size >> 20)))


def ended(
    lie: Lie, act: Callable[[Transport], object] = ask, received: int | None = None
) -> MvcError:
    """How an operation ends with this server."""
    with lying(lie, received) as url:
        opened = transport(url)
        begun = time.monotonic()
        with pytest.raises(MvcError) as caught:
            act(opened)
        assert time.monotonic() - begun < 6 * ALLOWED
        opened.close()
    assert "\n" not in caught.value.message and caught.value.hint
    return caught.value


HEADS: dict[str, Lie] = {
    "silence": saying(b""),
    "continue without end": saying(b"", again=b"HTTP/1.1 100 Continue\r\n\r\n"),
    "continue now and then": saying(b"", again=b"HTTP/1.1 100 Continue\r\n\r\n", pause=0.05),
    "a status that drips": saying(b"HTTP/1.1 200 " + b"O" * 60_000, dripped=True),
    "headers that drip": saying(OK, b"X: " + b"y" * 60_000, dripped=True),
    "headers without end": saying(OK, again=b"X: y\r\n"),
    "the size of a chunk drips": saying(CHUNKED, b"0" * 60_000, dripped=True),
    "a head that drips": saying(CHUNKED, b"1\r\na\r\n" * 10_000, dripped=True),
    "trailers without end": saying(CHUNKED, chunk(HEAD), b"0\r\n", again=b"X: y\r\n"),
    "trailers that drip": saying(CHUNKED, chunk(HEAD), b"0\r\n", again=b"X: y\r\n", dripped=True),
    "less than it announces": saying(OK, b"Content-Length: 100\r\n\r\n", HEAD[:20]),
    "busy for ever": lambda line, *_: line.sendall(BUSY.replace(b"After: 0", b"After: 1")),
}


@pytest.mark.parametrize("name", HEADS)
def test_a_question_ends(name: str) -> None:
    error = ended(HEADS[name])
    kinds = {"headers without end": RemoteRefused, "busy for ever": Busy}
    assert type(error) is kinds.get(name, RemoteUnreachable)


BODIES: dict[str, Lie] = {
    "at work without end": saying(TO_THE_END, again=wire.frame(wire.DATA)),
    "at work now and then": saying(TO_THE_END, again=wire.frame(wire.DATA), pause=0.05),
    "half a frame": saying(TO_THE_END, b"d\0\0"),
    "a byte a frame": saying(
        TO_THE_END,
        wire.frame(wire.DATA, BEGIN),
        again=wire.frame(wire.DATA, b"\0"),
        pause=0.02,
    ),
    "4 GiB announced": saying(TO_THE_END, b"d\xff\xff\xff\xff" + BEGIN),
    "frames that drip": saying(
        TO_THE_END, again=wire.frame(wire.DATA, BEGIN + b"\0" * 100), dripped=True
    ),
}


@pytest.mark.parametrize("name", BODIES)
def test_a_fetch_ends(name: str) -> None:
    assert isinstance(ended(BODIES[name], take), RemoteUnreachable)


@pytest.mark.parametrize("is_busy", [False, True])
def test_a_fetch_ends_that_is_cut_after_each_byte(is_busy: bool) -> None:
    whole = BEGIN + b"\0" * 100_000

    def lie(line: socket.socket, head: bytes, number: int) -> None:
        at = int(head.partition(b"skip=")[2].partition(b"&")[0])
        if is_busy and number % 2:
            line.sendall(BUSY)
            return
        line.sendall(TO_THE_END + wire.frame(wire.DATA, whole[at : at + 1]))
        line.shutdown(socket.SHUT_RDWR)

    assert isinstance(ended(lie, take), RemoteUnreachable | Busy)


@pytest.mark.parametrize("pause", [60, 0.01])
def test_a_push_ends_that_is_hardly_read(pause: float) -> None:
    def lie(line: socket.socket, head: bytes, _: int) -> None:
        if head.startswith(b"GET"):
            line.sendall(OK + b"Content-Length: 1\r\n\r\n0")
        while line.recv(1):
            time.sleep(pause)

    assert isinstance(ended(lie, give, received=4096), RemoteUnreachable)


def test_a_push_ends_that_is_proven_for_ever() -> None:
    at_work = saying(TO_THE_END, again=wire.frame(wire.DATA), pause=0.05)
    assert isinstance(ended(at_work, lambda opened: give(opened, 0)), RemoteUnreachable)


def test_a_proxy_that_hardly_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    with lying(saying(b"HTTP/1.1 200 OK\r\nX: " + b"y" * 60_000, dripped=True)) as proxy:
        monkeypatch.setenv("HTTPS_PROXY", proxy.removesuffix("/models"))
        monkeypatch.delenv("NO_PROXY", raising=False)
        begun = time.monotonic()
        with pytest.raises(RemoteUnreachable):
            transport("https://models.invalid/x").head()
        assert time.monotonic() - begun < 6 * ALLOWED


def test_a_handshake_that_is_not_answered() -> None:
    with lying(saying(b"")) as url:
        begun = time.monotonic()
        with pytest.raises(RemoteUnreachable):
            transport(url.replace("http:", "https:")).head()
        assert time.monotonic() - begun < 6 * ALLOWED


@pytest.mark.parametrize("drips", [False, True])
def test_slices_without_end_that_bring_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, drips: bool
) -> None:
    """They may come as fast as useful bytes do on a slow line."""
    monkeypatch.setattr("mvc.remote.fetch.IN_VAIN", 10_000 if drips else 20)
    said = AnnotationStatement(subject=bytes(32), node=bytes(16), note="x" * 200)
    head = slices.encode_entries([slices.sent_with([said])])
    vain = wire.frame(wire.DATA, b"".join(map(bytes, slices.write(Slice(head, 0, ())))))

    def lie(line: socket.socket, head: bytes, _: int) -> None:
        if b"/v1/head" in head:
            line.sendall(OK + b"Content-Length: %d\r\n\r\n" % len(HEAD) + HEAD)
            return
        line.sendall(TO_THE_END)
        while True:
            line.sendall(vain)
            time.sleep(0.1 if drips else 0)

    with lying(lie) as url, Repository.init(tmp_path / "copy") as repo:
        repo.remotes.add("origin", url)
        begun = time.monotonic()
        with pytest.raises(RemoteRefused, match="origin keeps sending data"):
            repo.fetch()
        assert time.monotonic() - begun < 6 * ALLOWED


def test_an_honest_server_on_a_slow_line_is_waited_for() -> None:
    """Either way takes longer than the allowance, and brings more than it has to."""
    given = Slice(b"\x90", 8 << 10, [bytes(8 << 10)])
    whole = b"".join(map(bytes, slices.write(given)))

    def lie(line: socket.socket, head: bytes, _: int) -> None:
        if b"/v1/receive" in head:
            size = re.search(rb"content-length: (\d+)", head.lower())
            left = int(size[1]) if size else 0
            while left:
                left -= len(line.recv(min(left, 1 << 16)))
                time.sleep(0.002)
            line.sendall(TO_THE_END + wire.frame(wire.ANSWER, wire.encode(received)))
        else:
            line.sendall(TO_THE_END)
            for at in range(0, len(whole), 256):
                line.sendall(wire.frame(wire.DATA, whole[at : at + 256]))
                time.sleep(0.05)
        line.sendall(wire.frame(wire.END))
        line.shutdown(socket.SHUT_WR)

    received = Received(Place(4, b"c" * 32))
    with lying(lie, received=1 << 16) as url:
        begun = time.monotonic()
        (came,) = [
            (each, b"".join(map(bytes, each.records))) for each in transport(url).send(Wanted())
        ]
        assert came[1] == bytes(8 << 10)
        assert time.monotonic() - begun > 2 * ALLOWED
        begun = time.monotonic()
        assert give(transport(url), 31 << 20) == received
        assert time.monotonic() - begun > 2 * ALLOWED
