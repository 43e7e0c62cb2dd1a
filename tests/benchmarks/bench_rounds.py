"""What a round of a distributed training takes, beside a step of DistributedDataParallel.

    python -m tests.benchmarks.bench_rounds [--steps 40] [--workers 2]

FGM over a million parameters by ``mvc train-distributed``: with a radius that nobody leaves, and
with one that every step leaves, so that it ends a round with a durable commit. In the same
processes steps of DistributedDataParallel and steps that send nothing are taken in turn with them.
Printed are medians of rank 0 and their ratios to a step of DistributedDataParallel. Beside them
stands what a counter of the store takes, and an exchange in which nobody has anything to say.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections import defaultdict
from pathlib import Path

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import mvc
import mvc.distributed
from mvc.distributed.runner.launch import launch
from mvc.distributed.runner.ranks import Ranks
from tests.benchmarks.measuring import folder, head, row, seconds

BESIDE = "a step of DistributedDataParallel"
KINDS = {"a step of FGM within a round": 1e9, "a step of FGM that ends a round": 1e-9}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--work", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.work:
        work(arguments.work, arguments.steps)
        return
    with folder() as place:
        mvc.Repository.init(place).close()
        script = [f"--work={place / 'took'}", f"--steps={arguments.steps}"]
        launch(__file__, script, arguments.workers, {"repo": str(place), "protocol": "fgm"})
        took = json.loads((place / "took").read_text())
    middle = {what: statistics.median(each) for what, each in took.items()}
    head("FGM, 1,001,000 parameters", "steps", "median", "to DDP")
    for what, each in took.items():
        ratio = middle[what] / middle[BESIDE]
        row(what, str(len(each)), f"{1000 * middle[what]:.3g} ms", f"{ratio:.2g}")


def work(file: Path, steps: int) -> None:
    """One worker; rank 0 writes how long its steps took."""
    took: dict[str, list[float]] = defaultdict(list)
    for kind, radius in KINDS.items():
        models: list[nn.Module] = [nn.Linear(1000, 1000) for _ in range(3)]
        target = f"radius-{radius:g}"
        with mvc.distributed.join(models[0], radius=radius, target=target) as worker:
            models[1] = DistributedDataParallel(models[1])
            for _ in range(steps):
                took["a step that sends nothing"].append(seconds(step, models[2]))
                took[BESIDE].append(seconds(step, models[1]))
                took[kind].append(seconds(step, models[0]) + seconds(worker.step))
            del models[1]
            assert (worker.round > steps // 2) == (radius < 1)
    link = Ranks(None, "cpu", 60.0)
    for _ in range(steps):
        took["a counter raised"].append(seconds(link.count, "counter", 1))
        took["an exchange of nothing"].append(seconds(exchange, link))
    link.close()
    if link.rank == 0:
        file.write_text(json.dumps(took))


def step(model: nn.Module) -> None:
    model.zero_grad()
    model(torch.randn(8, 1000)).square().mean().backward()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter -= 0.01 * parameter.grad


def exchange(link: Ranks) -> None:
    link.meet()
    link.collect(b"", 0, 0)
    link.spread([b""] * link.size, 0)


if __name__ == "__main__":
    main()
