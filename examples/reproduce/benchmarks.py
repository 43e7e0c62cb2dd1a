"""Runs of the benchmarks in ``tests/benchmarks``, kept as reports of what they printed."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mvc.errors import UnknownPath, WrongUsage

__all__ = ["PUBLISHED", "SCHEMA", "markdown", "measured", "picture"]

SCHEMA = "mvc.reproduce.benchmarks/1"
_ROOT = Path(__file__).parents[2]

PUBLISHED = {
    "bench_chains-storage": "bench_chains --parts storage",
    "bench_chains-chain": "bench_chains --parts chain",
    "bench_chains-bound": "bench_chains --parts bound --times 3",
    "bench_chains-bound-5": "bench_chains --parts bound --times 5",
    "bench_chains-mobilenetv2": "bench_chains --parts bound --times 8 --architecture mobilenetv2",
    "bench_recorder-stall": "bench_recorder --only stall",
    "bench_recorder-online": "bench_recorder --only online",
    "bench_recorder-memory": "bench_recorder --only memory",
    "bench_recorder-cuda": "bench_recorder --only stall --device cuda",
    "bench_recovery_bound": "bench_recovery_bound --bounds 0.1 0.3",
    "bench_recovery_bound-lc": "bench_recovery_bound --bounds 0.1 0.3 1 --pipelines lc",
    "bench_budgets-full": "bench_budgets --only full",
    "bench_budgets-tensors": "bench_budgets --only tensors",
    "bench_budgets-sparse": "bench_budgets --only sparse",
    "bench_long_run": "bench_long_run --megabytes 201 --versions 60",
    "bench_large-4420": "bench_large --rounds 2 --only copy hash mvc dvc",
    "bench_large-1100": "bench_large --megabytes 1100 --shards 1 --rounds 3",
    "bench_large-95": "bench_large --megabytes 95 --shards 1",
    "bench_follow": "bench_follow --megabytes 1000 --shares 3 10 1 1 1 --rounds 1",
    "bench_follow-in-place": "bench_follow --in-place --megabytes 1000 --rounds 1 "
    "--root /dev/shm/f",
    "bench_budgets-memory": "bench_budgets --only memory",
    "bench_start": "bench_start --repeats 7",
    "bench_lc": "bench_lc 64",
    "bench_optim-table": "bench_optim --only table",
    "bench_optim-speed": "bench_optim --only speed",
    "bench_optim-online": "bench_optim --only online",
    "bench_optim-recorder": "bench_optim --only recorder",
    "bench_optim-recovery": "bench_optim --only recovery",
    "bench_optim-wild": "bench_optim --only wild",
    "bench_optim_transformer": "bench_optim_transformer --steps 5",
    "bench_remotes-wire": "bench_remotes --parts wire trips",
    "bench_steps-digits": "bench_steps --only bytes --data digits --versions 61",
    "bench_steps-mnist": "bench_steps --only bytes --data MNIST --mnist data/mnist --versions 61",
    "bench_steps-texts": "bench_steps --only bytes --data texts --texts "
    "data/debian_descriptions.jsonl.gz --versions 61",
    "bench_steps-time": "bench_steps --only time --versions 150 --rounds 3",
    "bench_steps-recovery": "bench_steps --only recovery --versions 150",
    "bench_remotes-share": "bench_remotes --parts share --series digits resnet",
}
"""Runs with options that a page has the figures of, by the name of their result."""


def measured(name: str, options: Sequence[str]) -> dict[str, Any]:
    """The report of one run of a benchmark, or of a published one; WrongUsage if it fails.

    What the benchmark prints on stdout is kept line by line; stderr is this process's.
    """
    name, *given = PUBLISHED.get(name, name).split() or [""]
    options = [*given, *options]
    if not name.isidentifier() or not (_ROOT / f"tests/benchmarks/{name}.py").exists():
        raise UnknownPath(f"there is no benchmark {name}", hint="see tests/benchmarks")
    line = ["-m", f"tests.benchmarks.{name}", *options]
    paths = [str(_ROOT / "examples"), *filter(None, [os.environ.get("PYTHONPATH")])]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    busy = os.getloadavg()[0]
    done = subprocess.run(
        [sys.executable, *line], cwd=_ROOT, env=environ, stdout=subprocess.PIPE, text=True
    )
    if done.returncode:
        raise WrongUsage(f"{name} ended with exit code {done.returncode}")
    return {
        "schema": SCHEMA,
        "command": " ".join(["python", *line]),
        "machine": f"{platform.machine()}, processors: {len(os.sched_getaffinity(0))}, "
        f"load before: {busy:.1f}, Python {platform.python_version()}",
        "printed": [text.rstrip() for text in done.stdout.splitlines()],
    }


def markdown(report: Mapping[str, Any]) -> str:
    """What was printed, with the command above it."""
    return "\n".join([f"`{report['command']}` ({report['machine']})", "", *report["printed"], ""])


def picture(_: Mapping[str, Any]) -> None:
    """None: a benchmark has no picture."""
