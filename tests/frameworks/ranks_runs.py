"""A training in several processes: ``FOLDER``. Trains on, goes on from the middle, compares.

Each process tells on standard output its number and whether its bits came back.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch

from mvc.frameworks.accelerate.recording import attach
from mvc.frameworks.huggingface.callback import MVCCallback
from tests.frameworks.accelerate_runs import Run
from tests.frameworks.huggingface_runs import bits, disturb, trainer


def with_trainer(folder: Path) -> bool:
    callback = MVCCallback(folder / "trainer")
    whole = trainer(folder, [callback], max_steps=5, ddp_backend="gloo")
    whole.train()
    assert (callback.report is not None) == whole.is_world_process_zero()
    expected = bits(whole)
    whole.accelerator.wait_for_everyone()
    disturb()
    callback = MVCCallback(folder / "trainer", every_n_steps=100)
    again = trainer(folder, [callback], seed=8, max_steps=5, ddp_backend="gloo")
    callback.resume(again, "HEAD~2")
    return bits(again) == expected and callback.resumed.differs == ()


def with_accelerate(folder: Path) -> bool:
    own = 10 * int(os.environ["RANK"])  # generators of the processes differ
    whole = Run(seed=3)
    torch.manual_seed(own)
    with attach(whole.accelerator, folder / "accelerate") as attached:
        whole.train(attached, 6, {2: folder / "out"})
    expected = whole.bits()
    whole.accelerator.wait_for_everyone()
    again = Run(seed=4)
    torch.manual_seed(own + 1)
    with attach(again.accelerator, folder / "accelerate") as attached:
        differs = attached.load().differs
        again.train(attached, 6)
    same = {key for key, value in again.bits().items() if value == expected[key]}
    # The registered object counts losses of its own process; accelerate keeps the first one's.
    return {*expected} - same <= {"count"} and differs == ()


def main() -> None:
    torch.set_num_threads(1)
    folder = Path(sys.argv[1])
    rank = os.environ["RANK"]
    os.write(1, f"trainer {rank} {with_trainer(folder)}\n".encode())
    os.write(1, f"accelerate {rank} {with_accelerate(folder)}\n".encode())


if __name__ == "__main__":
    main()
