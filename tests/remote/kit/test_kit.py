"""The kit itself: the proxy cuts where it says, ssh runs the command, the history has all kinds."""

from __future__ import annotations

import http.client
import os
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.remote.kit import ssh
from tests.remote.kit.proxy import Faults, Proxy

BODY = b"x" * 5000


class Answer(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    asked = 0

    def do_GET(self) -> None:
        Answer.asked += 1
        self.send_response(200)
        self.send_header("Content-Length", str(len(BODY)))
        self.end_headers()
        self.wfile.write(BODY)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def proxy() -> Iterator[Proxy]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Answer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        with Proxy(("127.0.0.1", server.server_port)) as made:
            yield made
        server.shutdown()


def get(port: int, times: int = 1) -> list[int]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    found = []
    for _ in range(times):
        connection.request("GET", "/")
        answer = connection.getresponse()
        assert answer.status != 200 or answer.read() == BODY
        found.append(answer.status)
    connection.close()
    return found


def test_bytes_and_requests_are_counted(proxy: Proxy) -> None:
    assert get(proxy.port, 3) == [200, 200, 200]
    assert proxy.trips == 3 and proxy.down > 3 * len(BODY) and proxy.up > 0


@pytest.mark.parametrize("faults", [Faults(up=10), Faults(down=3000), Faults(lost=1)])
def test_a_fault_happens_once(proxy: Proxy, faults: Faults) -> None:
    limit, reaches, before = faults.down, faults.up is None, Answer.asked
    proxy.again(faults)
    with pytest.raises((http.client.HTTPException, OSError)):
        get(proxy.port)
    assert limit is None or proxy.down == limit
    assert (Answer.asked > before) == reaches
    assert get(proxy.port) == [200]


def test_a_refusal_reaches_no_server(proxy: Proxy) -> None:
    before = Answer.asked
    proxy.again(Faults(refused=1))
    assert get(proxy.port) == [503]
    assert get(proxy.port) == [200]
    assert Answer.asked == before + 1


def test_ssh_runs_the_command_and_counts(tmp_path: Path) -> None:
    variables = os.environ | ssh.install(tmp_path / "bin")
    line = ["ssh", "-o", "BatchMode=yes", "-p", "22", "example.org", "cat; exit 3"]
    done = subprocess.run(line, input=b"words", env=variables, capture_output=True)
    assert (done.returncode, done.stdout) == (3, b"words")
    ssh.cut_next(tmp_path / "bin", up=2)
    done = subprocess.run(line, input=b"words", env=variables, capture_output=True)
    assert done.returncode == 255 and len(done.stdout) <= 2
    first, second = ssh.calls(tmp_path / "bin")
    assert (first["up"], first["down"], first["turns"]) == (5, 5, 1)
    assert second["up"] == 2
