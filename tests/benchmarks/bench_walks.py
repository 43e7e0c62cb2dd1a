"""When rebalancing pays: examples/reproduce/distributed/README.md.

    python -m tests.benchmarks.bench_walks [--ticks 600] [--parameters 200]

Workers walk at random, with and without a part that all have in common. Printed are the bytes of
``fgm-rebalancing`` as multiples of those of ``fgm``, at rho 10, by its share ``rebalance`` (c_r).
"""

from __future__ import annotations

import argparse

import numpy as np

from mvc.distributed.protocols.named import protocol_named
from mvc.distributed.simulator import Simulation
from tests.benchmarks.measuring import head, row

CASES = ((0.0, 8), (0.0, 32), (0.0, 128), (0.05, 32), (0.1, 32), (0.3, 32))
SHARES = (0.1, 0.3, 0.5, 0.7)
RATE = 0.01


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--ticks", type=int, default=600)
    parser.add_argument("--parameters", type=int, default=200)
    options = parser.parse_args()
    head("common part of a step", "k", *(f"c_r {share}" for share in SHARES))
    for common, workers in CASES:
        least = _bytes("fgm", {}, common, workers, options)
        found = (
            _bytes("fgm-rebalancing", {"rebalance": share}, common, workers, options)
            for share in SHARES
        )
        cells = (f"{each / least:.2f}" for each in found)
        row(f"{common:g}" if common else "none", str(workers), *cells)


def _bytes(
    name: str, more: dict[str, float], common: float, workers: int, options: argparse.Namespace
) -> int:
    random = np.random.default_rng(0)
    shared = random.choice([-1.0, 1.0], options.parameters)

    def train(models: np.ndarray, active: np.ndarray) -> tuple[()]:
        noise = random.standard_normal((len(active), options.parameters))
        step = common * shared + noise
        models[active] += (RATE * step).astype(np.float32)
        return ()

    protocol = protocol_named(name, rho=10, rate=RATE, **more)
    model = np.ones(options.parameters, np.float32)
    counts = Simulation(protocol, model, workers=workers).run(train, ticks=options.ticks).counts
    return counts.up + counts.down


if __name__ == "__main__":
    main()
