"""Whether ``store.max_recovery`` is kept, and at which price: docs/performance.md.

    python -m tests.benchmarks.bench_recovery_bound [--pipelines LINE ...] [--bounds 0.1 0.3 1]
        [--versions 60] [--layout skip:4] [--scale 1] [--folder DIR]

A convolutional network (887,530 float32 weights, times ``--scale``) whose weights all move with
every version. For each pipeline and bound all versions are committed, then each one is restored
from a repository that is opened for it, into a file that is flushed; the best of three counts.
Nothing here asserts a time.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path

import mvc
from mvc.errors import InvalidConfig
from mvc.ids import CommitId
from mvc.pipelines.table import PRESETS
from mvc.testing import fresh_process
from tests.benchmarks.measuring import head, row, seconds
from tests.maintenance.test_recovery_bound import CONV, SLOW, configure, states, whole

RUNS = 3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--pipelines", nargs="*", default=[*PRESETS, *SLOW])
    parser.add_argument("--bounds", nargs="*", type=float, default=[0.1, 0.3, 1.0])
    parser.add_argument("--versions", type=int, default=60)
    parser.add_argument("--layout", default="skip:4", help="store.layout of the repository")
    parser.add_argument("--scale", type=int, default=1, help="how many times as many weights")
    parser.add_argument("--folder", type=Path, help="where to work, by default a temporary one")
    options = parser.parse_args()
    head(
        "pipeline", "bound", "estimate", "worst", "ratio", "newest", "full versions", "MB", "price"
    )
    for pipeline in options.pipelines:
        free = 0
        for bound in [None, *options.bounds]:
            with tempfile.TemporaryDirectory(prefix="mvc-bench-", dir=options.folder) as folder:
                free = _row(Path(folder), pipeline, bound, options, free)


def _row(
    root: Path, pipeline: str, bound: float | None, options: argparse.Namespace, free: int
) -> int:
    """Prints a row; ``price`` is bytes to ``free``, those without a bound, which are returned."""
    shapes = [(shape[0] * options.scale, *shape[1:]) for shape in CONV]
    series, ids = states(shapes), list[CommitId]()
    mvc.Repository.init(root).close()
    configure(root, layout=options.layout)
    if bound is not None:
        configure(root, max_recovery=bound)
    with mvc.Repository.open(root) as repo:
        try:
            for _ in range(options.versions):
                made = repo.commit(next(series), pipeline=whole(pipeline), metrics={"loss": 0.3})
                ids.append(made.id)
        except InvalidConfig as error:
            row(f"`{pipeline}`", f"{bound:g} s", error.message)
            return free
        found = repo.storage.stats()
    took = _restored(root, ids)
    size = sum(found.bytes[kind] for kind in ("full", "delta", "metadata"))
    worst = max(took)
    row(
        f"`{pipeline}`",
        "none" if bound is None else f"{bound:g} s",
        f"{found.recovery_worst:.3f} s",
        f"{worst:.3f} s",
        "" if bound is None else f"{worst / bound:.2f}",
        f"{took[-1]:.3f} s",
        f"{found.reset_points}",
        f"{size / 1e6:.1f}",
        f"{size / (free or size):.2f} x",
    )
    return free or size


def _restored(root: Path, ids: Sequence[CommitId]) -> list[float]:
    """Seconds that each version takes, the best of some runs."""
    took = [float("inf")] * len(ids)
    out = root / "out.safetensors"

    def restore(id_: CommitId) -> None:
        with mvc.Repository.open(root) as repo:
            repo.checkout(id_, to=out, force=True)

    for _ in range(RUNS):
        for i, id_ in enumerate(ids):
            fresh_process()
            took[i] = min(took[i], seconds(restore, id_))
    return took


if __name__ == "__main__":
    main()
