"""``python -m tests.fuzz.guided TARGET SECONDS FOLDER``: one target until the time is over.

With atheris the run is guided by coverage, else by chance. An input that breaks the
rule (an exception that is no MvcError, over 5 s, over 512 MiB) is written to
FOLDER/broken-*, its error to stderr, and the process ends with 1. The last line of
stdout is the number of inputs tried.
"""

from __future__ import annotations

import hashlib
import importlib
import random
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

from mvc.errors import MvcError
from tests.hostile.bounded import MIB, peak_memory

MOST_SECONDS = 5.0
MOST_MEMORY = 512 * MIB


def checked(run: Callable[[bytes], None], data: bytes, memory: int = MOST_MEMORY) -> None:
    """One input; AssertionError if it breaks the rule. ``memory``: above what is used now."""
    began = time.process_time()
    try:
        run(data)
    except MvcError as error:
        assert error.message, "an error without a message"
    took = time.process_time() - began
    assert took <= MOST_SECONDS, f"{took:.1f} s"
    assert peak_memory() <= memory, f"{peak_memory() >> 20} MiB"


class _Trial:
    """Counts, and keeps what breaks."""

    def __init__(self, name: str, folder: Path) -> None:
        self.run = importlib.import_module(f"tests.fuzz.targets.{name}").run
        self.folder, self.count = folder, 0
        self.memory = peak_memory() + MOST_MEMORY

    def __call__(self, data: bytes) -> None:
        self.count += 1
        try:
            checked(self.run, data, self.memory)
        except BaseException:
            self.folder.mkdir(parents=True, exist_ok=True)
            place = self.folder / f"broken-{hashlib.sha256(data).hexdigest()[:16]}"
            place.write_bytes(data)
            raise


def by_chance(trial: _Trial, seeds: list[bytes], seconds: float, rng: random.Random) -> None:
    from tests.fuzz.mutate import mutate

    end = time.monotonic() + seconds
    while time.monotonic() < end:
        trial(mutate(rng.choice(seeds), rng.choice(seeds), rng))


def main() -> None:
    name, seconds, folder = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
    try:
        import atheris
    except ImportError:
        atheris = None
    if atheris is None:
        trial = _Trial(name, folder)
        target = importlib.import_module(f"tests.fuzz.targets.{name}")
        try:
            by_chance(trial, target.seeds(), seconds, random.Random(f"{name} {time.time()}"))
        except BaseException:
            traceback.print_exc()
            sys.exit(1)
        print(trial.count)
        return
    with atheris.instrument_imports(include=["mvc"]):
        importlib.import_module(f"tests.fuzz.targets.{name}")
    trial = _Trial(name, folder)
    corpus = folder / "seeds"
    corpus.mkdir(parents=True, exist_ok=True)
    target = importlib.import_module(f"tests.fuzz.targets.{name}")
    for i, seed in enumerate(target.seeds()):
        (corpus / f"seed-{i}").write_bytes(seed)
    atheris.Setup(
        [sys.argv[0], str(corpus), f"-max_total_time={seconds}", "-rss_limit_mb=4096",
         "-max_len=65536", "-timeout=20", "-print_final_stats=1",
         f"-artifact_prefix={folder}/broken-"],
        trial,
    )  # fmt: skip
    atheris.Fuzz()


if __name__ == "__main__":
    main()
