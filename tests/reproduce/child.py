"""A process that imports the experiments as ``python examples/reproduce`` does."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

PROJECT = Path(__file__).parents[2]
RESULTS = PROJECT / "examples/reproduce/results"


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    """A module of tests with its arguments, or a program."""
    paths = (str(PROJECT / "examples"), os.environ.get("PYTHONPATH"))
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))}
    return subprocess.run(
        [sys.executable, *map(str, arguments)], cwd=PROJECT, env=environment,
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
