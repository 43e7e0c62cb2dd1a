"""What recording costs a training, as ratios measured in one run.

    python -m tests.benchmarks.bench_recorder [--only stall|online|memory] [--rounds 3]
        [--device cuda]

``stall``: ``Recorder.step`` on a model of 100 MB whose queue has room, against ``copy_`` of
the same tensors into buffers that exist already; with ``--device cuda`` into pinned ones, and
with how long the device is busy with either. ``online``: 149 batches of the conv net of
887,530 parameters, every batch kept durably, against the same batches without keeping
anything and beside other ways of keeping them (Lightning's where it is installed; it and DCP
do not flush). ``memory``: how far the peak of resident memory lies above the model alone.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import torch
from torch import nn

import mvc
from tests.benchmarks.measuring import folder as work_folder
from tests.benchmarks.measuring import seconds

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))

from digits import Batch, drift_stream
from models import conv_net
from training import rmsprop, train_batch

BATCHES = 149
MEGABYTES = 100


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", choices=["stall", "online", "memory"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--device", default="cpu", help="of the stall alone [%(default)s]")
    parser.add_argument("--batches", type=int, default=BATCHES)
    parser.add_argument("--peak", choices=["commit", "recorder"], help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.peak:
        print(peak_of_a_training(options.peak))
        return
    if options.only in (None, "stall"):
        stall(torch.device(options.device))
    if options.only in (None, "online"):
        online(options.rounds, options.batches)
    if options.only in (None, "memory"):
        memory()


def large() -> nn.Module:
    """Twelve float32 matrices, about 100 MB together."""
    rows = MEGABYTES * 1_000_000 // 4 // 12 // 2048
    torch.manual_seed(0)
    return nn.ParameterList([nn.Parameter(torch.randn(rows, 2048) * 0.02) for _ in range(12)])


def change(model: nn.Module) -> None:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=1e-4)


def stall(device: torch.device) -> None:
    model = large().to(device)
    pinned = device.type == "cuda"
    buffers = {
        name: torch.empty(tensor.shape, pin_memory=pinned)
        for name, tensor in model.state_dict().items()
    }

    def idle() -> None:
        if pinned:
            torch.cuda.synchronize()

    def copy() -> None:
        with torch.no_grad():
            for name, tensor in model.state_dict().items():
                buffers[name].copy_(tensor)

    copies, steps, whole = [], [], []
    with work_folder() as place, mvc.Repository.init(place) as repo:
        recorder = mvc.Recorder(repo, model)
        for _ in range(4):  # both slots and the kept version exist
            change(model)
            recorder.step()
        recorder.flush()
        for _ in range(50):
            change(model)
            idle()
            copies.append(seconds(copy))
            begun = time.perf_counter()
            steps.append(seconds(recorder.step))
            idle()
            whole.append(time.perf_counter() - begun)
            recorder.flush()
        recorder.close()
    copied, stepped = statistics.median(copies), statistics.median(steps)
    print(f"stall of step, {MEGABYTES} MB, median of 50: {stepped * 1e3:.1f} ms")
    print(f"copy_ into ready buffers:               {copied * 1e3:.1f} ms")
    print(f"ratio of medians {stepped / copied:.2f} (goal 1.30)", flush=True)
    if pinned:
        print(f"until the device is idle again:         {statistics.median(whole) * 1e3:.1f} ms")


Keep = Callable[[int], object]
Begin = Callable[..., tuple[Keep, Callable[[], object] | None]]
Took = tuple[float, float]
"""Seconds by the clock, and of the processors."""


def online(rounds: int, batches: int) -> None:
    stream = drift_stream(6, batches=batches, seed=8)
    ways: dict[str, Callable[[Path], Took]] = {
        "nothing is kept": lambda _: train(stream.online, lambda m, o: (lambda i: None, None)),
        "Recorder: weights, deployed": lambda f: recorded(stream.online, f, ["model"]),
        "Recorder: full training state, deployed": lambda f: recorded(stream.online, f, None),
        "torch.save + fsync: weights": lambda f: saved(stream.online, f),
        "DCP async_save: weights": lambda f: dcp(stream.online, f),
    }
    if find_spec("lightning") is not None:
        ways["Lightning AsyncCheckpointIO: weights"] = lambda f: lightning_io(stream.online, f)
    took: dict[str, list[Took]] = {name: [] for name in ways}
    sizes: dict[str, int] = {}
    for _ in range(rounds):
        for name, way in ways.items():
            with work_folder() as place:
                took[name].append(way(place))
                sizes[name] = sum(f.stat().st_size for f in place.rglob("*") if f.is_file())
    base = took["nothing is kept"]
    print(f"{batches} batches of the conv net, {rounds} rounds in turn, medians")
    for name, runs in took.items():
        clock, processors = (statistics.median(run[i] for run in runs) for i in (0, 1))
        ratios = [
            statistics.median(run[i] / other[i] for run, other in zip(runs, base, strict=True))
            for i in (0, 1)
        ]
        print(
            f"{name:<40} {clock:7.2f} s {ratios[0]:5.2f} x"
            f"  processors {processors:7.2f} s {ratios[1]:5.2f} x  {sizes[name] / 1e6:7.1f} MB",
            flush=True,
        )


def train(batches: list[Batch], begin: Begin) -> Took:
    """The loop, with whatever ``begin`` gives: what keeps a batch, and what ends it."""
    torch.manual_seed(8)
    model = conv_net()
    optimizer = rmsprop(model)
    for batch in batches[:3]:
        train_batch(model, optimizer, batch)
    keep, end = begin(model, optimizer)
    begun, used = time.perf_counter(), time.process_time()
    for number, batch in enumerate(batches):
        train_batch(model, optimizer, batch)
        keep(number)
    if end is not None:
        end()
    return time.perf_counter() - begun, time.process_time() - used


def recorded(batches: list[Batch], folder: Path, include: list[str] | None) -> Took:
    with mvc.Repository.init(folder) as repo:

        def begin(model: nn.Module, optimizer: torch.optim.Optimizer):
            recorder = mvc.Recorder(repo, model, optimizer, deploy="prod", include=include)
            return (lambda number: recorder.step(batch=number)), recorder.close

        return train(batches, begin)


def saved(batches: list[Batch], folder: Path) -> Took:
    def begin(model: nn.Module, _: torch.optim.Optimizer):
        def keep(number: int) -> None:
            with (folder / f"{number}.pt").open("wb") as file:
                torch.save(model.state_dict(), file)
                file.flush()
                os.fsync(file.fileno())

        return keep, None

    return train(batches, begin)


def dcp(batches: list[Batch], folder: Path) -> Took:
    import warnings

    from torch.distributed import checkpoint

    warnings.filterwarnings("ignore")
    running = []

    def wait() -> None:
        while running:
            running.pop().result()

    def begin(model: nn.Module, _: torch.optim.Optimizer):
        def keep(number: int) -> None:
            wait()  # two saves at once are not allowed
            state = {"model": model.state_dict()}
            where = str(folder / str(number))
            running.append(checkpoint.async_save(state, checkpoint_id=where, no_dist=True))

        return keep, wait

    return train(batches, begin)


def lightning_io(batches: list[Batch], folder: Path) -> Took:
    from lightning.pytorch.plugins.io import AsyncCheckpointIO, TorchCheckpointIO

    def begin(model: nn.Module, _: torch.optim.Optimizer):
        io = AsyncCheckpointIO(TorchCheckpointIO())

        def keep(number: int) -> None:
            io.save_checkpoint({"state_dict": model.state_dict()}, folder / f"{number}.ckpt")

        return keep, io.teardown

    return train(batches, begin)


def memory() -> None:
    for way, holds in (
        ("commit", "the last version, the encoder's buffers"),
        ("recorder", "two staged states as well"),
    ):
        command = [sys.executable, "-m", "tests.benchmarks.bench_recorder", "--peak", way]
        more = float(subprocess.run(command, check=True, capture_output=True).stdout)
        print(f"peak memory with {way}: {more:.0f} MB more ({holds})", flush=True)


def peak_of_a_training(way: str) -> float:
    """Megabytes by which the peak of 8 steps of a 100 MB model lies above the model alone."""
    model = large()
    noise = torch.randn(next(model.parameters()).shape)
    with work_folder() as place, mvc.Repository.init(place) as repo:
        recorder = mvc.Recorder(repo, model)
        Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
        before = _status("VmRSS")
        for _ in range(8):
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.add_(noise, alpha=1e-4)
            if way == "recorder":
                recorder.step()
            else:
                repo.commit(model.state_dict())
        recorder.close()
    return _status("VmHWM") - before


def _status(field: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 / 1e6 for line in lines if line.startswith(field))


if __name__ == "__main__":
    main()
