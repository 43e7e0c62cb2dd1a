"""mvc beside git, git-lfs, DVC, git-theta and plain copies, on one series of checkpoints.

    python -m tests.benchmarks.bench_peers [--series FOLDER]

Without a folder, ``examples/make_series.py digits`` writes the series. Each program commits every
version, collects garbage if it can, and writes the middle version again. Bytes are those of its
own folder; seconds are medians of whole commands; "exact" compares the bytes of that file. A
program that is not on PATH, or fails, is named with the reason.
"""

from __future__ import annotations

import argparse
import filecmp
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

from tests.benchmarks.measuring import folder, head, row

ROOT = Path(__file__).parents[2]
MVC = (sys.executable, "-m", "mvc")
_SETTINGS = {"DVC_NO_ANALYTICS": "1", "GIT_THETA_CHECKPOINT_TYPE": "safetensors"}
GIT = ("git", "-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false")


class Peer(NamedTuple):
    """A program: its command lines, with ``FILE`` for the checkpoint and ``REV`` for a version."""

    name: str
    needs: tuple[str, ...]
    start: tuple[tuple[str, ...], ...]
    commit: tuple[tuple[str, ...], ...]
    collect: tuple[tuple[str, ...], ...]
    restore: tuple[tuple[str, ...], ...]
    version: tuple[str, ...]
    """Prints the id of the version that was committed."""
    folders: tuple[str, ...]


_GIT_INIT = (*GIT, "init", "-q")
_GIT_COMMIT = ((*GIT, "add", "-A"), (*GIT, "commit", "-qm", "version"))
_GIT_RESTORE = ((*GIT, "checkout", "-q", "REV"),)
_GIT_VERSION = (*GIT, "rev-parse", "HEAD")
_GIT_COLLECT = ((*GIT, "gc", "-q"),)
PEERS = (
    Peer(
        "mvc", (), ((*MVC, "init"),), ((*MVC, "commit", "FILE", "-m", "version"),),
        ((*MVC, "gc"),), ((*MVC, "checkout", "REV"),),
        (*MVC, "--color", "never", "log", "-n", "1", "--oneline"), (".mvc",),
    ),
    Peer("git", ("git",), (_GIT_INIT,), _GIT_COMMIT, _GIT_COLLECT, _GIT_RESTORE,
         _GIT_VERSION, (".git",)),
    Peer(
        "git-lfs", ("git", "git-lfs"),
        (_GIT_INIT, ("git", "lfs", "install", "--local"), ("git", "lfs", "track", "FILE")),
        _GIT_COMMIT, _GIT_COLLECT, _GIT_RESTORE, _GIT_VERSION, (".git",),
    ),
    Peer(
        "DVC", ("git", "dvc"), (_GIT_INIT, ("dvc", "init", "-q")),
        (("dvc", "add", "-q", "FILE"), *_GIT_COMMIT),
        (("dvc", "gc", "-q", "-f", "-A"), *_GIT_COLLECT),
        (*_GIT_RESTORE, ("dvc", "checkout", "-q")), _GIT_VERSION, (".git", ".dvc"),
    ),
    Peer(
        "git-theta", ("git", "git-lfs", "git-theta"),
        (_GIT_INIT, ("git", "theta", "install"), ("git", "theta", "track", "FILE")),
        _GIT_COMMIT, _GIT_COLLECT, _GIT_RESTORE, _GIT_VERSION, (".git",),
    ),
)  # fmt: skip


class Measured(NamedTuple):
    """Bytes on disk, median seconds of a commit and a restore, and whether the file is equal."""

    size: int
    commit: float
    restore: float
    exact: bool


def measure(peer: Peer, files: list[Path], place: Path) -> Measured:
    """Commit ``files`` one after the other as one file, then restore the middle one, in turn.

    Raises ``subprocess.CalledProcessError`` if a command fails.
    """
    place.mkdir()
    model, ids, commits = place / f"model{files[0].suffix}", [], []

    def run(lines: tuple[tuple[str, ...], ...], rev: str = "") -> float:
        begin = time.perf_counter()
        for line in lines:
            words = [{"FILE": model.name, "REV": rev}.get(word, word) for word in line]
            _output(words, place)
        return time.perf_counter() - begin

    run(peer.start)
    for file in files:
        shutil.copyfile(file, model)
        commits.append(run(peer.commit))
        ids.append(_output(list(peer.version), place).split()[0])
    run(peer.collect)
    size = sum(
        path.stat().st_size for name in peer.folders for path in (place / name).rglob("*")
        if path.is_file()
    )  # fmt: skip
    middle, restores = len(files) // 2, []
    for number in (middle, -1, middle, -1, middle):
        restores.append(run(peer.restore, ids[number]))
    exact = filecmp.cmp(model, files[middle], shallow=False)
    return Measured(size, statistics.median(commits), statistics.median(restores[::2]), exact)


def _output(line: list[str], place: Path) -> str:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **_SETTINGS}
    run = partial(subprocess.run, cwd=place, env=environment, check=True)
    return run(line, capture_output=True, text=True).stdout


def copies(files: list[Path], place: Path) -> Measured:
    """A folder with a copy of each version."""
    place.mkdir()
    commits = [_seconds(shutil.copyfile, file, place / file.name) for file in files]
    size = sum(file.stat().st_size for file in files)
    middle = files[len(files) // 2]
    restore = _seconds(shutil.copyfile, place / middle.name, place / "model")
    exact = filecmp.cmp(place / "model", middle, shallow=False)
    return Measured(size, statistics.median(commits), restore, exact)


def _seconds(work: Callable[..., object], *arguments: object) -> float:
    begin = time.perf_counter()
    work(*arguments)
    return time.perf_counter() - begin


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--series", type=Path, help="a folder of checkpoints, in order of names")
    series = parser.parse_args().series
    with folder() as work:
        if series is None:
            series = work / "series"
            script = ROOT / "examples/make_series.py"
            command = [sys.executable, script, "digits", series]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        files = sorted(file for file in series.iterdir() if file.is_file())
        raw = sum(file.stat().st_size for file in files)
        print(f"{len(files)} versions, {raw / 1e6:.1f} MB")
        head("program", "MB", "of raw", "commit", "restore", "exact")
        _print("copies", copies(files, work / "copies"), raw)
        failed = []
        for peer in PEERS:
            absent = [program for program in peer.needs if shutil.which(program) is None]
            if absent:
                failed.append(f"{peer.name}: {' and '.join(absent)} not on PATH")
                continue
            try:
                _print(peer.name, measure(peer, files, work / peer.name), raw)
            except subprocess.CalledProcessError as error:
                failed.append(f"{peer.name}: {error}: {error.stderr.strip()[-200:]}")
        for reason in failed:
            print(f"\nnot run: {reason}")


def _print(name: str, measured: Measured, raw: int) -> None:
    row(
        name, f"{measured.size / 1e6:.1f}", f"{100 * measured.size / raw:.0f} %",
        f"{measured.commit:.2f} s", f"{measured.restore:.2f} s", "yes" if measured.exact else "no",
    )  # fmt: skip


if __name__ == "__main__":
    main()
