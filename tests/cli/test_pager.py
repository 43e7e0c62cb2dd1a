"""The pager, and how times and columns look: on a real terminal, and piped."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.program import ROOT

COMMAND = [sys.executable, "-c", "from mvc.cli.main import main; main()"]
PAGED = "sed s/^/PAGED:/"
SAYS = "sh -c 'echo $LESS; cat'"


def typed(folder: Path, *arguments: str, piped: bool = False, **variables: str) -> tuple[str, int]:
    """What a terminal shows of a command (``piped``: what a pipe gets), and its exit code."""
    screen, terminal = pty.openpty()
    kept = {k: v for k, v in os.environ.items() if k not in {"PAGER", "MVC_PAGER", "COLUMNS"}}
    process = subprocess.Popen(
        [*COMMAND, *arguments],
        cwd=folder,
        stdin=terminal,
        stdout=subprocess.PIPE if piped else terminal,
        stderr=terminal,
        env={**kept, "PYTHONPATH": str(ROOT), "TERM": "xterm", "NO_COLOR": "1", **variables},
    )
    os.close(terminal)
    shown = b""
    if piped:
        shown, _ = process.communicate(timeout=60)
    else:
        while part := _read(screen):
            shown += part
    os.close(screen)
    return shown.decode().replace("\r\n", "\n"), process.wait(timeout=60)


def _read(screen: int) -> bytes:
    try:
        return os.read(screen, 65536)
    except OSError:  # nobody writes there any more
        return b""


@pytest.fixture
def folder(mvc) -> Path:
    for value in range(3):
        mvc.write(value)
        mvc("commit", "model.safetensors", "-m", f"value {value}", "--metric", f"acc=0.{value}",
            "--param", f"lr=0.{value}", "--deploy", "prod")  # fmt: skip
    return mvc.folder


@pytest.mark.parametrize("command", ["log", "show", "diff -q HEAD~1 HEAD", "log --metrics"])
def test_long_output_on_a_terminal_goes_through_the_pager(folder: Path, command: str) -> None:
    shown, code = typed(folder, *command.split(), MVC_PAGER=PAGED)
    assert code == 0
    assert shown and all(line.startswith("PAGED:") for line in shown.splitlines())


def test_the_pager_is_that_of_the_environment(folder: Path) -> None:
    assert "PAGED:" in typed(folder, "log", PAGER=PAGED)[0]
    assert "PAGED:" not in typed(folder, "log", PAGER=PAGED, MVC_PAGER="cat")[0]
    assert "PAGED:" not in typed(folder, "log", PAGER=PAGED, MVC_PAGER="")[0]
    assert "FRX" in typed(folder, "log", PAGER=SAYS)[0]
    assert "-S" in typed(folder, "log", PAGER=SAYS, LESS="-S")[0]


@pytest.mark.parametrize(
    "arguments", [["--no-pager", "log"], ["log", "--no-pager"], ["-P", "log"], ["log", "--json"]]
)
def test_no_pager_where_none_is_wanted(folder: Path, arguments: list[str]) -> None:
    shown, code = typed(folder, *arguments, MVC_PAGER=PAGED)
    assert code == 0 and "value 2" in shown and "PAGED:" not in shown


def test_what_is_piped_is_never_paged(folder: Path) -> None:
    shown, code = typed(folder, "log", "--oneline", piped=True, MVC_PAGER=PAGED)
    assert code == 0 and shown.count("\n") == 3 and "PAGED:" not in shown


@pytest.mark.parametrize("missing", ["nowhere-to-be-found", "A=1 less", "/tmp", "less '"])
def test_a_pager_that_is_missing_is_done_without(folder: Path, missing: str) -> None:
    shown, code = typed(folder, "log", "--oneline", MVC_PAGER=missing)
    assert code == 0 and "value 0" in shown
    assert shown.count(f"the pager {missing!r} does not exist; printing without one") == 1
    shown, code = typed(folder, "log", "--oneline", PATH="/nowhere")
    assert code == 0 and "value 0" in shown and "pager" not in shown


def test_a_pager_that_is_left_early_is_no_failure(folder: Path) -> None:
    shown, code = typed(folder, "log", MVC_PAGER="head -n 1")
    assert code == 0 and shown.startswith("commit ") and len(shown.splitlines()) == 1
    shown, code = typed(folder, "log", "HEAD~9", MVC_PAGER=PAGED)
    assert code == 3 and "PAGED:" not in shown


# -- times, and what fits --------------------------------------------------------------------


def test_times_are_in_one_zone_and_in_seconds(folder: Path) -> None:
    shown, _ = typed(folder, "log", piped=True, TZ="Asia/Tokyo")
    assert "+00:00" not in shown and shown.count("+09:00") == 6  # dates and deployments
    dates = [line.split()[1] for line in shown.splitlines() if line.startswith("Date:")]
    assert all(len(time) == len("2026-11-20T10:00:00+09:00") for time in dates)
    times = [line.split()[-1] for line in shown.splitlines() if line.startswith("Deployed:")]
    assert times and not any("." in time for time in times)
    exact, _ = typed(folder, "log", "-v", piped=True)
    times = [line.split()[-1] for line in exact.splitlines() if line.startswith("Deployed:")]
    assert times and all("." in time for time in times)
    live, _ = typed(folder, "live", "--at", times[0], "--json", piped=True)
    assert json.loads(live)["live"][0]["message"] == "value 2"  # the newest, not the one before
    found, _ = typed(folder, "log", "--json", piped=True, TZ="Asia/Tokyo")
    assert "+00:00" in found and "+09:00" not in found


@pytest.mark.parametrize(
    ("variables", "colored"),
    [({"NO_COLOR": ""}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)],
)
@pytest.mark.parametrize("columns", [90, 120])
def test_tables_are_as_wide_as_the_terminal(
    folder: Path, columns: int, variables: dict[str, str], colored: bool
) -> None:
    shown, _ = typed(folder, "deploy", "--list", COLUMNS=str(columns), **variables)
    assert ("\x1b[" in shown) is colored
    lines = re.sub(r"\x1b\[[0-9;]*m", "", shown).splitlines()
    assert "prod" in shown and len(lines) > 3
    assert columns / 2 < max(map(len, lines)) <= columns


def test_metrics_and_params_are_columns(mvc, monkeypatch: pytest.MonkeyPatch) -> None:
    metrics = [f"--metric=metric{i}=0.{i}" for i in range(9)]
    for value in range(2):
        mvc.write(value)
        mvc("commit", "model.safetensors", *metrics, f"--param=lr={value}", "--param=data=x")
    piped = mvc("log", "--metrics").out.splitlines()
    assert piped[0].split()[-3:] == ["metric8", "lr", "data"]  # what varies comes first
    monkeypatch.setenv("COLUMNS", "80")
    narrow = mvc("--color", "always", "log", "--metrics")
    heading, *_, note = re.sub(r"\x1b\[[0-9;]*m", "", narrow.out).splitlines()
    assert heading.split()[-1] == "metric3" and len(heading) <= 80
    assert note == "not shown: metric4, metric5, metric6 and 4 more (-v shows all)"
    every = mvc("--color", "always", "log", "--metrics", "-v").out
    assert all(f"metric{i}" in every for i in range(9)) and "not shown" not in every
