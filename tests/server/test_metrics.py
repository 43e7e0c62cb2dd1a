"""``/metrics``: who may read it, and what it says after requests of every kind."""

from __future__ import annotations

import re
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from mvc.api.repository import Repository
from mvc.errors import RemoteRefused
from tests.remote.kit.serving import Serving, serving, token, transport
from tests.server.moving import move
from tests.waiting import until

_VALUE = re.compile(r'([a-z_]+)(?:\{((?:[a-z_]+="(?:[^"\\\n]|\\.)*",?)*)\})? (\S+)')


def scrape(server: Serving, text: str | None) -> str:
    request = urllib.request.Request(f"{server.url}/metrics")
    if text is not None:
        request.add_header("Authorization", f"Bearer {text}")
    with urllib.request.urlopen(request, timeout=30) as answer:
        assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        return answer.read().decode()


def values(text: str) -> dict[str, float]:
    """Every value by its name and labels, after a look at the form."""
    found, named = {}, set()
    for line in text.splitlines():
        if line.startswith("# "):
            _, word, name, _ = line.split(" ", 3)
            assert word in {"HELP", "TYPE"}
            named.add(name)
            continue
        match = _VALUE.fullmatch(line)
        assert match is not None, line
        name = re.sub("_(bucket|sum|count)$", "", match[1])
        assert name in named
        assert line not in found
        found[line.rpartition(" ")[0]] = float(match[3])
    return found


def test_who_may_read_them(folder: Path) -> None:
    narrow = {
        scope: token(folder, scope, name=f"t{i}")
        for i, scope in enumerate(["read", "push:*", "deploy:*", "models:metrics", "models:admin"])
    }
    with serving(folder) as server:
        with pytest.raises(urllib.error.HTTPError, match="401"):
            scrape(server, None)
        until(lambda: " metrics 401 " in server.log, 10)  # who is refused is told of
        for scope, text in narrow.items():
            with pytest.raises(urllib.error.HTTPError, match="403"):
                scrape(server, text)
            assert scope
        for scope in ("metrics", "admin"):
            assert "mvc_serve_info" in scrape(server, token(folder, scope, name=scope))


def test_who_may_read_them_may_read_nothing_else(folder: Path, source: Repository) -> None:
    with serving(folder) as server:
        opened = transport(f"{server.url}/models", token(folder, "metrics"))
        with pytest.raises(RemoteRefused, match="needs the scope read"):
            opened.head()
        with pytest.raises(RemoteRefused, match="needs the scope"):
            move(source, opened, "heads/main")


def test_what_is_counted(folder: Path, source: Repository, tmp_path: Path) -> None:
    text = token(folder, "metrics", name="prometheus")
    with serving(folder) as server:
        before = values(scrape(server, text))
        assert before["mvc_serve_received_bytes_total"] == 0
        opened = transport(f"{server.url}/models", token(folder, "admin"))
        move(source, opened, "heads/main")
        with Repository.init(tmp_path / "copy") as copy:
            move(opened, copy, "heads/main")

        def after() -> dict[str, float]:
            return values(scrape(server, text))

        sent = 'mvc_serve_requests_total{request="send",status="200"}'
        until(lambda: sent in after(), 10)
        now = after()
        assert now[sent] >= 1
        assert now['mvc_serve_answers_total{outcome="done"}'] >= 2
        assert now["mvc_serve_received_bytes_total"] > 1000
        assert now["mvc_serve_sent_bytes_total"] > 1000
        assert now['mvc_serve_now{what="open repositories"}'] == 1
        assert now['mvc_serve_now{what="sending"}'] == 0
        last = now['mvc_serve_request_seconds_bucket{request="send",le="+Inf"}']
        assert last == now['mvc_serve_request_seconds_count{request="send"}'] == now[sent]
        assert before["mvc_serve_start_time_seconds"] == now["mvc_serve_start_time_seconds"]
        assert "prometheus" not in server.log  # a line every few seconds helps nobody
        assert "models" not in scrape(server, text)
