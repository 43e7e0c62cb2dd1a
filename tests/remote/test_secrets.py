"""A token given in the allowed ways is in no file, URL, argument, log, error or process list."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.histories import CheckedHistory
from tests.remote.kit.places import Place, place

PROJECT = Path(__file__).parents[2]


class Watched:
    """The arguments of all processes, looked at again and again."""

    def __init__(self) -> None:
        self.lines: set[bytes] = set()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def _look(self) -> None:
        while not self._over.wait(0.005):
            for path in Path("/proc").glob("[0-9]*/cmdline"):
                with suppress(OSError):
                    self.lines.add(path.read_bytes())

    def __enter__(self) -> Watched:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()


def run(cwd: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[bytes]:
    line = [sys.executable, "-m", "mvc", *arguments]
    return subprocess.run(
        line, cwd=cwd, env=os.environ | {"PYTHONPATH": str(PROJECT)} | variables,
        capture_output=True,
    )  # fmt: skip


@contextmanager
def given(how: str, token: str, folder: Path) -> Iterator[tuple[dict[str, str], list[str]]]:
    """Variables with the token, or options of ``remote add`` that name its file."""
    if how == "variable":
        yield {"MVC_TOKEN_ORIGIN": token}, []
        return
    file = folder / "secret-token"
    file.write_text(token)
    file.chmod(0o600)
    yield {}, ["--token-file", str(file)]
    file.unlink()


@pytest.fixture
def remote(tmp_path: Path) -> Iterator[Place]:
    with place("http", tmp_path) as made:
        yield made


@pytest.mark.parametrize("how", ["variable", "file"])
def test_a_token_is_nowhere(how: str, remote: Place, tmp_path: Path) -> None:
    history = CheckedHistory(tmp_path / "a", 2)
    history.close()
    a, wrong = tmp_path / "a", secrets.token_urlsafe(32)
    said = []
    with Watched() as watched:
        for token in (remote.token, wrong, remote.narrow_token("read"), "short"):
            with given(how, token, tmp_path) as (variables, options):
                for line in (
                    ("remote", "add", "origin", remote.url, *options),
                    ("push", "origin", "main"),
                    ("fetch", "origin"),
                    ("remote", "show", "origin"),
                    ("remote", "remove", "origin"),
                ):
                    done = run(a, *line, **variables)
                    said.append(done.stdout + done.stderr)
    told = {remote.token, wrong, remote.narrow_token("read")}
    for token in told:
        needle = token.encode()
        assert not [line for line in watched.lines if needle in line]
        assert not [text for text in said if needle in text]
        assert needle not in remote.server.log.encode()
        left = [
            path for path in tmp_path.rglob("*") if path.is_file() and needle in path.read_bytes()
        ]
        assert not left


@pytest.mark.parametrize("secret", ["user:hunter2secret@", "hunter2secret@"])
def test_a_secret_in_a_url_is_refused_and_not_said(
    secret: str, remote: Place, tmp_path: Path
) -> None:
    CheckedHistory(tmp_path / "a", 1).close()
    url = remote.url.replace("://", f"://{secret}")
    for line in (("remote", "add", "origin", url), ("clone", url, "b"), ("remote", "show", url)):
        done = run(tmp_path / "a", *line)
        assert done.returncode != 0
        assert b"hunter2" not in done.stdout + done.stderr
    stored = [p for p in tmp_path.rglob("*") if p.is_file() and b"hunter2" in p.read_bytes()]
    assert not stored
