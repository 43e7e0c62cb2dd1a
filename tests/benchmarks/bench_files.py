"""Very many small files: ``mvc commit`` and ``checkout``, compared with git, and with cp and sync.

    python -m tests.benchmarks.bench_files [--files 4000 20000] [--rounds 3] [--other FOLDER]

A file has 100 to 2,000 random bytes, and 200 files lie in a folder. ``commit`` is compared with
``git add . && git commit`` under ``core.fsync=all``, ``checkout`` of all files with ``cp -r`` and
``sync`` of every file and folder. Figures are medians of whole processes that run in turn;
processor time stands beside seconds, because other programs disturb it less. ``promised`` is what
``mvc stats`` says of the checkout. ``--other`` is another checkout of this repository, whose
commands run in the same rounds. Nothing here asserts a time.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import statistics
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import mvc
from tests.benchmarks.measuring import Cost, folder, head, process, program, row

_IN_FOLDER = 200
_GIT = "git -c user.name=b -c user.email=b@b -c core.fsync=all"
_GIT_COMMIT = f"{_GIT} add . && {_GIT} commit -q -m files"
_COPY = """cp -r "$0" "$1" && find "$1" -type f -print0 | xargs -0 sync \
&& find "$1" -type d -print0 | xargs -0 sync"""
Costs = dict[str, list[Cost]]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--files", type=int, nargs="+", default=[4_000, 20_000])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--other", type=Path)
    arguments = parser.parse_args()
    trees = {"mvc": Path(mvc.__file__).parent.parent}
    if arguments.other is not None:
        trees["the other mvc"] = arguments.other.resolve()
    for count in arguments.files:
        took: Costs = defaultdict(list)
        with folder() as place:
            small_files(place / "files", count)
            promised = 0.0
            for _ in range(arguments.rounds):
                for name, cost in one_round(place, trees):
                    took[name].append(cost)
                with mvc.Repository.open(place / "mvc") as repo:
                    promised = repo.storage.stats().recovery_worst
        table(count, took, promised)


def small_files(root: Path, count: int) -> None:
    drawn = random.Random(0)
    for i in range(count):
        inside = root / f"d{i // _IN_FOLDER:03}"
        inside.mkdir(parents=True, exist_ok=True)
        (inside / f"f{i:05}.bin").write_bytes(drawn.randbytes(drawn.randint(100, 2000)))


def one_round(place: Path, trees: dict[str, Path]) -> Iterator[tuple[str, Cost]]:
    """Every command once, each in new folders."""
    files = place / "files"
    for name in ("git", "copy", *trees):
        shutil.rmtree(place / name, ignore_errors=True)
    shutil.copytree(files, place / "git")
    program("git", "init", "-q", str(place / "git"))
    yield "git commit", program("sh", "-c", _GIT_COMMIT, cwd=place / "git")
    yield "copy", program("sh", "-c", _COPY, str(files), str(place / "copy"))
    for name, tree in trees.items():
        root, environment = place / name, {**os.environ, "PYTHONPATH": str(tree)}
        shutil.copytree(files, root)

        def run(*line: str, root: Path = root, environment: dict[str, str] = environment) -> Cost:
            return process("-m", "mvc", "-q", *line, cwd=root, environment=environment)

        run("init")
        yield f"{name} commit", run("commit", ".")
        for entry in root.iterdir():
            if entry.name != ".mvc":
                shutil.rmtree(entry)
        yield f"{name} checkout", run("checkout", "HEAD")


def table(count: int, took: Costs, promised: float) -> None:
    head(f"{count:,} files", "seconds", "processor", "ratio of seconds", "ratio of processor")
    for name, costs in took.items():
        compared = took["git commit" if name.endswith("commit") else "copy"]
        own, other = (
            [statistics.median(getattr(cost, field) for cost in some) for field in Cost._fields]
            for some in (costs, compared)
        )
        ratios = [f"{a / b:.2f} x" for a, b in zip(own[:2], other[:2], strict=True)]
        row(name, f"{own[0]:.2f}", f"{own[1]:.2f}", *ratios)
    row("promised for the checkout", f"{promised:.2f}", "", "", "")


if __name__ == "__main__":
    main()
