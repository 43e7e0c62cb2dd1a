"""A real server process, a real client, TLS between them."""

from __future__ import annotations

import contextlib
import errno
import re
import resource
import signal
import socket
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import repeat
from pathlib import Path
from typing import ClassVar

import pytest
import trustme
import uvicorn
from starlette.applications import Starlette

from mvc.api.repository import Repository
from mvc.errors import (
    MvcError,
    RefConflict,
    RemoteRefused,
    RemoteUnreachable,
    StorageFull,
    WrongUsage,
)
from mvc.ids import CommitId
from mvc.io.files import FileSystem
from mvc.limits import MIB
from mvc.remote import slices, wire
from mvc.remote.remotes import Remote
from mvc.remote.transport import Move, Slice, Wanted
from mvc.remote.transports.http import HttpTransport
from mvc.remote.transports.opening import open_transport
from mvc.server import app, listening
from mvc.server.app import SENDS, UPLOADS, WATCHES
from mvc.serving.reports import Reports
from mvc.testing.files import FailingFS
from tests.remote.kit.serving import Serving, serving, token, transport
from tests.server.moving import answering, content, move, record, served_folder
from tests.waiting import until

SCOPES = ("read", "push:heads/*")


class Authority:
    """A private authority, and certificates of it."""

    def __init__(self, folder: Path) -> None:
        self._ca, self._folder = trustme.CA(), folder
        self.file = str(folder / "ca.pem")
        self._ca.cert_pem.write_to_path(self.file)

    def issue(self, name: str = "127.0.0.1", **options: datetime) -> list[object]:
        """Arguments of ``mvc serve`` for a certificate of this name."""
        issued = self._ca.issue_cert(name, **options)
        chain, key = self._folder / f"{name}.pem", self._folder / f"{name}.key"
        chain.unlink(missing_ok=True)
        for pem in issued.cert_chain_pems:
            pem.write_to_path(chain, append=True)
        issued.private_key_pem.write_to_path(key)
        return ["--tls-cert", chain, "--tls-key", key]


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ca"))


def test_what_is_pushed_over_tls_comes_back(
    folder: Path, source: Repository, authority: Authority, tmp_path: Path
) -> None:
    with serving(folder, *authority.issue()) as server:
        assert server.url.startswith("https://")
        opened = transport(f"{server.url}/models", token(folder, *SCOPES), ca_file=authority.file)
        moved = move(source, opened, "heads/main")
        assert moved == ("heads/main",)
        with Repository.init(tmp_path / "copy") as copy:
            move(opened, copy, "heads/main")
            assert content(copy) == content(source)
    assert content(folder / "models") == content(source)


def _pass_on(source: socket.socket, to: socket.socket) -> None:
    """Passes on what comes until its end, and the end."""
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 16):
            to.sendall(data)
        to.shutdown(socket.SHUT_WR)


class Tunnel(BaseHTTPRequestHandler):
    """A proxy that leads to where CONNECT says."""

    asked: ClassVar[list[tuple[str, str | None]]] = []

    def do_CONNECT(self) -> None:
        self.asked.append((self.path, self.headers["Proxy-Authorization"]))
        host, _, port = self.path.rpartition(":")
        with socket.create_connection((host, int(port))) as there:
            self.send_response(200)
            self.end_headers()
            back = threading.Thread(target=_pass_on, args=(there, self.connection))
            back.start()
            _pass_on(self.connection, there)
            back.join()
        self.close_connection = True

    def log_message(self, *_: object) -> None:
        pass


def test_a_proxy_leads_to_the_server(
    folder: Path, source: Repository, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = token(folder, *SCOPES)
    proxy = ThreadingHTTPServer(("127.0.0.1", 0), Tunnel)
    threading.Thread(target=proxy.serve_forever, daemon=True).start()
    for name in ("https_proxy", "no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HTTPS_PROXY", f"http://me:word@127.0.0.1:{proxy.server_port}")
    with serving(folder, *authority.issue()) as server:
        opened = transport(f"{server.url}/models", text, ca_file=authority.file)
        assert move(source, opened, "heads/main") == ("heads/main",)
        assert set(Tunnel.asked) == {(f"127.0.0.1:{server.port}", "Basic bWU6d29yZA==")}
        Tunnel.asked.clear()
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        transport(f"{server.url}/models", text, ca_file=authority.file).head()
        assert Tunnel.asked == []
        monkeypatch.delenv("NO_PROXY")
        proxy.shutdown()
        proxy.server_close()
        with pytest.raises(RemoteUnreachable) as away:
            transport(f"{server.url}/models", text, ca_file=authority.file).head()
        assert "word" not in f"{away.value} {away.value.hint}"
        monkeypatch.setenv("HTTPS_PROXY", "nonsense://me:word@there")
        with pytest.raises(WrongUsage, match="HTTPS_PROXY is invalid"):
            transport(f"{server.url}/models", text, ca_file=authority.file)


def test_certificates_are_verified(folder: Path, authority: Authority, tmp_path: Path) -> None:
    text = token(folder, *SCOPES)
    long_ago = datetime.now(UTC) - timedelta(days=400)

    def failure(url: str, ca_file: str = authority.file) -> MvcError:
        with pytest.raises(MvcError) as caught:
            transport(f"{url}/models", text, ca_file=ca_file).head()
        assert type(caught.value) is RemoteUnreachable and "\n" not in str(caught.value)
        assert text not in str(caught.value)
        return caught.value

    with serving(folder, *authority.issue()) as server:
        (tmp_path / "other").mkdir()
        other = Authority(tmp_path / "other")
        assert "ca_file" in str(failure(server.url, other.file).hint)
        assert "ca_file" in str(failure(server.url, "").hint)
        assert "ended too early" in failure(server.url.replace("https", "http")).message
    with serving(folder) as server:
        assert "TLS handshake" in failure(server.url.replace("http", "https")).message
    with socket.create_server(("127.0.0.1", 0)) as hasty:
        threading.Thread(target=lambda: hasty.accept()[0].close(), daemon=True).start()
        error = failure(f"https://127.0.0.1:{hasty.getsockname()[1]}")
        assert "does not answer" in error.message
    expired = authority.issue(not_before=long_ago, not_after=long_ago + timedelta(days=1))
    with serving(folder, *expired) as server:
        error = failure(server.url)
        assert "certificate has expired" in error.message and "renew" in str(error.hint)
    with serving(folder, *authority.issue("lab.example")) as server:
        assert "127.0.0.1" in failure(server.url).message


def test_the_same_command_works_once_the_cause_is_gone(
    folder: Path, source: Repository, tmp_path: Path
) -> None:
    with serving(folder) as server:
        opened = transport(f"{server.url}/none", token(folder, *SCOPES))
        with pytest.raises(RemoteRefused, match="there is no repository none"):
            opened.head()
        Repository.init(folder / "none", bare=True).close()
        assert move(source, opened, "heads/main") == ("heads/main",)


def test_names_lead_nowhere_else(folder: Path, source: Repository) -> None:
    (folder / "link").symlink_to(source.root)
    (folder / "inner").mkdir()
    (folder / "inner/.mvc").symlink_to(source.root / ".mvc")
    reads, all_of_it = token(folder, *SCOPES), token(folder, "admin", name="b")
    with serving(folder) as server:
        with pytest.raises(RemoteRefused):
            transport(server.url, reads).head()
        for name in (
            "../source", "..", ".mvc", "models/.mvc", "models/../models", "link", "inner", "a//b",
            "models/",
        ):  # fmt: skip
            answer = raw(server, f"GET /{name}/v1/head HTTP/1.1", all_of_it)
            assert b" 404 " in answer or b" 400 " in answer


def head_of(line: str, text: str, *headers: str) -> bytes:
    """A request up to its body."""
    lines = [line, "Host: x", f"Authorization: Bearer {text}", *headers, "", ""]
    return "\r\n".join(lines).encode()


def raw(server: Serving, line: str, text: str = "", *headers: str, body: bytes = b"") -> bytes:
    """The answer to bytes that no client of mvc sends."""
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        connection.sendall(head_of(line, text, "Connection: close", *headers) + body)
        parts = []
        while part := connection.recv(1 << 16):
            parts.append(part)
    return b"".join(parts)


class Shared:
    """A served folder that several tests share."""

    def __init__(self, folder: Path, server: Serving) -> None:
        self.folder, self.server = folder, server

    def transport(self, *scopes: str, name: str, days: int = 1) -> HttpTransport:
        """For who has a new token."""
        return transport(
            f"{self.server.url}/models", token(self.folder, *scopes, name=name, days=days)
        )


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shared]:
    folder = served_folder(tmp_path_factory.mktemp("tokens") / "served")
    with serving(folder) as server:
        yield Shared(folder, server)


class TestTokens:
    def test_without_one_nobody_is_let_in(self, served: Shared) -> None:
        with pytest.raises(RemoteRefused, match="requires a token") as caught:
            transport(f"{served.server.url}/models").head()
        assert "MVC_TOKEN" in str(caught.value.hint)
        with pytest.raises(RemoteRefused, match="does not know this token"):
            transport(f"{served.server.url}/models", "mvc_" + "x" * 43).head()

    def test_who_has_none_is_told_the_variable_of_the_remote(self, served: Shared) -> None:
        url = f"{served.server.url}/models"
        for remote, told in [
            (Remote(url, "gpu-lab"), "set MVC_TOKEN_GPU_LAB,"),
            (Remote(url, "origin"), "token_file=FILE ('mvc clone -o'"),
            (Remote(url), "mvc remote add NAME URL"),
        ]:
            with (
                contextlib.closing(open_transport(remote)) as opened,
                pytest.raises(RemoteRefused) as caught,
            ):
                opened.head()
            assert told in str(caught.value.hint)

    def test_one_that_has_expired(self, served: Shared, monkeypatch: pytest.MonkeyPatch) -> None:
        with pytest.raises(RemoteRefused, match="the token old has expired"):
            served.transport("read", name="old", days=-1).head()

    def test_one_for_another_repository(self, served: Shared) -> None:
        with pytest.raises(RemoteRefused, match="no scope for this repository") as caught:
            served.transport("team/*:read", name="team").head()
        assert "check the name in the URL" in str(caught.value.hint)

    def test_who_may_read_cannot_push(self, served: Shared, source: Repository) -> None:
        opened = served.transport("read", name="reader")
        assert opened.head().scopes == ("read",)
        with pytest.raises(RemoteRefused, match=r"needs the scope push:heads/\*"):
            move(source, opened, "heads/main")

    def test_who_may_push_one_branch_cannot_read_or_push_others(
        self, served: Shared, source: Repository, tmp_path: Path
    ) -> None:
        opened = served.transport("push:heads/nodes/7/*", name="seven")
        assert move(source, opened, "heads/nodes/7/main") == ("heads/nodes/7/main",)
        with pytest.raises(RemoteRefused, match="needs the scope push:heads/main"):
            move(source, opened, "heads/main")
        with Repository.init(tmp_path / "copy") as copy, pytest.raises(RemoteRefused, match="read"):
            move(opened, copy, "heads/nodes/7/main")

    def test_append_only_is_push_alone(self, served: Shared, source: Repository) -> None:
        opened = served.transport("push:*", name="appends")
        move(source, opened, "heads/append")
        tip, old = source.find("HEAD"), source.find("HEAD~2")
        with pytest.raises(RefConflict, match="non-fast-forward"):
            move(source, opened, Move("heads/append", tip, old))
        with pytest.raises(RemoteRefused, match="needs the scope admin"):
            move(source, opened, Move("heads/append", tip, old, force=True))
        with pytest.raises(RemoteRefused, match="needs the scope admin"):
            move(source, opened, Move("heads/append", tip, None))
        owner = served.transport("admin", name="owner")
        assert move(source, owner, Move("heads/append", tip, old, force=True)) == ("heads/append",)
        assert move(source, owner, Move("heads/append", old, None)) == ("heads/append",)

    def test_deployments_need_their_own_scope(self, served: Shared, source: Repository) -> None:
        source.deploy("HEAD", "prod")
        narrow = served.transport("push:*,deploy:lab", name="lab")
        with pytest.raises(RemoteRefused, match="needs the scope deploy:prod"):
            move(source, narrow, "heads/deployed")
        wide = served.transport("push:*,deploy:pr*", name="prod")
        move(source, wide, "heads/deployed")
        move(source, narrow, "heads/deployed-too")  # it says nothing that is new there
        told = r"^\S+Z 127.0.0.1 lab POST models receive 200 remote-refused \d+ms$"
        assert re.search(told, served.server.log, re.M)

    def test_a_report_of_another_node_names_its_scope_alone(
        self, served: Shared, tmp_path: Path
    ) -> None:
        narrow = served.transport("read,deploy:nodes/7/*", name="7")
        reports = Reports(tmp_path, "8")
        reports.served(CommitId(bytes(32)), "prod", time.time_ns())
        with pytest.raises(RemoteRefused, match=r"needs the scope deploy:nodes/8/prod(\n|$)"):
            reports.send(narrow)

    def test_strangers_are_not_told_where_tokens_lie(self, served: Shared) -> None:
        text = token(served.folder, "read", name="before")
        (served.folder / ".mvc-tokens").chmod(0o644)
        try:
            with pytest.raises(RemoteRefused, match="cannot read its tokens") as caught:
                transport(f"{served.server.url}/models", text).head()
        finally:
            (served.folder / ".mvc-tokens").chmod(0o600)
        assert str(served.folder) not in f"{caught.value}{caught.value.hint}"

    def test_no_word_of_one_is_logged(self, served: Shared) -> None:
        text = token(served.folder, "read", name="secret")
        transport(f"{served.server.url}/models", text).head()
        raw(served.server, f"GET /models/v1/head?token={text} HTTP/1.1", text)
        raw(served.server, "GET /a%0Afake%1B[2J%20line/v1/head HTTP/1.1", text)
        log = served.server.log
        assert "secret GET models head 200" in log
        assert text not in log and "\x1b" not in log and "\nfake" not in log
        assert "mvc_" not in log


def test_requests_are_bounded(folder: Path) -> None:
    text = token(folder, "admin")
    with serving(folder) as server:
        for lines in (["X: " + "y" * 100_000], [f"X{i}: y" for i in range(9000)]):
            assert b" 200 " not in raw(server, "GET /models/v1/head HTTP/1.1", text, *lines)
        upload = "POST /models/v1/receive?upload=" + "0" * 32 + "&at=0"
        size = (32 << 20) + 1
        big = raw(server, f"{upload} HTTP/1.1", text, f"Content-Length: {size}", body=bytes(size))
        assert b" 413 " in big
        wanted = "POST /models/v1/send?skip=0 HTTP/1.1"
        assert b" 403 " in raw(server, wanted, text, "Content-Length: 5", body=b"hello")
        for query in (
            "",
            "?upload=x&at=0",
            "?upload=" + "0" * 32,
            "?upload=" + "0" * 32 + "&at=-1",
        ):
            line = f"POST /models/v1/receive{query} HTTP/1.1"
            assert b" 403 " in raw(server, line, text, "Content-Length: 1", body=b"x")
        assert b" 404 " in raw(server, "GET /models/v2/head HTTP/1.1", text)
        assert b" 405 " in raw(server, "DELETE /models/v1/head HTTP/1.1", text)
        assert " - GET - - 404 0ms" in server.log and " - DELETE - - 405 0ms" in server.log
        assert transport(f"{server.url}/models", text).head()


def test_a_quota_is_named_and_nothing_stays(
    folder: Path, source: Repository, tmp_path: Path
) -> None:
    text = token(folder, *SCOPES)
    record(source, 9, size=200_000)
    with serving(folder, "--quota", "100kB") as server:
        opened = transport(f"{server.url}/models", text)
        with pytest.raises(StorageFull, match="quota of this repository is used up"):
            move(source, opened, "heads/main")
        assert "heads/main" not in opened.head().refs
    assert not list((folder / "models/.mvc/uploads").glob("*[0-9a-f]"))
    with serving(folder, "--quota", "10MB") as server:
        assert move(source, transport(f"{server.url}/models", text), "heads/main")


def test_a_full_disk_is_named_and_nothing_stays(folder: Path, source: Repository) -> None:
    text = token(folder, *SCOPES)
    uploads = folder / "models/.mvc/uploads"
    full = FailingFS(fail_at=0, error=errno.ENOSPC, persistent=True, within=uploads)
    record(source, 9, size=200_000)
    with answering(folder, full) as url:
        opened = transport(f"{url}/models", text)
        opened.head()
        full.fail_at = full.calls + 3  # the folder and the file are made
        with pytest.raises(StorageFull):
            move(source, opened, "heads/main")
        assert full.failures
        full.fail_at = 0
        assert not list(uploads.glob("*[0-9a-f]"))
        assert move(source, opened, "heads/main")


def test_the_end_of_a_server_is_in_order(folder: Path) -> None:
    text = token(folder, *SCOPES)
    with serving(folder) as server:
        opened = transport(f"{server.url}/models", text)
        mark = opened.live("prod")
        heard = []
        thread = threading.Thread(target=lambda: heard.append(opened.live("prod", mark, 30)))
        thread.start()
        time.sleep(0.3)
        assert server.end() == 0
        thread.join()
        assert heard == [None]
        assert "Traceback" not in server.log


def test_a_repository_in_another_ones_place_is_seen(folder: Path, source: Repository) -> None:
    text = token(folder, *SCOPES)
    with serving(folder) as server:
        opened = transport(f"{server.url}/models", text)
        first = opened.head().identity
        (folder / "models").rename(folder / "models-2")
        with pytest.raises(RemoteRefused):
            opened.head()
        Repository.init(folder / "models", bare=True).close()
        assert opened.head().identity != first


def test_a_socket_of_unix(folder: Path, source: Repository, tmp_path: Path) -> None:
    text, path = token(folder, *SCOPES), tmp_path / "mvc.sock"
    for _ in range(2):  # the second time the socket of the first one is there
        with serving(folder, address=f"unix:{path}") as server:
            assert server.url == f"unix:{path}"
            assert path.stat().st_mode & 0o777 == 0o660
            opened = transport(f"{server.url}/models", text)
            assert move(source, opened, "heads/main") or True
            assert opened.head().refs["heads/main"] == source.find("HEAD")


def test_a_connection_that_says_nothing_keeps_nobody_away(folder: Path) -> None:
    text = token(folder, *SCOPES)
    with serving(folder) as server:
        idle = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(50)]
        assert transport(f"{server.url}/models", text).head()
        for each in idle:
            each.close()


def test_who_asks_slowly_keeps_nobody_from_fetching(folder: Path, source: Repository) -> None:
    holder = token(folder, *SCOPES)
    head = (
        f"POST /models/v1/send?skip=0 HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {holder}\r\n"
        "Content-Length: 1000\r\n\r\nx"
    )
    with serving(folder) as server, contextlib.ExitStack() as held:
        opened = held.enter_context(contextlib.closing(transport(f"{server.url}/models", holder)))
        move(source, opened, "heads/main")
        for _ in range(40):
            slow = held.enter_context(socket.create_connection(("127.0.0.1", server.port)))
            slow.sendall(head.encode())
        time.sleep(0.2)
        assert list(opened.send(Wanted()))


def test_who_uploads_slowly_leaves_places_to_others(folder: Path, source: Repository) -> None:
    honest, slow = token(folder, *SCOPES), token(folder, "push:heads/x/*", name="slow")
    with serving(folder) as server, contextlib.ExitStack() as held:
        for number in range(UPLOADS + 6):
            line = f"POST /models/v1/receive?upload={number:032x}&at=0&last=0 HTTP/1.1"
            each = held.enter_context(socket.create_connection(("127.0.0.1", server.port)))
            each.sendall(head_of(line, slow, "Content-Length: 1000000") + b"x" * 10)
        time.sleep(0.3)
        asked = time.monotonic()
        opened = held.enter_context(contextlib.closing(transport(f"{server.url}/models", honest)))
        assert move(source, opened, "heads/main") == ("heads/main",)
        assert time.monotonic() - asked < 10
        assert "503" not in server.log


def test_a_slice_for_which_there_is_no_room_is_refused_at_its_beginning(
    folder: Path, source: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FileSystem, "free_bytes", lambda *_: 40 << 20)
    text, uploads = token(folder, *SCOPES), folder / "models/.mvc/uploads"
    with answering(folder) as url:
        with contextlib.closing(transport(f"{url}/models", text)) as opened:
            large = Slice(b"\x90", 40 << 20, map(bytes, repeat(MIB, 40)))
            with pytest.raises(
                StorageFull, match=r"^remote: the server's disk is nearly full: .* MB do not fit"
            ):
                opened.receive(large)
            assert list(uploads.iterdir()) == []
            assert move(source, opened, "heads/main") == ("heads/main",)
        address = ("127.0.0.1", int(url.rpartition(":")[2]))
        line = f"POST /models/v1/receive?upload={'0' * 32}&at=0&last=0 HTTP/1.1"
        for body, said in (
            (b"mvS1" + bytes(8) + (1 << 60).to_bytes(8, "little"), b"does not begin with a slice"),
            (b"mvS1" + bytes(8) + (1 << 49).to_bytes(8, "little"), b"nearly full"),
            (b"".join(map(bytes, slices.write(Slice(b"\x90", 0, ())))) + b"x", b"after its end"),
        ):
            with socket.create_connection(address) as connection:
                size = f"Content-Length: {len(body)}"
                connection.sendall(head_of(line, text, size, "Connection: close") + body)
                assert said in connection.makefile("rb").read()
            assert all(path.name.endswith(".answer") for path in uploads.iterdir())


def test_who_waits_for_everything_leaves_places_to_others(folder: Path) -> None:
    honest, many = token(folder, "read"), token(folder, "read", name="many")
    with serving(folder) as server, contextlib.ExitStack() as held:
        for number in range(WATCHES + 6):
            line = f"GET /models/v1/live?target=t{number}&mark=-&wait=60 HTTP/1.1"
            each = held.enter_context(socket.create_connection(("127.0.0.1", server.port)))
            each.sendall(head_of(line, many))
        time.sleep(0.5)
        answer = raw(server, "GET /models/v1/live?target=prod&mark=-&wait=1 HTTP/1.1", honest)
        assert b" 304 " in answer.partition(b"\r\n")[0]


def test_who_reads_slowly_leaves_places_to_others(folder: Path, tmp_path: Path) -> None:
    honest, slow = token(folder, *SCOPES), token(folder, "read", name="slow")
    with Repository.init(tmp_path / "large") as large, contextlib.ExitStack() as held:
        record(large, 1, 1 << 22)  # more than the system keeps of what nobody reads
        server = held.enter_context(serving(folder))
        opened = held.enter_context(contextlib.closing(transport(f"{server.url}/models", honest)))
        move(large, opened, "heads/main")
        body = wire.encode(Wanted())
        request = head_of(
            "POST /models/v1/send?skip=0 HTTP/1.1", slow, f"Content-Length: {len(body)}"
        )
        for _ in range(SENDS + 6):
            each = socket.socket()
            each.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            held.enter_context(each)
            each.connect(("127.0.0.1", server.port))
            each.sendall(request + body)
        time.sleep(0.5)
        asked = time.monotonic()
        assert list(opened.send(Wanted()))
        assert time.monotonic() - asked < 10


def test_a_body_with_two_ends_is_refused(served: Shared) -> None:
    """Behind a proxy that believes the other one, it would smuggle a request of somebody else."""
    folder, server = served.folder, served.server
    text = token(folder, *SCOPES, name="smuggler")
    line = f"POST /models/v1/receive?upload={'0' * 32}&at=0&last=0 HTTP/1.1"
    for pair in (("Content-Length: 4", "Transfer-Encoding: chunked"),
                 ("Transfer-Encoding: chunked", "Content-Length: 4"),
                 ("Content-Length: 4", "Content-Length: 5")):  # fmt: skip
        answer = raw(server, line, text, *pair, body=b"5\r\nhello\r\n0\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 400"), answer
    assert not (folder / "models/.mvc/uploads" / ("0" * 32)).exists()


def test_a_body_that_hardly_goes_on_is_ended(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "SILENCE", 0.5)
    text = token(folder, *SCOPES)
    line = f"POST /models/v1/receive?upload={'0' * 32}&at=0&last=0 HTTP/1.1"
    with answering(folder) as url:
        address = ("127.0.0.1", int(url.rpartition(":")[2]))
        with socket.create_connection(address) as slow:
            slow.sendall(head_of(line, text, "Content-Length: 1000000"))
            slow.settimeout(0.1)
            answer = b""
            for _ in range(50):
                slow.sendall(b"x")
                with contextlib.suppress(TimeoutError):
                    answer += slow.recv(1000)
                    break
            assert b" 408 " in answer


def test_what_is_here_of_an_upload_is_said_once_nobody_brings_more(folder: Path) -> None:
    """A connection may break for the client before the server has taken what it brought."""
    text, upload = token(folder, "admin"), "/models/v1/receive?upload=" + "0" * 32

    def held() -> bytes:
        return raw(server, f"GET {upload} HTTP/1.1", text)

    def broken() -> bool:
        """Whether the server has read the ten bytes before it saw that the connection broke."""
        with socket.create_connection(("127.0.0.1", server.port)) as slow:
            lines = f"Host: x\r\nAuthorization: Bearer {text}\r\nContent-Length: 100\r\n\r\n"
            slow.sendall(f"POST {upload}&at=0 HTTP/1.1\r\n{lines}0123456789".encode())
            until(lambda: b" 503 " in held())
        until(lambda: b" 503 " not in held())
        assert held().endswith((b"\r\n0", b"\r\n10"))
        return held().endswith(b"\r\n10")

    with serving(folder) as server:
        assert held().endswith(b"\r\n0")
        until(broken)
        again = raw(server, f"POST {upload}&at=0 HTTP/1.1", text, "Content-Length: 1", body=b"0")
        assert b" 503 " in again and held().endswith(b"\r\n10")


def test_a_thousand_may_wait(folder: Path, source: Repository) -> None:
    text = token(folder, *SCOPES, "deploy:prod")
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (before[1], before[1]))
    waiting: list[socket.socket] = []
    try:
        with serving(folder) as server:
            opened = transport(f"{server.url}/models", text)
            lines = ["GET /models/v1/live?target=prod&mark=-&wait=60 HTTP/1.1", "Host: x"]
            request = "\r\n".join([*lines, f"Authorization: Bearer {text}", "", ""]).encode()
            for _ in range(1000):
                waiting.append(socket.create_connection(("127.0.0.1", server.port)))
                waiting[-1].sendall(request)
            source.deploy("HEAD", "prod")
            assert move(source, opened, "heads/main") == ("heads/main",)
            for each in waiting:
                assert each.recv(12) == b"HTTP/1.1 200"
            assert server.memory < 200 << 20
    finally:
        for each in waiting:
            each.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_a_token_is_in_no_list_of_processes_log_or_file(
    folder: Path, source: Repository, tmp_path: Path
) -> None:
    text = token(folder, *SCOPES)
    with serving(folder) as server:
        opened = transport(f"{server.url}/models", text)
        move(source, opened, "heads/main")
        with pytest.raises(RemoteRefused) as caught:
            move(source, opened, "tags/v1")
        assert text not in f"{caught.value!r}{caught.value.__notes__}{opened!r}{vars(opened)!r}"
        for line in Path("/proc").glob("[0-9]*/cmdline"):
            with contextlib.suppress(OSError):
                assert text.encode() not in line.read_bytes()
        assert text not in server.log
    for path in (p for p in tmp_path.rglob("*") if p.is_file()):
        assert text.encode() not in path.read_bytes(), path


def test_a_connection_on_which_no_request_begins_is_ended(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listening, "BEGINS", 0.1)
    text = token(folder, *SCOPES)
    with answering(folder) as url:
        address = ("127.0.0.1", int(url.rpartition(":")[2]))
        with socket.create_connection(address) as silent, socket.create_connection(address) as slow:
            slow.sendall(b"GET /models/v1/head HTTP/1.1\r\nX: ")
            assert silent.recv(1) == slow.recv(1) == b""
        assert transport(f"{url}/models", text).head()


def test_a_signal_before_the_loop_of_events_begins_stops_the_server(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """``mvc serve`` has printed its address by then, so a signal may arrive."""
    begin, ended = uvicorn.Server.run, []

    def run(server: uvicorn.Server, sockets: list[socket.socket]) -> None:
        signal.raise_signal(signal.SIGTERM)
        late = threading.Timer(10, server.handle_exit, (signal.SIGTERM, None))
        late.start()
        begin(server, sockets)
        ended.append(late.is_alive())
        late.cancel()

    monkeypatch.setattr(uvicorn.Server, "run", run)
    with socket.create_server(("127.0.0.1", 0)) as listens:
        listening.run(listening.server_of(Starlette()), listens)
    assert ended == [True]


def test_an_answer_goes_on_only_as_it_was(folder: Path, source: Repository) -> None:
    text = token(folder, "admin")
    body = wire.encode(Wanted())
    length = f"Content-Length: {len(body)}"
    with serving(folder) as server:
        move(source, transport(f"{server.url}/models", text), "heads/main")
        for query in ("skip=100&check=00", "skip=99999999&check=00"):
            line = f"POST /models/v1/send?{query} HTTP/1.1"
            answer = raw(server, line, text, length, body=body)
            assert b"changed while the connection was broken" in answer
            assert len(answer) < 1000
