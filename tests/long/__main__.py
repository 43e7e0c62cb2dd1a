"""``python -m tests.long [--part K/N] [--counters FOLDER]``: the long suite, or a part of it.

Runs on two processes, the longest tests first. FOLDER keeps what has passed, which is not run
again: a run that was stopped is resumed by the same command. Prints the seed first and the
table of counters last. Exit status 0: everything that was asked for has passed.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path

from tests.long.plan import DURATIONS, PROJECT, cost, known_costs, part, tests_of
from tests.long.report import counters, durations, finished, gather
from tests.variables import variable

_FUZZ_SECONDS = "30"  # for each target


def main() -> int:
    options = _options()
    folder = Path(options.counters).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    if options.record:
        known = known_costs() | durations(folder)
        DURATIONS.write_text(json.dumps(known, indent=1, sort_keys=True) + "\n", encoding="utf-8")
        return 0
    if options.gather:
        for other in map(Path, options.gather):
            gather(other, folder)
        print(f"{len(finished(folder))} tests have passed\n\n{counters(folder)}")
        return 0
    seed = _seed(folder, options.seed)
    costs, every = known_costs(), tests_of(folder)
    number, parts = options.part
    chosen = part(every, costs, number, parts)
    left = [test for test in chosen if test not in finished(folder)]
    minutes = sum(cost(test, costs) for test in left) / 60
    print(f"MVC_SEED={seed}: {len(every)} tests, {len(chosen)} in part {number}/{parts}")
    print(f"{len(left)} left to run, about {minutes:.0f} minutes of one core", flush=True)
    began = time.monotonic()
    status = _run(folder, left, seed, options) if left else 0
    took = (time.monotonic() - began) / 60
    passed = finished(folder)
    whole = sum(test in passed for test in every)
    on = sorted({passed[test].commit for test in every if test in passed})
    print(f"\nMVC_SEED={seed}: {took:.1f} minutes")
    print(f"of the whole, {whole} of {len(every)} tests have passed, on commit {', '.join(on)}\n")
    print(counters(folder))
    return status or int(any(test not in passed for test in chosen))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.long", description=__doc__)
    parser.add_argument("--part", metavar="K/N", type=_part, default=(1, 1),
                        help="only the K-th of N parts of about the same length")  # fmt: skip
    parser.add_argument("--counters", metavar="FOLDER", default="long-counters",
                        help="what has passed and what was counted [%(default)s]")  # fmt: skip
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--seed", help="of a first run; later parts take the same one")
    parser.add_argument("--fuzz-seconds", default=variable("MVC_FUZZ_SECONDS") or _FUZZ_SECONDS,
                        help="for each fuzz target [%(default)s]")  # fmt: skip
    parser.add_argument("--record", action="store_true",
                        help="only keep how long the tests in FOLDER took")  # fmt: skip
    parser.add_argument("--gather", metavar="FOLDER", nargs="+",
                        help="only add up what ran in these folders")  # fmt: skip
    return parser.parse_args()


def _part(text: str) -> tuple[int, int]:
    number, parts = map(int, text.split("/"))
    if not 1 <= number <= parts:
        raise ValueError(text)
    return number, parts


def _seed(folder: Path, wanted: str | None) -> str:
    """One seed for all parts."""
    path = folder / "seed"
    if not path.exists():
        drawn = str(random.SystemRandom().getrandbits(32))
        path.write_text(wanted or variable("MVC_SEED") or drawn, encoding="utf-8")
    seed = path.read_text(encoding="utf-8")
    if wanted not in (None, seed):
        raise SystemExit(f"{folder} was begun with seed {seed}; name another folder")
    return seed


def _run(folder: Path, tests: list[str], seed: str, options: argparse.Namespace) -> int:
    run = f"run-{time.time_ns()}"
    names = folder / f"{run}.tests"
    names.write_text("".join(f"{test}\n" for test in tests), encoding="utf-8")
    files = sorted({test.partition("::")[0] for test in tests})
    command = [
        sys.executable, "-m", "pytest", "-q", "-m", "", "-p", "no:cacheprovider",
        "-o", "tmp_path_retention_policy=failed",  # a layer of 4 GiB does not stay
        "-p", "tests.long.plugin", "--long-tests", str(names), "--long-folder", str(folder),
        "--long-run", run, "--long-commit", _commit(),
        "-n", str(options.processes), "--dist", "load", "--maxschedchunk", "1", *files,
    ]  # fmt: skip
    environment = {
        **os.environ,
        "MVC_SEED": seed,
        "MVC_COUNTERS": str(folder / run),
        "MVC_FUZZ_SECONDS": str(options.fuzz_seconds),
    }
    return subprocess.run(command, cwd=PROJECT, env=environment, check=False).returncode


def _commit() -> str:
    """The id of the code that is tested; marked where files differ from it."""
    try:
        git = ["git", "describe", "--always", "--dirty=*"]
        done = subprocess.run(git, cwd=PROJECT, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    text = done.stdout.strip()
    return text[:7] + "*" * text.endswith("*")


if __name__ == "__main__":
    sys.exit(main())
