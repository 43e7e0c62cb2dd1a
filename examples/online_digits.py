"""A net that learns digits online; every batch is a version, deployed the moment it is trained.

Afterwards somebody asks what the model said at a moment in between: that version is checked
out by time alone and must give the very predictions that the live model gave then.

    python examples/online_digits.py [FOLDER] [--batches 30] [--full]

With ``--full`` a version holds the optimizer's state as well, so that training can go on from any.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

import mvc
from digits import drift_stream
from models import conv_net
from training import accuracy, rmsprop, train_batch, train_epoch

TARGET = "prod"
LABEL = 6  # the class that drifts in
SEED = 2 + LABEL


@dataclass
class Served:
    """One version while it was live: what it answered, and how well."""

    version: mvc.CommitResult
    answers: Tensor
    accuracy: float
    seconds: float


def run(folder: Path, batches: int, *, full: bool = False) -> list[Served]:
    """Train, commit, deploy and serve, batch after batch. Returns what was served."""
    torch.manual_seed(SEED)
    stream = drift_stream(LABEL, batches=batches, seed=SEED)
    probe = torch.cat([images for images, _ in stream.online[-3:]])
    labels = torch.cat([labels for _, labels in stream.online[-3:]])
    model = conv_net()
    optimizer = rmsprop(model)
    for _ in range(2):
        train_epoch(model, optimizer, stream.offline)
    served = []
    with mvc.Repository.init(folder) as repo:
        for number in range(batches + 1):
            if number:
                train_batch(model, optimizer, stream.online[number - 1])
            begun = time.perf_counter()
            state = model.state_dict()
            if full:
                state = {"model": state, "optimizer": optimizer.state_dict()}
            version = repo.commit(state, message=f"batch {number}", deploy=TARGET)
            seconds = time.perf_counter() - begun
            model.eval()
            with torch.no_grad():
                answers = model(probe)
            served.append(Served(version, answers, accuracy(model, (probe, labels)), seconds))
    return served


def inquire(folder: Path, served: list[Served], position: int) -> bool:
    """Bring back what was live between two deployments; compare its answers bit for bit."""
    live = served[position].version.deployment
    following = served[position + 1].version.deployment
    assert live is not None and following is not None
    moment = (live.time_ns + following.time_ns) // 2
    stream = drift_stream(LABEL, batches=len(served) - 1, seed=SEED)
    probe = torch.cat([images for images, _ in stream.online[-3:]])
    with mvc.Repository.open(folder) as repo:
        state = repo.checkout(at=moment, target=TARGET)
    model = conv_net()
    model.load_state_dict(state.get("model", state))
    model.eval()
    with torch.no_grad():
        answers = model(probe)
    return torch.equal(answers.view(torch.int32), served[position].answers.view(torch.int32))


def report(console: Console, folder: Path, served: list[Served]) -> None:
    """Print every version with its size, and the sum."""
    table = Table(title=f"{len(served)} versions of a net of 887,530 parameters")
    for name in ("version", "deployed", "accuracy", "raw", "stored", "commit"):
        table.add_column(name, justify="left" if name in {"version", "deployed"} else "right")
    for one in served:
        kept = one.version
        assert kept.deployment is not None
        table.add_row(
            kept.id.short,
            time.strftime("%H:%M:%S", time.localtime(kept.deployment.time_ns / 1e9)),
            f"{one.accuracy:.3f}",
            f"{kept.raw_bytes / 1e6:.2f} MB",
            f"{kept.stored_bytes / 1e6:.2f} MB",
            f"{one.seconds * 1e3:.0f} ms",
        )
    console.print(table)
    disk = sum(f.stat().st_size for f in (folder / ".mvc").rglob("*") if f.is_file())
    raw = sum(one.version.raw_bytes for one in served)
    console.print(f"on disk: {disk / 1e6:.1f} MB for {raw / 1e6:.1f} MB of state")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", nargs="?", type=Path, help="a new folder (default: temporary)")
    parser.add_argument("--batches", type=int, default=30)
    parser.add_argument("--full", action="store_true", help="keep the optimizer's state, too")
    options = parser.parse_args()
    if options.batches < 2:
        parser.error("--batches must be at least 2")
    folder = options.folder or Path(tempfile.mkdtemp(prefix="mvc-digits-"))
    console = Console()
    served = run(folder, options.batches, full=options.full)
    report(console, folder, served)
    position = options.batches // 2
    same = inquire(folder, served, position)
    verdict = "the same bits" if same else "DIFFERENT"
    console.print(
        f"checkout --at a moment between versions {position} and {position + 1}: predictions on "
        f"{served[0].answers.shape[0]} digits are {verdict}",
        soft_wrap=True,
    )
    console.print(f"look around: cd {folder} && mvc log", soft_wrap=True)
    raise SystemExit(0 if same else 1)


if __name__ == "__main__":
    main()
