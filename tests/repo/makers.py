"""Processes that make one repository at once, and commit to it: prints how each ended, as JSON."""

from __future__ import annotations

import json
import os
import sys
import traceback
from pathlib import Path
from typing import Any

import numpy as np

import mvc
from mvc.io.files import FileSystem


class _Together(FileSystem):
    """All processes have seen that there is no repository before one of them makes a folder."""

    def __init__(self, arrived: int, gate: int) -> None:
        self._arrived, self._gate = arrived, gate

    def make_dirs(self, path: Path, **options: Any) -> None:
        os.write(self._arrived, b".")
        os.read(self._gate, 1)  # returns in all of them once the parent closes its end
        super().make_dirs(path, **options)


def _make_and_commit(path: Path, number: int, fs: FileSystem) -> int:
    try:
        mvc.Repository.open_or_init(path, fs=fs).close()
        with mvc.Repository.open(path) as repo:
            repo.commit({"w": np.full(100, number, np.float32)}, path=f"{number}.safetensors")
        return 0
    except BaseException:
        traceback.print_exc()
        return 1


def main(path: Path, count: int) -> None:
    (arrivals, arrived), (gate, opens) = os.pipe(), os.pipe()
    children = []
    for number in range(count):
        if not (child := os.fork()):
            os.close(opens)
            os._exit(_make_and_commit(path, number, _Together(arrived, gate)))
        children.append(child)
    os.close(arrived)
    for _ in range(count):
        os.read(arrivals, 1)
    os.close(opens)
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    print(json.dumps({"done": codes.count(0), "failed": count - codes.count(0)}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
