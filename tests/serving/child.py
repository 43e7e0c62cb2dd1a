"""Processes for the tests of sinks: ``write`` deploys on and on, ``serve`` swaps on and on.

    python -m tests.serving.child write|serve PATH [COUNT]

Every version is tensors that all hold one number, so a torn one shows.
"""

from __future__ import annotations

import os
import sys

import numpy as np

from mvc.ids import CommitId
from mvc.serving.reader import FileReader
from mvc.serving.sinks import FileSink
from mvc.state import ServedVersion

SIZE = 200_000


def version(number: int, size: int = SIZE) -> ServedVersion:
    state = {f"layer{i}": np.full(size // (i + 1), number, np.float32) for i in range(3)}
    return ServedVersion(state, CommitId(number.to_bytes(32, "little")), number)


def number_of(production: ServedVersion) -> int:
    """Which version it is; AssertionError where it is parts of two."""
    number = int.from_bytes(production.commit, "little")
    assert list(production.state) == ["layer0", "layer1", "layer2"]
    for array in production.state.values():
        assert (array == number).all(), f"version {number} is torn"
    return number


def write(path: str) -> None:
    sink = FileSink(path)
    reader = FileReader(path)
    first = reader.swap()
    number = 0 if first is None else number_of(first)
    while True:
        number += 1
        sink(version(number))
        os.write(1, f"{number}\n".encode())


def serve(path: str, count: int) -> None:
    reader = FileReader(path)
    before = 0
    while before < count:
        production = reader.swap()
        if production is not None:
            number = number_of(production)
            assert number > before
            before = number
            os.write(1, f"{number}\n".encode())


if __name__ == "__main__":
    if sys.argv[1] == "write":
        write(sys.argv[2])
    else:
        serve(sys.argv[2], int(sys.argv[3]))
