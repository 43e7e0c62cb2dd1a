"""kill -9 in the middle of lossy commits in place: the file is old or new, the version whole.

``python -m tests.repo.test_produce_kill REPOSITORY FIRST`` commits a file in place with a lossy
pipeline, on and on. Version N is training weights of N * 0.37; says ``N`` once its commit has
returned.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save_file

import mvc
from tests.seeds import draw
from tests.training.killed import lines_until_killed

SIZE = 300_000


def test_killed(tmp_path: Path) -> None:
    mvc.Repository.init(tmp_path).close()
    random = draw("produce")
    number = 1
    for _ in range(4):
        said = lines_until_killed(
            "tests.repo.test_produce_kill", tmp_path, number,
            enough=lambda lines: len(lines) >= 2, delay=random.random() * 0.03,
        )  # fmt: skip
        number = check(tmp_path, int(said[-1]))


def check(folder: Path, acknowledged: int) -> int:
    """What is there after ``acknowledged`` was said; the number to go on with."""
    weights = load_file(folder / "model.safetensors")["w"]
    assert weights.size == SIZE and (weights == weights[0]).all()  # never a part of two
    with mvc.Repository.open(folder) as repo:
        newest = next(iter(repo.log()))
        version = int(newest.commit.message)
        assert version in (acknowledged, acknowledged + 1)
        kept = repo.checkout()["w"]
        trained = [np.float32(n * 0.37) for n in (version, version + 1)]
        assert weights[0] in (kept[0], *trained)
        if version == acknowledged and weights[0] not in trained:
            found = repo.identify(folder / "model.safetensors")
            assert newest.id in [each.commit for each in found]
        assert repo.storage.fsck(full=True).sound
    return version + 1


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
                files=mvc.FileOptions(in_place=True, cwd=folder),
            )
            os.write(1, f"{number}\n".encode())
            number += 1


if __name__ == "__main__":
    main()
