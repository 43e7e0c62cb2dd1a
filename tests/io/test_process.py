"""Clock and process: plausible, and never a failure."""

from __future__ import annotations

import os
import pwd
import subprocess
import sys
import time
from pathlib import Path

import pytest

from mvc.io.clock import Clock
from mvc.io.process import cpu_count, host_name, user_name


def test_the_clock_is_the_systems() -> None:
    clock = Clock()
    before = time.time_ns()
    assert before <= clock.now_ns() <= time.time_ns()


def test_user_host_and_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    assert user_name() == pwd.getpwuid(os.getuid()).pw_name
    assert host_name() == os.uname().nodename
    assert 1 <= cpu_count() <= (os.cpu_count() or 1)
    monkeypatch.setattr(os, "getuid", lambda: 4_000_000_123)
    assert user_name() == "uid-4000000123"
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    assert cpu_count() == os.cpu_count()


def test_importing_it_is_cheap() -> None:
    program = (
        "import sys, mvc.io.files, mvc.io.clock, mvc.io.process\n"
        "print(sorted({'torch', 'numpy', 'lmdb', 'socket', 'subprocess'} & set(sys.modules)))"
    )
    output = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parents[2],
    ).stdout
    assert output == "[]\n"
