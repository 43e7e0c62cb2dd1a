"""No line is wider than a terminal of 80 columns; a printed time finds its deployment."""

from __future__ import annotations

import re

import pytest

from mvc.cli.session import Session
from mvc.times import parse_time
from tests.cli.program import Mvc

SECOND = 10**9
WIDE = [*(f"--metric=validation_accuracy_{i}=0.9{i}" for i in range(30)),
        *(f"--param=schedule_{i}=cosine with warm-up {i}" for i in range(10))]  # fmt: skip
MESSAGE = "Nightly training of the recommendation model on the data of the last thirty days " * 2


@pytest.fixture
def wide(mvc: Mvc, monkeypatch: pytest.MonkeyPatch) -> Mvc:
    """Long messages, many metrics, params, tags, branches, targets and deployments."""
    for value in range(3):
        mvc.write(value)
        mvc("commit", "model.safetensors", "-m", MESSAGE + str(value), *WIDE, "--deploy", "prod")
        mvc("tag", f"a-release-with-a-name-of-many-words-{value}")
    for i in range(9):
        mvc("branch", f"experiment-{i}-with-a-name-of-many-words")
        mvc("deploy", "HEAD", f"edge-{i}-of-europe-west-recommendations", "-m", MESSAGE)
    monkeypatch.setenv("COLUMNS", "80")
    return mvc


COMMANDS = (
    "live", "live prod", "live --between 2020-01-01 now", "log", "log --oneline", "log --graph",
    "log --metrics", "deploy --list", "undo --list", "show", "diff HEAD~1 HEAD", "branch", "tag",
    "stats --versions", "ls", "config", "pipeline", "forget -n HEAD~2", "rollback prod",
    "identify model.safetensors", "checkout -f HEAD~1",
    "commit -a --allow-empty --deploy prod -m x",
)  # fmt: skip


def test_no_line_is_wider_than_the_terminal(wide: Mvc) -> None:
    for command in COMMANDS:
        done = wide("--color", "always", *command.split())
        lines = re.sub(r"\x1b\[[0-9;]*m", "", done.out).splitlines()
        assert max(map(len, lines), default=0) <= 80, (command, max(lines, key=len))


def test_what_a_terminal_omits_is_there_with_v_and_piped(wide: Mvc) -> None:
    short = wide("--color", "always", "log", "-n", "1").out
    assert "more (-v)" in short and "validation_accuracy_29" not in short
    for words in (["--color", "always", "log", "-n", "1", "-v"], ["log", "-n", "1"]):
        whole = wide(*words).out
        assert "validation_accuracy_29" in whole and "more (-v)" not in whole
    assert MESSAGE.strip() in whole


@pytest.mark.parametrize("fraction", ["", ".000000001", ".5", ".8", ".999999999"])
def test_a_printed_time_finds_its_deployment(mvc: Mvc, fraction: str) -> None:
    for value, second in enumerate(("09:59:58", f"10:00:00{fraction}", "10:00:02")):
        mvc.write(value)
        mvc("commit", "model.safetensors", "-m", f"value {value}",
            "--deploy", "prod", "--at", f"2026-03-01T{second}Z")  # fmt: skip
    exact = mvc("live", "prod", "--at", f"2026-03-01T10:00:00{fraction}Z", "-v").out
    assert f"10:00:00{fraction}+" in exact
    since = re.findall(r"since +(\S+)", mvc("live", "prod", "--at", "2026-03-01T10:00:01Z").out)
    listed = re.findall(r"^(\S+) .*value 1$", mvc("deploy", "--list").out, re.MULTILINE)
    logged = re.findall(r"Deployed: prod at (\S+)", mvc("log", "HEAD~1", "-n", "1").out)
    assert since == listed == logged
    assert len(since[0]) == len("2026-03-01T10:00:00+00:00")
    assert "value 1" in mvc("live", "prod", "--at", since[0]).out
    mvc("deploy", "HEAD~1", "prod", "--retract", "--at", since[0])
    assert "value 0" in mvc("live", "prod", "--at", since[0]).out


@pytest.mark.parametrize("time_ns", [0, 1, -1, SECOND, SECOND + 1, 2 * SECOND - 1, -SECOND - 1])
def test_times_are_rounded_up(time_ns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    session = Session()
    assert 0 <= parse_time(session.moment(time_ns), now_ns=0) - time_ns < SECOND
    monkeypatch.setattr(session, "verbosity", 1)
    assert parse_time(session.moment(time_ns), now_ns=0) == time_ns
