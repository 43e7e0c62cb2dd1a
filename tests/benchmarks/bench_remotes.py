"""What remotes cost: docs/performance.md, "Remotes".

    PYTHONPATH=examples python -m tests.benchmarks.bench_remotes [--parts wire trips share memory
        recorder] [--series digits resnet] [--versions 10 10000] [--transports http s3] [--root DIR]
        [--dvc PROGRAM]

wire: bytes and round trips of one new version of the conv net, pushed, fetched and cloned over
http, beside the bytes of its records; then the same again. trips: round trips where the history
has so many versions, and the peak of this process and of the server until then. share: a series of
versions (``examples/make_series.py``) is pushed to an empty remote and cloned from it: by folder,
ssh (a program that runs the command here), http and S3 (moto), beside git, git-lfs and dvc, each
from the first command to the last; bytes are those that lie at the remote, and for http those on
the wire. memory: the peak of a server that proves and sends versions of tensors of so many MiB.
recorder: what ``Recorder(push=...)`` costs a training of the conv net. Series and histories are
kept under ``--root``. Nothing here asserts a time.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import torch

import mvc
from digits import Batch, drift_stream
from models import conv_net
from tests.benchmarks.bench_histories import build
from tests.benchmarks.measuring import folder, head, program, row, seconds
from tests.remote.kit.places import KINDS, Place, place
from training import rmsprop, train_batch

PROJECT = Path(__file__).parents[2]
KIB = 1024
PARTS = ["wire", "trips", "share", "memory", "recorder"]
SIZES = 8, 48
"""MiB of the tensors of the part memory."""
BATCHES = 60
Line = list[str]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--parts", nargs="*", default=PARTS)
    parser.add_argument("--series", nargs="*", default=["digits"])
    parser.add_argument("--versions", nargs="*", type=int, default=[10, 10_000])
    parser.add_argument("--transports", nargs="*", default=["http", "s3"], help="of trips")
    parser.add_argument("--root", type=Path)
    parser.add_argument("--dvc", default=shutil.which("dvc"), help="the program dvc")
    options = parser.parse_args()
    with folder(options.root) as root:
        root = root.resolve()
        if "wire" in options.parts:
            _wire(root)
        if "trips" in options.parts:
            for kind in options.transports:
                for versions in options.versions:
                    _trips(root, versions, kind)
        if "share" in options.parts:
            for name in options.series:
                _share(root, name, options.dvc)
        if "memory" in options.parts:
            _memory(root)
        if "recorder" in options.parts:
            _recorder(root)


# -- series --------------------------------------------------------------------------------


def series(root: Path, name: str) -> list[Path]:
    """The files of a series, one a version."""
    out = root / name
    if not out.exists():
        line = [sys.executable, "examples/make_series.py", name, str(out)]
        subprocess.run(line, cwd=PROJECT, check=True)
    return sorted(out.iterdir())


def committed(root: Path, name: str) -> Path:
    """A repository with a version for each of them."""
    made = root / f"{name}-mvc"
    if not made.exists():
        files = series(root, name)
        with mvc.Repository.init(made) as repo:
            for file in files:
                shutil.copyfile(file, model := made / f"model{file.suffix}")
                repo.commit(model, message=file.stem)
    return made


@contextmanager
def _scratch(root: Path) -> Iterator[Path]:
    place_ = root / "scratch"
    shutil.rmtree(place_, ignore_errors=True)
    place_.mkdir()
    yield place_
    shutil.rmtree(place_)


# -- bytes and round trips -----------------------------------------------------------------


def _row(remote: Place, name: str, act: Callable[[], object], records: int = 0) -> None:
    """What goes through, beside what may."""
    with remote.counted() as wire:
        took = seconds(act)
        sent, trips = wire.up + wire.down, wire.trips
    limit = f"{int(records * 1.02 + 32 * KIB):,}" if records else ""
    size = f"{records:,}" if records else ""
    client = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / KIB
    peaks = (f"{client:.0f}", f"{remote.peak():.0f}")
    row(f"{name} ({took:.2f} s)", f"{sent:,}", size, limit, str(trips), *peaks)


def _wire(root: Path) -> None:
    source = committed(root, "digits")
    with _scratch(root) as scratch, place("http", scratch) as remote:
        shutil.copytree(source, scratch / "a")
        title = "one version of the conv net"
        head(title, "bytes", "its records", "limit", "round trips", "MiB, client", "server")
        with mvc.Repository.open(scratch / "a") as repo:
            repo.remotes.add("origin", remote.url)
            repo.push("origin", ["main"])
            mvc.clone(remote.url, scratch / "b").close()
            (path,) = repo.manifest("HEAD").by_path
            torch.manual_seed(0)
            state = {
                key: value + 1e-4 * torch.randn_like(value)
                for key, value in repo.checkout("HEAD", path=path).items()
            }
            records = repo.commit(state, path=path, message="new").stored_bytes
            _row(remote, "push", lambda: repo.push("origin", ["main"]), records)
            _row(remote, "push again", lambda: repo.push("origin", ["main"]))
        with mvc.Repository.open(scratch / "b") as repo:
            _row(remote, "fetch", lambda: repo.fetch("origin"), records)
            _row(remote, "fetch again", lambda: repo.fetch("origin"))
        whole = sum(file.stat().st_size for file in (scratch / "a/.mvc/packs").iterdir())
        _row(remote, "clone", lambda: mvc.clone(remote.url, scratch / "c").close(), whole)


def _trips(root: Path, versions: int, kind: str) -> None:
    source = build(root / f"histories-{versions}", versions)
    with mvc.Repository.open(source) as repo:
        repo.find("HEAD")  # has an index from here on
    bucket = kind == "s3"
    with _scratch(root) as scratch, place(kind, scratch, None if bucket else source) as remote:
        title = f"{versions:,} versions, {kind}"
        head(title, "bytes", "its records", "limit", "round trips", "MiB, client", "server")
        if bucket:
            shutil.copytree(source, scratch / "source")
            with mvc.Repository.open(scratch / "source") as repo:
                repo.remotes.add("origin", remote.url)
                _row(remote, "first push", lambda: repo.push("origin", every=True))
        _row(remote, "clone", lambda: mvc.clone(remote.url, scratch / "a").close())
        shutil.copytree(scratch / "a", scratch / "b")
        with mvc.Repository.open(scratch / "a") as repo:
            state = {k: v + 1 for k, v in repo.checkout("HEAD").items()}
            records = repo.commit(state).stored_bytes
            _row(remote, "push", lambda: repo.push("origin", ["main"]), records)
        with mvc.Repository.open(scratch / "b") as repo:
            _row(remote, "fetch", lambda: repo.fetch("origin"), records)
            _row(remote, "idle fetch", lambda: repo.fetch("origin"))


# -- beside others -------------------------------------------------------------------------


def _below(path: Path) -> int:
    return sum(each.stat().st_size for each in path.rglob("*") if each.is_file())


class _Sharing:
    """Runs whole commands, and adds up what they take."""

    def __init__(self, where: Path, variables: dict[str, str] | None = None) -> None:
        self.where = where
        self._variables = os.environ | (variables or {})

    def take(self, *lines: Line, cwd: Path | None = None) -> float:
        costs = [program(*line, cwd=cwd, environment=self._variables) for line in lines]
        return sum(cost.wall for cost in costs)

    def quietly(self, *lines: Line, cwd: Path) -> None:
        for line in lines:
            subprocess.run(
                line, cwd=cwd, env=self._variables, check=True, stdout=subprocess.DEVNULL
            )


def _mvc(*arguments: str) -> Line:
    return [sys.executable, "-m", "mvc", *arguments]


def _share(root: Path, name: str, dvc: str | None) -> None:
    files, source = series(root, name), committed(root, name)
    raw = sum(file.stat().st_size for file in files)
    title = f"{len(files)} versions of {name}, {raw / 1e6:.1f} MB"
    head(title, "push", "clone", "bytes at the remote", "on the wire, push and clone")
    for kind in KINDS:
        with _scratch(root) as scratch:
            _share_mvc(kind, scratch, source)
    ways = {"git": _share_git, "git lfs": _share_lfs}
    for way, share in ways.items():
        with _scratch(root) as scratch:
            _print(way, *share(scratch, files))
    if dvc:
        with _scratch(root) as scratch:
            _print("dvc (git beside it)", *_share_dvc(scratch, files, dvc))


def _print(name: str, push: float, clone: float, stored: int, wire: str = "") -> None:
    row(name, f"{push:.2f} s", f"{clone:.2f} s", f"{stored:,}", wire)


def _plain(scratch: Path) -> dict[str, str]:
    """An ``ssh`` that only runs the command: the one of the tests counts, and starts a Python."""
    script = scratch / "plain-ssh"
    script.write_text('#!/bin/sh\nfor word; do :; done\nexec /bin/sh -c "$word"\n')
    script.chmod(0o755)
    return {"MVC_SSH": str(script)}


def _share_mvc(kind: str, scratch: Path, source: Path) -> None:
    with place(kind, scratch) as remote:
        shutil.copytree(source, a := scratch / "a")
        sharing = _Sharing(scratch, remote.variables | (_plain(scratch) if kind == "ssh" else {}))
        sharing.quietly(
            _mvc("-q", "-C", str(a), "remote", "add", "origin", remote.url), cwd=scratch
        )
        lines = (
            _mvc("-q", "-C", str(a), "push", "origin", "main"),
            _mvc("-q", "clone", remote.url, str(scratch / "b")),
        )
        took, sent = list[float](), list[str]()
        for line in lines:
            if remote.wire is not None:
                remote.wire.again()
            took.append(sharing.take(line))
            if remote.wire is not None:
                total = remote.wire.up + remote.wire.down
                sent += [f"{total:,}"] if total else []
        push, clone, wire = *took, ", ".join(sent)
        _print(f"mvc, {kind}", push, clone, remote.stored(), wire)


def _git(*arguments: str) -> Line:
    who = [
        "-c",
        "user.name=a",
        "-c",
        "user.email=a@example.org",
        "-c",
        "protocol.file.allow=always",
    ]
    return ["git", *who, *arguments]


def _line_of(scratch: Path, files: list[Path], sharing: _Sharing, *before: Line) -> Path:
    """A git repository with a commit for each file."""
    a = scratch / "a"
    sharing.quietly(_git("init", "-q", "--bare", "r"), _git("init", "-q", "a"), cwd=scratch)
    sharing.quietly(*before, cwd=a)
    for file in files:
        shutil.copyfile(file, a / f"model{file.suffix}")
        sharing.quietly(_git("add", "."), _git("commit", "-qm", file.stem), cwd=a)
    sharing.quietly(_git("remote", "add", "origin", (scratch / "r").as_uri()), cwd=a)
    return a


def _share_git(scratch: Path, files: list[Path]) -> tuple[float, float, int]:
    sharing = _Sharing(scratch)
    a = _line_of(scratch, files, sharing)
    push = sharing.take(_git("push", "-q", "origin", "HEAD:main"), cwd=a)
    uri = (scratch / "r").as_uri()
    clone = sharing.take(_git("clone", "-q", "-b", "main", uri, str(scratch / "b")))
    return push, clone, _below(scratch / "r")


def _share_lfs(scratch: Path, files: list[Path]) -> tuple[float, float, int]:
    """A clone has one version; ``fetch --all`` brings the others, which mvc's clone has."""
    sharing = _Sharing(scratch, {"HOME": str(scratch)})
    suffix = files[0].suffix
    sharing.quietly(["git", "lfs", "install"], cwd=scratch)
    a = _line_of(scratch, files, sharing, ["git", "lfs", "track", f"*{suffix}"])
    push = sharing.take(_git("push", "-q", "origin", "HEAD:main"), cwd=a)
    uri, b = (scratch / "r").as_uri(), scratch / "b"
    clone = sharing.take(_git("clone", "-q", "-b", "main", uri, str(b)))
    clone += sharing.take(["git", "lfs", "fetch", "--all"], cwd=b)
    return push, clone, _below(scratch / "r")


def _share_dvc(scratch: Path, files: list[Path], dvc: str) -> tuple[float, float, int]:
    """``dvc push --all-commits`` to a folder; a clone of git, then ``dvc fetch --all-commits``."""
    sharing = _Sharing(scratch, {"HOME": str(scratch), "DVC_NO_ANALYTICS": "1"})
    a, store = scratch / "a", scratch / "store"
    sharing.quietly(_git("init", "-q", "--bare", "r"), _git("init", "-q", "a"), cwd=scratch)
    sharing.quietly(
        [dvc, "init", "-q"], [dvc, "remote", "add", "-q", "-d", "origin", str(store)], cwd=a
    )
    model = f"model{files[0].suffix}"
    for file in files:
        shutil.copyfile(file, a / model)
        sharing.quietly([dvc, "add", "-q", model], _git("add", "."), cwd=a)
        sharing.quietly(_git("commit", "-qm", file.stem), cwd=a)
    sharing.quietly(_git("remote", "add", "origin", (scratch / "r").as_uri()), cwd=a)
    push = sharing.take(
        [dvc, "push", "-q", "--all-commits"], _git("push", "-q", "origin", "HEAD:main"), cwd=a
    )
    uri, b = (scratch / "r").as_uri(), scratch / "b"
    clone = sharing.take(_git("clone", "-q", "-b", "main", uri, str(b)))
    clone += sharing.take([dvc, "fetch", "-q", "--all-commits"], [dvc, "checkout", "-q"], cwd=b)
    return push, clone, _below(store) + _below(scratch / "r")


# -- memory and trainings ------------------------------------------------------------------


def _memory(root: Path) -> None:
    """Two tensors a version, all of whose numbers change a little."""
    head("a server's peak, MiB", "at rest", "a first version", "two more", "cloned")
    for megabytes in SIZES:
        with _scratch(root) as scratch, place("http", scratch) as remote:
            with mvc.Repository.init(scratch / "a") as repo:
                repo.remotes.add("origin", remote.url)
                peaks = [remote.peak()]
                torch.manual_seed(0)
                state = {f"t{i}": torch.randn(megabytes << 18) for i in range(2)}
                for _ in range(3):
                    repo.commit(state)
                    repo.push("origin", ["main"])
                    peaks.append(remote.peak())
                    for tensor in state.values():
                        tensor.add_(torch.randn(1 << 18).repeat(megabytes), alpha=1e-4)
            mvc.clone(remote.url, scratch / "b").close()
            at_rest, first, _, last, cloned = *peaks, remote.peak()
            row(
                f"tensors of {megabytes} MiB", *(f"{p:.0f}" for p in (at_rest, first, last, cloned))
            )


def _recorder(root: Path) -> None:
    """Trainings in turn; what is left to push when they end is not part of a batch's time."""
    stream = drift_stream(6, batches=BATCHES, seed=8)
    head("a batch, and the Recorder's step", "ms", "ratio", "pushed meanwhile", "close()")
    base = 0.0
    for kind in (None, "folder", "http"):
        with _scratch(root) as scratch:
            spent, closing, pushed = _recorded(stream.online, scratch, kind)
        base = base or spent
        row(
            f"push to {kind}" if kind else "without a push", f"{spent * 1e3:.1f}",
            f"{spent / base:.2f}", str(pushed), f"{closing:.2f} s",
        )  # fmt: skip


def _recorded(batches: list[Batch], scratch: Path, kind: str | None) -> tuple[float, float, int]:
    """Seconds a batch and of ``close``, and how many versions were pushed by then."""
    with ExitStack() as stack:
        repo = stack.enter_context(mvc.Repository.init(scratch / "a"))
        if kind is not None:
            repo.remotes.add("origin", stack.enter_context(place(kind, scratch)).url)
        torch.manual_seed(8)
        model = conv_net()
        optimizer = rmsprop(model)
        push = "origin" if kind else None
        recorder = mvc.Recorder(repo, model, optimizer, include=["model"], push=push)
        for batch in batches[:3]:
            train_batch(model, optimizer, batch)
            recorder.step()
        begun = time.perf_counter()
        for batch in batches:
            train_batch(model, optimizer, batch)
            recorder.step()
        spent = (time.perf_counter() - begun) / len(batches)
        told = recorder.report.push
        return spent, seconds(recorder.close), 0 if told is None else told.pushed


if __name__ == "__main__":
    main()
