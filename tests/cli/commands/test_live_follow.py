"""``mvc live TARGET --follow``: a process of its own that prints and writes every change."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from mvc.api.repository import Repository
from tests.cli.program import ROOT, Mvc


@contextmanager
def following(folder: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "mvc", "-C", str(folder), "live", "--follow", *arguments],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT,
    )  # fmt: skip
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def value(file: Path) -> float:
    return float(load_file(file)["w"][0])


def test_a_file_is_kept_as_what_is_live(mvc: Mvc, tmp_path: Path) -> None:
    file = tmp_path / "served.safetensors"
    with (
        Repository.open(mvc.folder) as repo,
        following(mvc.folder, "prod", "-o", str(file)) as process,
    ):
        assert process.stderr is not None and process.stdout is not None
        assert process.stderr.readline() == "nothing is live on prod yet\n"
        for i in range(2):
            made = repo.commit({"w": np.full(3, i, np.float32)}, message=f"n {i}", deploy="prod")
            line = process.stdout.readline()
            author = made.deployment.author
            assert line.split("  ")[1:] == [made.id.short, f"n {i}", f"({author})\n"]
            assert value(file) == i
        back = repo.rollback("prod", reason="worse")
        line = process.stdout.readline()
        assert line.split("  ")[1:] == [back.commit.short, "n 0", f"({back.author}: worse)\n"]
        assert value(file) == 0
        file.write_bytes(b"something else")
        taken = process.stderr.readline()
        assert taken.startswith(f"mvc: warning: {file}, which something else wrote, becomes")
        deadline = time.monotonic() + 60
        while file.read_bytes() == b"something else" or any(mvc.folder.glob(".mvc/checkouts/*")):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        away = mvc.folder.with_name("away")
        mvc.folder.rename(away)
        assert process.stderr.readline() == (
            f"mvc: warning: prod is not followed, {back.commit.short} is served: "
            f"the repository {mvc.folder} is away\n"
        )
        assert value(file) == 0
        away.rename(mvc.folder)
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130


def test_objects_and_a_folder(mvc: Mvc, tmp_path: Path) -> None:
    with (
        Repository.open(mvc.folder) as repo,
        following(mvc.folder, "prod", "-o", str(tmp_path / "live"), "--json") as process,
    ):
        assert process.stdout is not None
        state = {"w": np.ones(3, np.float32)}
        made = repo.commit(states={"a.safetensors": state, "b.safetensors": state}, deploy="prod")
        text = ""
        for line in process.stdout:
            text += line
            if line == "}\n":
                break
        (live,) = json.loads(text)["live"]
        assert (live["commit"], live["target"]) == (str(made.id), "prod")
        assert (tmp_path / "live").is_symlink()
        assert [value(tmp_path / "live" / f"{name}.safetensors") for name in "ab"] == [1, 1]


@pytest.mark.parametrize(
    "arguments",
    [(), ("prod", "--at", "now"), ("prod", "--between", "now", "now"), ("prod", "-o", "-")],
)
def test_what_does_not_go_with_it(mvc: Mvc, arguments: tuple[str, ...]) -> None:
    assert "--follow" in mvc("live", "--follow", *arguments, code=2).err
