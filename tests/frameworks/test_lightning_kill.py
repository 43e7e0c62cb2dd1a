"""kill -9 in the middle of ``fit``: the newest version goes on to the bits of a whole training."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.frameworks.need import need

need("lightning", "lightning.pytorch")

from mvc.errors import CannotResume  # noqa: E402
from mvc.frameworks.lightning.callback import MVCCallback  # noqa: E402
from tests.frameworks.lightning_child import EPOCHS  # noqa: E402
from tests.frameworks.lightning_runs import BATCHES, bits, existing, fit, validation  # noqa: E402
from tests.training.killed import lines_until_killed  # noqa: E402


def kill(folder: Path, at: int) -> None:
    lines_until_killed(
        "tests.frameworks.lightning_child", folder,
        enough=lambda said: said[-1] == b"batch %d\n" % at,
    )  # fmt: skip


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """The child has one, and other sums come of two."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def test_killed(tmp_path: Path) -> None:
    kill_and_go_on(tmp_path, 8)


@pytest.mark.long
@pytest.mark.parametrize("at", range(5, EPOCHS * BATCHES, 3))  # before, all may still be queued
def test_killed_anywhere(tmp_path: Path, at: int) -> None:
    kill_and_go_on(tmp_path, at)


def kill_and_go_on(tmp_path: Path, at: int) -> None:
    kill(tmp_path, at)
    whole, trainer = fit(validate=validation(), max_epochs=EPOCHS)
    callback = MVCCallback(existing(tmp_path))
    try:
        path = callback.resume("HEAD")
    except CannotResume:  # it died between a batch and the end of its epoch
        path = callback.resume("HEAD~1")
    rest, again = fit(
        callback, resume=path, validate=validation(), max_epochs=EPOCHS, first_seed=99
    )
    assert callback.resumed is not None
    step = callback.resumed.step
    assert 0 < step <= EPOCHS * BATCHES
    assert at - 4 <= step  # at most what was queued is lost
    assert rest.trace == whole.trace[step:]
    assert bits(rest, again) == bits(whole, trainer)
    assert callback.repo.storage.fsck(full=True).sound
