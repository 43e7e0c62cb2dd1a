"""What a slice of a peer costs its receiver: seconds, and how long the journal is locked.

    python -m tests.benchmarks.bench_slices [--counts 250 1000 10000]

statements: annotations of one version, one an entry. chain: tensors of which each is stored as a
delta from the one before, in one record and the last one first. Nothing here asserts a time.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mvc.api.repository import Repository
from mvc.remote.receiving.receiver import receive
from mvc.store.snapshot import JOURNAL
from mvc.testing.files import WrappedFS
from tests.benchmarks.measuring import head, row
from tests.remote.test_linear import annotation, chained, receiver, said, take


class LockTimes(WrappedFS):
    """``longest``: seconds for which the journal was locked at a time."""

    longest = 0.0

    def lock(self, path: Path, **options: Any) -> Any:
        lock = super().lock(path, **options)
        return self._timed(lock) if path.name == JOURNAL else lock

    @contextmanager
    def _timed(self, lock: Any) -> Iterator[None]:
        with lock:
            begin = time.perf_counter()
            yield
            self.longest = max(self.longest, time.perf_counter() - begin)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--counts", nargs="*", type=int, default=[250, 1000, 10_000])
    options = parser.parse_args()
    head("slice", "things", "seconds", "longest lock")
    with tempfile.TemporaryDirectory(prefix="mvc-bench-") as folder:
        for count in options.counts:
            fs = LockTimes()
            with receiver(Path(folder) / f"s{count}", fs) as repo:
                truths, fs.longest, begin = said(repo, annotation, count), 0.0, time.perf_counter()
                take(repo, truths)
                seconds = time.perf_counter() - begin
                row("statements", str(count), f"{seconds:.2f}", f"{fs.longest:.3f}")
            for order in ("one record", "last first"):
                given = chained(Path(folder) / f"a{order}{count}", count, order)
                fs = LockTimes()
                place = Path(folder) / f"b{order}{count}"
                Repository.init(place, bare=True).close()
                with Repository.open(place, fs=fs) as repo:
                    begin = time.perf_counter()
                    receive(repo.handle.store, repo.handle.config, given)
                    seconds = time.perf_counter() - begin
                    row(f"chain, {order}", str(count), f"{seconds:.2f}", f"{fs.longest:.3f}")


if __name__ == "__main__":
    main()
