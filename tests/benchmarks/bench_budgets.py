"""The budgets of docs/performance.md, each as a ratio to something measured in the same run.

    python -m tests.benchmarks.bench_budgets [--only NAME] [--megabytes 100] [--commits 100000]
        [--gigabytes 10] [--versions 60]

Every row is the median of several interleaved repetitions. Nothing here asserts a time.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from blake3 import blake3
from safetensors.numpy import load_file, save_file

import mvc
from mvc.ids import ManifestId, Root
from mvc.model.commit import Commit
from mvc.model.statement import Deployment
from mvc.store.journal.entries import Entry, RefChange
from mvc.store.publishing.publish import publish
from tests.benchmarks.measuring import bytes_below, folder, process, seconds
from tests.benchmarks.measuring import mvc as mvc_

State = dict[str, torch.Tensor]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", choices=sorted(ROWS))
    parser.add_argument("--megabytes", type=int, default=100)
    parser.add_argument("--commits", type=int, default=100_000)
    parser.add_argument("--gigabytes", type=int, default=10)
    parser.add_argument("--versions", type=int, default=60, help="of the row 'commit'")
    options = parser.parse_args()
    for name, row in ROWS.items():
        if options.only in (None, name):
            with folder() as place:
                row(place, options)


def say(what: str, figure: str, budget: str) -> None:
    print(f"{what:<58} {figure:<46} budget {budget}", flush=True)


def model(megabytes: int) -> State:
    """Twelve float32 matrices with weights of a usual size."""
    generator = torch.Generator().manual_seed(0)
    rows = megabytes * 1_000_000 // 4 // 12 // 2048
    return {
        f"layer{i}.weight": torch.randn(rows, 2048, generator=generator) * 0.02 for i in range(12)
    }


def step(state: State, seed: int) -> State:
    """Every weight changed, as by one step of an adaptive optimizer."""
    generator = torch.Generator().manual_seed(seed)
    return {k: v + 1e-4 * torch.randn(v.shape, generator=generator) for k, v in state.items()}


def size(state: State) -> int:
    return sum(v.numel() * v.element_size() for v in state.values())


def durable_save(state: State, path: Path) -> None:
    with path.open("wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())


def commit_in_memory(folder: Path, options: argparse.Namespace) -> None:
    """A wholly changed model, its base in memory, against torch.save + fsync to a new file.

    Both keep every version: a file written over, or deleted before the next one, would find
    its pages still in memory. The mean includes the deltas that span many versions.
    """
    state = model(options.megabytes)
    saves, commits = [], []
    with mvc.Repository.init(folder / "r") as repo:
        repo.commit(state)
        for i in range(options.versions - 1):
            state = step(state, i)
            path = folder / f"{i}.pt"
            saves.append(seconds(lambda s=state, p=path: durable_save(s, p)))
            commits.append(seconds(lambda s=state: repo.commit(s)))
    ratio = statistics.median(c / s for c, s in zip(commits, saves, strict=True))
    disk = size(state) / statistics.median(saves) / 1e6
    say(
        f"durable commit, wholly changed, base in memory (of {options.versions})",
        f"{sum(commits) / sum(saves):.2f} x torch.save + fsync, median {ratio:.2f}"
        f" ({disk:.0f} MB/s)",
        "0.95 x",
    )


def commit_on_disk(folder: Path, options: argparse.Namespace) -> None:
    """The same by the command line, against torch.save + fsync, one recovery and start-up."""
    state = model(options.megabytes)
    root = folder / "r"
    mvc.Repository.init(root).close()
    durable_save(state, root / "model.pt")
    mvc_(root, "commit", "model.pt", "-m", "first")
    mvc.Repository.init(folder / "tiny").close()  # what it takes to start is seen there
    ours, saves, rest = [], [], []
    for i in range(5):
        state = step(state, i)
        saves.append(seconds(lambda s=state: durable_save(s, folder / "other.pt")))
        (folder / "other.pt").replace(root / "model.pt")
        with mvc.Repository.open(root) as repo:
            recovery = seconds(lambda r=repo: r.checkout("HEAD"))
        tiny = folder / "tiny" / f"{i}.safetensors"
        save_file({"x": np.full(1, i, np.float32)}, tiny)
        rest.append(recovery + mvc_(tiny.parent, "commit", tiny.name).wall)
        ours.append(mvc_(root, "commit", "model.pt").wall)
    ratio = statistics.median(o / (1.8 * s + r) for o, s, r in zip(ours, saves, rest, strict=True))
    say(
        "durable commit by the command line, base on disk",
        f"{ratio:.2f} x (1.8 torch.save + recovery + start-up)",
        "1 x",
    )


def apply_deltas(folder: Path, options: argparse.Namespace) -> None:
    """Raw bytes of deltas applied a second, in process, beside a checkout of the full record."""
    state = model(options.megabytes)
    deltas = 6
    with mvc.Repository.init(folder) as repo:
        repo.commit(state)
        for i in range(deltas):
            state = step(state, i)
            repo.commit(state)
        full, chain = [], []
        for _ in range(9):
            full.append(seconds(lambda: repo.checkout(f"HEAD~{deltas}")))
            chain.append(seconds(lambda: repo.checkout("HEAD")))
    gap = statistics.median(chain) - statistics.median(full)
    say(
        f"{deltas} deltas applied on checkout, in process",
        f"{deltas * size(state) / gap / 1e9:.2f} GB/s of raw tensor bytes",
        "1 GB/s",
    )


def checkout_full(folder: Path, options: argparse.Namespace) -> None:
    """A full record into memory, verified, against safetensors' load_file of the same file."""
    state = model(options.megabytes)
    save_file({k: v.numpy() for k, v in state.items()}, folder / "model.safetensors")
    arrays = {k: v.numpy() for k, v in state.items()}
    for pipeline in ("lossless", "none"):
        with mvc.Repository.init(folder / pipeline) as repo:
            repo.commit(arrays, pipeline=pipeline)
            ours, theirs = [], []
            for _ in range(15):
                theirs.append(seconds(lambda: load_file(folder / "model.safetensors")))
                ours.append(seconds(lambda r=repo: r.checkout("HEAD")))
        say(
            f"checkout of a full record into memory, pipeline {pipeline}",
            f"{statistics.median(ours) / statistics.median(theirs):.2f} x load_file",
            "1 x",
        )


def two_of_many(folder: Path, options: argparse.Namespace) -> None:
    """932 tensors of which two change: bytes beside those two tensors' deltas."""
    generator = torch.Generator().manual_seed(0)
    state = {
        f"layer{i // 6}.block{i % 6}.weight": torch.randn(64, 64, generator=generator)
        for i in range(932)
    }
    state["head.weight"] = torch.randn(1000, 2048, generator=generator)
    del state["layer0.block0.weight"]
    with mvc.Repository.init(folder) as repo:
        repo.commit(state)
        extra = []
        for i in range(5):
            for name in ("head.weight", "layer99.block3.weight"):
                shape = state[name].shape
                state[name] = state[name] + 1e-3 * torch.randn(shape, generator=generator)
            before, payload = bytes_below(folder), _delta_bytes(repo)
            repo.commit(state, message=f"step {i}")
            extra.append(bytes_below(folder) - before - (_delta_bytes(repo) - payload))
    say("2 of 932 tensors changed: beside their deltas", f"{max(extra)} bytes", "40000 bytes")


def _delta_bytes(repo: mvc.Repository) -> int:
    found = repo.storage.stats().bytes
    return found["delta"] + found["full"]


def small_commits(folder: Path, options: argparse.Namespace) -> None:
    """Bytes beside tensor payload for a commit of 12 changed tensors, index included."""
    generator = np.random.default_rng(0)
    state = {
        f"layer{i}.weight": generator.standard_normal((8, 8)).astype(np.float32) for i in range(12)
    }
    count = 3000
    payload = 0
    with mvc.Repository.init(folder) as repo:
        repo.commit(state, message="step", deploy="prod")
        before, first = bytes_below(folder), _delta_bytes(repo)
        for _ in range(count):
            state = {k: v + np.float32(1e-3) for k, v in state.items()}
            repo.commit(state, message="step", deploy="prod")
        payload = _delta_bytes(repo) - first
    each = (bytes_below(folder) - before - payload) / count
    say(f"beside tensor payload, a commit of 12 tensors (of {count})", f"{each:.0f} bytes", "2 kB")


def look_ups(folder: Path, options: argparse.Namespace) -> None:
    """Whole processes: log -n 20, show --id and the look-up of --at, at two history lengths."""
    for commits in (10, options.commits):
        root = folder / str(commits)
        moment = history(root, commits)
        for name, arguments in (
            ("log -n 20", ["log", "-n", "20"]),
            ("show --id HEAD~5", ["show", "--id", "HEAD~5"]),
            ("look-up of --at", ["show", "--id", "--at", str(moment), "--target", "prod"]),
        ):
            took = statistics.median(mvc_(root, *arguments).wall for _ in range(9))
            bare = statistics.median(process("-c", "pass").wall for _ in range(5))
            say(
                f"{name}, {commits} commits, whole process",
                f"{took:.3f} s ({took / bare:.1f} x an empty python)",
                "0.25 s",
            )


def live(folder: Path, options: argparse.Namespace) -> None:
    """What was live, in 5,000 deployments, against the import of click that every command needs."""
    root = folder / "r"
    moment = history(root, 5000)
    later = moment + 3 * 10**9
    questions = {
        "live": ("live", "prod"),
        "live --at": ("live", "prod", "--at", str(moment)),
        "live --between": ("live", "prod", "--between", str(moment), str(later)),
    }
    rounds = [
        (process("-c", "import click"), *(mvc_(root, *words) for words in questions.values()))
        for _ in range(15)
    ]
    walls, used = (
        [statistics.median(costs) for costs in zip(*rows, strict=True)]
        for rows in (
            [[cost.wall for cost in row] for row in rounds],
            [[cost.processor for cost in row] for row in rounds],
        )
    )
    for name, wall, processor in zip(questions, walls[1:], used[1:], strict=True):
        say(
            f"{name}, 5,000 deployments, whole process",
            f"{wall:.3f} s, processor {processor:.3f} s "
            f"({processor / used[0]:.1f} x the import of click)",
            "0.12 s",
        )


def history(root: Path, commits: int) -> int:
    """A repository of bare commits, each deployed; returns a moment in the middle."""

    with mvc.Repository.init(root) as repo:
        view = repo.handle.store.snapshot
        parents: tuple[mvc.ids.CommitId, ...] = ()
        begun = 1_700_000_000 * 10**9
        for i in range(commits):
            commit = Commit(
                ManifestId(os.urandom(32)), Root(os.urandom(32)), parents, "bench",
                begun + i * 10**9, 0, f"batch {i}",
            )  # fmt: skip

            def make(commit: Commit = commit) -> Entry:
                change = RefChange("heads/main", (commit.parents or (None,))[0], commit.id)
                now = commit.time_ns
                live = Deployment(subject=commit.id, target="prod", time_ns=now)
                return Entry("commit", now, commits=(commit,), refs=(change,), statements=(live,))

            publish(view, make, sync=False)
            if i % 2000 == 1999:
                view.index_tail()
            parents = (commit.id,)
        view.index_tail(force=commits > 1000)
    return begun + commits // 2 * 10**9


def memory(folder: Path, options: argparse.Namespace) -> None:
    """Peak memory of commit and checkout of a file far larger than a piece."""
    root = folder / "r"
    mvc.Repository.init(root).close()
    state = {f"l{i}": np.full((1 << 21,), i, np.float32) for i in range(8)}
    generator = np.random.default_rng(0)
    for megabytes in (256, 1024):
        state = {
            f"l{i}": generator.standard_normal(1 << 21, np.float32) for i in range(megabytes // 8)
        }
        save_file(state, root / "model.safetensors")
        del state
        commit = mvc_(root, "commit", "model.safetensors").peak
        checkout = mvc_(root, "checkout", "HEAD", "-o", str(folder / "out.safetensors"), "-f").peak
        say(
            f"peak memory, {megabytes} MB file of 8 MB tensors",
            f"commit {commit:.0f} MB, checkout {checkout:.0f} MB",
            "a few chunks, not the model",
        )


def many_tensors(folder: Path, options: argparse.Namespace) -> None:
    """100,000 one-element tensors, against writing the same file durably; and peak memory."""
    count = 100_000
    root = folder / "r"
    mvc.Repository.init(root).close()
    state = {f"layer.{i}.scale": np.array([i], np.float32) for i in range(count)}
    with mvc.Repository.init(folder / "python") as repo:
        mapping = seconds(lambda: repo.commit(state))
    path = root / "model.safetensors"
    save = seconds(lambda: durable_file(state, path))
    took: dict[str, float] = {"commit of a mapping, in process": mapping}
    peak = 0.0
    for what, arguments in (
        ("commit", ("commit", "model.safetensors")),
        ("commit, 5 changed", ("commit", "model.safetensors")),
        ("checkout", ("checkout", "HEAD", "-o", str(folder / "out"))),
        ("diff", ("diff", "HEAD^", "HEAD")),
        ("fsck --full", ("fsck", "--full")),
    ):
        if "changed" in what:
            changed = state | {f"layer.{i}.scale": np.array([-1], np.float32) for i in range(5)}
            durable_file(changed, path)
        took[what], _, used = mvc_(root, *arguments)
        peak = used if what == "commit" else peak
    for what, each in took.items():
        say(
            f"{count:,} tensors of one element: {what}",
            f"{each:.1f} s ({each / save:.0f} x save_file + fsync)",
            "10 s" if what.startswith("commit") else "-",
        )
    say(f"{count:,} tensors of one element: peak memory", f"commit {peak:.0f} MB", "300 MB")


def durable_file(state: dict[str, np.ndarray], path: Path) -> None:
    save_file(state, path)
    with path.open("rb+") as file:
        os.fsync(file.fileno())


def sparse(folder: Path, options: argparse.Namespace) -> None:
    """A file that is one hole, against hashing as many zeros that are in memory."""
    root = folder / "r"
    mvc.Repository.init(root).close()
    size = options.gigabytes * 1_000_000_000
    with (root / "model.bin").open("wb") as file:
        file.truncate(size)
    zeros = bytes(32 << 20)

    def hash_zeros() -> None:
        hasher = blake3(max_threads=blake3.AUTO)
        for start in range(0, size, len(zeros)):
            hasher.update(zeros[: min(len(zeros), size - start)])

    hashing = seconds(hash_zeros)
    for what, arguments in (
        ("commit", ("commit", "model.bin")),
        ("status", ("status",)),
        ("checkout", ("checkout", "HEAD", "-o", str(folder / "out"))),
        ("fsck --full", ("fsck", "--full")),
    ):
        took = mvc_(root, *arguments).wall
        say(
            f"{options.gigabytes} GB of hole: {what}, whole process",
            f"{took:.1f} s ({took / hashing:.2f} x BLAKE3 of as many zeros)",
            "-",
        )


def environment(folder: Path, options: argparse.Namespace) -> None:
    """What carrying the environment and the code costs a commit: processor time, medians of 50."""
    from mvc.models.environment import capture

    def cost(work: Callable[[], object]) -> float:
        begun = time.process_time()
        work()
        return 1000 * (time.process_time() - begun)

    first = cost(lambda: capture().encoded)
    later = statistics.median(cost(lambda: capture().encoded) for _ in range(50))
    say("environment captured: the first time", f"{first:.1f} ms", "")
    say("environment captured: every later commit", f"{later:.2f} ms", "20 ms")
    net = torch.nn.Linear(64, 64)
    whole = mvc.Architecture(net, {"in_features": 64, "out_features": 64})
    with mvc.Repository.init(folder) as repo:

        def commit(**extra: object) -> None:
            with torch.no_grad():
                net.bias.add_(1)
            repo.commit(net.state_dict(), **extra)

        def carried() -> None:
            commit(attachments=mvc.describe_model(whole))

        opening = cost(carried)
        plain, carrying = [], []
        for _ in range(50):
            plain.append(cost(commit))
            carrying.append(cost(carried))
    say("first commit with its model described", f"{opening:.0f} ms", "")
    more = statistics.median(carrying) - statistics.median(plain)
    text = f"{more:.1f} ms more than {statistics.median(plain):.1f} ms"
    say("later commits with code and environment", text, "20 ms")


def following(folder: Path, options: argparse.Namespace) -> None:
    """A Follower that finds no news, and one that goes over to another version of 1 MB."""
    root, file, count = folder / "models", folder / "served.safetensors", 5000
    with mvc.Repository.init(root) as repo:
        made = [repo.commit(step(model(1), i)).id for i in range(2)]
        for i in range(count):
            repo.deploy(made[i % 2], "prod")
        follower = mvc.Follower(root, "prod")
        copier = mvc.Follower(root, "prod", mvc.ReplicaSink(file))
        follower.poll()
        copier.poll()
        polls, stats, swaps, saves = [], [], [], []
        for _ in range(2000):
            stats.append(seconds(os.stat, file))
            polls.append(seconds(follower.poll))
        state = repo.checkout(made[0])
        for i in range(30):
            repo.deploy(made[i % 2], "prod")
            swaps.append(seconds(copier.poll))
            saves.append(seconds(durable_save, state, folder / f"saved{i}"))
        follower.close()
        copier.close()
    poll, stat, swap, save = (statistics.median(t) for t in (polls, stats, swaps, saves))
    say(
        f"a poll of a Follower without news, {count:,} deployments",
        f"{poll * 1e6:.0f} us, {poll / stat:.1f} os.stat of {stat * 1e6:.1f} us",
        "500 us",
    )
    say(
        "a poll that goes over to another version of 1 MB, in a file",
        f"{swap * 1e3:.1f} ms, {swap / save:.2f} torch.save + fsync of {save * 1e3:.1f} ms",
        "-",
    )


ROWS = {
    "commit": commit_in_memory,
    "command": commit_on_disk,
    "deltas": apply_deltas,
    "full": checkout_full,
    "two": two_of_many,
    "small": small_commits,
    "lookups": look_ups,
    "live": live,
    "memory": memory,
    "tensors": many_tensors,
    "sparse": sparse,
    "environment": environment,
    "following": following,
}


if __name__ == "__main__":
    main()
