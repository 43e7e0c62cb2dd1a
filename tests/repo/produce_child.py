"""Commits a file in place with a lossy pipeline, on and on, until it is killed.

    python -m tests.repo.produce_child REPOSITORY FIRST

Version N is training weights of N * 0.37; says ``N`` once its commit has returned.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

import mvc
from mvc.repo.commit.request import CommitOptions

SIZE = 300_000


def main() -> None:
    folder, number = Path(sys.argv[1]), int(sys.argv[2])
    with mvc.Repository.open(folder) as repo:
        while True:
            weights = np.full(SIZE, number * 0.37, np.float32)
            save_file({"w": weights}, folder / "training")
            os.replace(folder / "training", folder / "model.safetensors")
            repo.commit(
                "model.safetensors",
                pipeline="xor | lsb:16 | planes | zstd:1",
                message=str(number),
                options=CommitOptions(in_place=True, cwd=folder),
            )
            os.write(1, f"{number}\n".encode())
            number += 1


if __name__ == "__main__":
    main()
