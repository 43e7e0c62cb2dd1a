from __future__ import annotations

import io
import json
import sys

import numpy as np
import pytest

from tests.cli.program import spawn


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def answer(monkeypatch: pytest.MonkeyPatch):
    """Somebody at a terminal who types this."""

    def types(text: str) -> None:
        monkeypatch.setattr(sys, "stdin", Terminal(text))

    return types


def three(mvc) -> list[str]:
    return [mvc.commit(n) for n in (1, 2, 3)]


def forgotten(mvc, id_: str) -> bool:
    return mvc("show", id_, "--json").json["forgotten"] is not None


def test_asks(mvc, answer) -> None:
    ids = three(mvc)
    for text, code in (("n\n", 1), ("\n", 1), ("", 130), ("y\n", 0)):
        assert not forgotten(mvc, ids[0])
        answer(text)
        said = mvc("forget", ids[0], code=code)
        assert "Forget 1 state for good?" in said.err
        assert said.out.splitlines()[0] == "1 state to forget:"
    assert forgotten(mvc, ids[0])


def test_as_a_process(mvc) -> None:
    ids = three(mvc)
    mvc.commit(4, secret=np.full(1000, 0.12345, np.float32))
    secret = mvc("show", "--id", "HEAD").out.strip()
    mvc.commit(5)
    assert spawn("forget", secret, cwd=mvc.folder).returncode == 3
    done = spawn("forget", secret, "-f", "--json", cwd=mvc.folder)
    assert json.loads(done.stdout)["versions"][0]["id"] == secret
    assert spawn("gc", cwd=mvc.folder).returncode == 0
    assert spawn("checkout", secret, cwd=mvc.folder).returncode == 3
    mvc("checkout", ids[2])
