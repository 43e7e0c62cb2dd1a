"""Bytes of two series of checkpoints on disk: docs/performance.md, "Size on disk".

    python -m tests.benchmarks.bench_series --digits FOLDER --resnet FOLDER [--files OLD NEW]

The folders are those that ``examples/make_series.py`` wrote. Each is imported, a deployment for
each version, into repositories with different layouts and pipelines, and beside that one commit
for each version goes to git, which then collects garbage. ``noise`` is a series in which every
number changes by itself, where a chain takes less than skip deltas. Files are two versions of
one checkpoint. Bytes are all that is below ``.mvc`` or ``.git``.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import tempfile
from pathlib import Path

import numpy as np

import mvc
from mvc.io.files import FileSystem
from mvc.repo.config import set_value
from tests.benchmarks.measuring import bytes_below, head, row

LAYOUTS = ("skip:4", "skip:9", "chain")
PIPELINES = ("lossless", "vsol", "none")
VERSIONS, NUMBERS = 70, 20_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--digits", type=Path)
    parser.add_argument("--resnet", type=Path)
    parser.add_argument("--files", type=Path, nargs=2, metavar=("OLD", "NEW"))
    options = parser.parse_args()
    series = {name: getattr(options, name) for name in ("digits", "resnet", "files")}
    with tempfile.TemporaryDirectory(prefix="mvc-bench-") as folder:
        head("series", "setting", "raw MB", "MB", "deltas, worst", "mean")
        for name, given in series.items():
            if given:
                files = given if isinstance(given, list) else sorted(given.iterdir())
                _series(Path(folder), name, files)
        _noise(Path(folder))


def _series(folder: Path, name: str, files: list[Path]) -> None:
    raw = sum(file.stat().st_size for file in files)
    for layout in LAYOUTS:
        _print(name, layout, raw, _imported(folder / layout, files, "store.layout", layout))
    if name == "digits":
        for pipeline in PIPELINES:
            stored = _imported(folder / pipeline, files, "commit.pipeline", pipeline)
            _print(name, pipeline, raw, stored)
        row(name, "git after gc", f"{raw / 1e6:.1f}", f"{_git(folder / 'git', files) / 1e6:.1f}")


def _print(name: str, setting: str, raw: int, stored: tuple[int, int, float]) -> None:
    size, worst, mean = stored
    row(name, setting, f"{raw / 1e6:.2f}", f"{size / 1e6:.2f}", str(worst), f"{mean:.1f}")


def _repository(folder: Path, setting: str, value: str) -> mvc.Repository:
    mvc.Repository.init(folder).close()
    set_value(FileSystem(), folder / ".mvc/config.yaml", setting, value)
    return mvc.Repository.open(folder)


def _imported(folder: Path, files: list[Path], setting: str, value: str) -> tuple[int, int, float]:
    """Bytes below .mvc, and how many deltas a version needs: at most, and in the mean."""
    with _repository(folder, setting, value) as repo:
        for file in files:
            shutil.copyfile(file, folder / f"model{file.suffix}")
            repo.commit(folder / f"model{file.suffix}", deploy="prod")
        found = repo.storage.stats()
    size = bytes_below(folder)
    shutil.rmtree(folder)
    return size, found.deltas_worst, found.deltas_mean


def _git(folder: Path, files: list[Path]) -> int:
    def git(*words: str) -> None:
        line = ["git", "-C", str(folder), "-c", "user.name=a", "-c", "user.email=a@b", *words]
        subprocess.run(line, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    folder.mkdir()
    git("init")
    for file in files:
        shutil.copyfile(file, folder / f"model{file.suffix}")
        git("add", ".")
        git("commit", "-m", file.name)
    git("gc")
    return sum(file.stat().st_size for file in (folder / ".git").rglob("*") if file.is_file())


def _noise(folder: Path) -> None:
    """Every number of a float32 tensor moves by independent noise."""
    for layout in ("skip:4", "chain"):
        random = np.random.default_rng(0)
        state = random.standard_normal(NUMBERS).astype(np.float32)
        with _repository(folder / "noise", "store.layout", layout) as repo:
            for _ in range(VERSIONS):
                repo.commit({"w": state})
                state = state + (1e-4 * random.standard_normal(NUMBERS)).astype(np.float32)
            found = repo.storage.stats()
        stored = bytes_below(folder / "noise"), found.deltas_worst, found.deltas_mean
        _print("noise", layout, VERSIONS * state.nbytes, stored)
        shutil.rmtree(folder / "noise")


if __name__ == "__main__":
    main()
