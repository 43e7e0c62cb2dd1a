"""Measures pipelines on files of your own: `python examples/bench.py FILE...`, or a folder.

Each file is a version, in the order given; a folder means its model files, by name. Every pipeline
commits them into a temporary repository and checks them out again. A file that does not come back
byte for byte ends the run.
"""

from __future__ import annotations

import argparse
import filecmp
import shutil
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import mvc
from mvc.pipelines.table import PRESETS

PIPELINES = (
    PRESETS["lossless"],
    "sub | zigzag | planes | zstd:huff",
    "xor | planes | zstd:huff",
    "xor | planes | zstd:1",
    "sub | zigzag | elide | planes | zstd:1",
    "sub | zigzag | elide | planes | zstd:9",
    PRESETS["vsol"],
    "planes | zstd:huff",
    PRESETS["none"],
)
SUFFIXES = {".safetensors", ".pt", ".pth", ".bin", ".npz", ".npy", ".ckpt"}


class Row(NamedTuple):
    """``ratio``: stored bytes for each byte of the files; speeds in bytes a second."""

    pipeline: str
    ratio: float
    commit: float
    checkout: float


def versions(paths: Sequence[Path]) -> list[Path]:
    found: list[Path] = []
    for path in paths:
        inside = sorted(p for p in path.rglob("*") if p.suffix in SUFFIXES) if path.is_dir() else []
        found += inside or [path]
    return found


def measured(pipeline: str, files: Sequence[Path], folder: Path) -> Row:
    """Commits the files one after the other, each in a newly opened repository."""
    name = "model" + files[0].suffix
    mvc.Repository.init(folder).close()
    (folder / ".mvc/config.yaml").write_text(f"commit:\n  pipeline: '{pipeline}'\n")
    ids, commit, checkout = [], 0.0, 0.0
    for file in files:
        shutil.copyfile(file, folder / name)
        begin = time.perf_counter()
        with mvc.Repository.open(folder) as repo:
            options = mvc.CommitOptions(allow_empty=True)
            ids.append(repo.commit(folder / name, options=options).id)
        commit += time.perf_counter() - begin
    for id_, file in zip(ids, files, strict=True):
        begin = time.perf_counter()
        with mvc.Repository.open(folder) as repo:
            repo.checkout(id_, path=name, to=folder / f"back-{name}", force=True)
        checkout += time.perf_counter() - begin
        if not filecmp.cmp(file, folder / f"back-{name}", shallow=False):
            raise SystemExit(f"{file}: other bytes came back with {pipeline}")
    total = sum(file.stat().st_size for file in files)
    stored = sum(p.stat().st_size for p in (folder / ".mvc/packs").iterdir())
    return Row(pipeline, stored / total, total / commit, total / checkout)


def main(words: Sequence[str] | None = None) -> list[Row]:
    parser = argparse.ArgumentParser(description="Measure pipelines on model files.")
    parser.add_argument("paths", nargs="+", type=Path)
    files = versions(parser.parse_args(words).paths)
    rows = []
    print(f"{len(files)} versions, {sum(f.stat().st_size for f in files) / 1e6:.1f} MB")
    print(f"{'pipeline':45}{'stored':>8}{'commit':>12}{'checkout':>12}")
    for pipeline in PIPELINES:
        with tempfile.TemporaryDirectory(prefix="mvc-bench-") as folder:
            row = measured(pipeline, files, Path(folder))
        rows.append(row)
        speeds = f"{row.commit / 1e6:7.0f} MB/s{row.checkout / 1e6:7.0f} MB/s"
        print(f"{row.pipeline:45}{row.ratio:8.3f}{speeds}")
    return rows


if __name__ == "__main__":
    main()
